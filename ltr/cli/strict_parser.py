"""The parser of the commands that take a configuration. It checks what jsonargparse takes as it is
from a file: ``null`` for a number, and one value for a group of options.
"""

import argparse
from typing import Any

from jsonargparse import Namespace, set_parsing_settings
from jsonargparse._actions import _ActionConfigLoad
from jsonargparse._typehints import ActionTypeHint
from lightning.pytorch.cli import LightningArgumentParser

# Lightning has the parser fetch a value such as s3://… for a file of options.
set_parsing_settings(config_read_mode_fsspec_enabled=False)


class StrictParser(LightningArgumentParser):
    """The parser of a command. jsonargparse parses the options of a class with ``type(self)``, so
    these are checked, too.
    """

    def _check_value_key(
        self,
        action: argparse.Action,
        value: Any,
        key: str,
        cfg: Namespace | None,
        append: bool = False,
    ) -> Any:
        is_group = isinstance(action, _ActionConfigLoad)
        if is_group and not isinstance(value, str | dict | Namespace):
            raise TypeError(f'Parser key "{key}": must be a group of options, got {value!r}')
        # null is refused unless None is the default: a required option has that default, too, and is
        # checked later.
        if value is None and isinstance(action, ActionTypeHint) and action.default is not None:
            action._check_type_(value, cfg=cfg, append=append, mode=self.parser_mode)
        return super()._check_value_key(action, value, key, cfg, append)
