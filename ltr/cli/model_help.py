"""``--model.help``: the options of the model and of a ranker, without all others."""

import argparse
from typing import Any

import jsonargparse

import ltr.models
from ltr.errors import InputError
from ltr.module import RankerModule


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
