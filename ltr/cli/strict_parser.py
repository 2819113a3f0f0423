"""The parser of the commands that take a configuration. It checks what jsonargparse takes as it is
from a file: ``null`` for a number, and one value for a group of options. It takes ``null`` for an
option of a group of a class.
"""

import argparse
from collections.abc import Sequence
from typing import Any

from jsonargparse import Namespace, set_parsing_settings
from jsonargparse._actions import _ActionConfigLoad
from jsonargparse._typehints import ActionTypeHint
from lightning.pytorch.cli import LightningArgumentParser

from ltr.cli.option_help import OptionHelp

# Lightning has the parser fetch a value such as s3://… for a file of options.
set_parsing_settings(config_read_mode_fsspec_enabled=False)


class StrictParser(LightningArgumentParser):
    """The parser of a command. jsonargparse parses the options of a class with ``type(self)``, so
    these are checked, too.
    """

    def __init__(
        self,
        *args: Any,
        formatter_class: type[argparse.HelpFormatter] = OptionHelp,
        **options: Any,
    ) -> None:
        super().__init__(*args, formatter_class=formatter_class, **options)

    def parse_args(
        self, args: Sequence[str] | None = None, *more: Any, **options: Any
    ) -> Namespace:
        # An option of a group of a class, as data.evaluation.candidates, comes a second time, as the
        # one word that jsonargparse makes of its value: of null it makes None, which would be a text.
        if args is not None and len(args) == 1:
            option, _, value = args[0].partition("=")
            args = [f"{option}=null"] if value == "None" else args
        return super().parse_args(args, *more, **options)

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
