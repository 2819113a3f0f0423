"""The parser of the commands that take a configuration. It checks what jsonargparse takes as it is
from a file: ``null`` for a number, and one value for a group of options.
"""

import argparse
from typing import Any

import jsonargparse
from jsonargparse import Namespace, set_parsing_settings
from jsonargparse._actions import _ActionConfigLoad
from jsonargparse._typehints import ActionTypeHint
from lightning.pytorch.cli import LightningArgumentParser

import ltr.models
from ltr.errors import InputError
from ltr.module import RankerModule

# Lightning has the parser fetch a value such as s3://… for a file of options.
set_parsing_settings(config_read_mode_fsspec_enabled=False)


class StrictParser(LightningArgumentParser):
    """Also the parser of the options of a class, which is made of the class of this one."""

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
        # A default of None: null stands for it, or the option must be given, which is checked later.
        if value is None and isinstance(action, ActionTypeHint) and action.default is not None:
            action._check_type_(value, cfg=cfg, append=append, mode=self.parser_mode)
        return super()._check_value_key(action, value, key, cfg, append)


class ModelHelp(argparse.Action):
    """``--model.help [RANKER]``: the options of the model alone, with those of a ranker such as
    ``DualEncoder``.
    """

    def __init__(self, option_strings: list[str], dest: str, **_: Any) -> None:
        help = "Show the options of the model, and of a ranker if one is named, and exit."
        super().__init__(
            option_strings, dest, nargs="?", metavar="RANKER", default=argparse.SUPPRESS, help=help
        )

    def __call__(
        self, parser: argparse.ArgumentParser, _: Any, value: Any, option: str | None = None
    ) -> None:
        help_parser = jsonargparse.ArgumentParser(
            add_help=False, usage="ltr COMMAND --config FILE [--model.OPTION VALUE …]"
        )
        if value is None:
            help_parser.add_class_arguments(RankerModule, "model")
        else:
            name = value.rpartition(".")[2]
            if name not in ltr.models.__all__:
                raise InputError(
                    f"--model.help takes one of {', '.join(ltr.models.__all__)}, got {value!r}"
                )
            help_parser.add_class_arguments(RankerModule, "model", skip={"ranker"})
            help_parser.add_class_arguments(vars(ltr.models)[name], "model.ranker")
        help_parser.print_help()
        parser.exit()
