"""``--model.help`` and ``--help.trainer``: the options of one part, without all others."""

import argparse
from typing import Any

import jsonargparse

import ltr.models
from ltr.cli.mine import MiningTrainer
from ltr.cli.option_help import OptionHelp
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
        help_parser = _parser_of_part("model")
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


class TrainerHelp(argparse.Action):
    """``--help.trainer``: all that Lightning says of the options of its trainer."""

    def __init__(self, option_strings: list[str], dest: str, **_: Any) -> None:
        help = "Show all that Lightning says of the options of the trainer, and exit."
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(
        self, parser: argparse.ArgumentParser, _: Any, value: Any, option: str | None = None
    ) -> None:
        help_parser = _parser_of_part("trainer")
        help_parser.add_class_arguments(MiningTrainer, "trainer", fail_untyped=False)
        help_parser.print_help()
        parser.exit()


def _parser_of_part(part: str) -> jsonargparse.ArgumentParser:
    """A parser that has no options yet, and whose help is that of a part."""
    usage = f"ltr COMMAND --config FILE [--{part}.OPTION VALUE …]"
    return jsonargparse.ArgumentParser(add_help=False, usage=usage, formatter_class=OptionHelp)
