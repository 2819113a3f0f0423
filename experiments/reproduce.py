"""Makes the trained numbers of the README and docs/results.md again: python
experiments/reproduce.py [TABLE ...] [--quick]

With tables: trains what is not there yet in runs/, resumes what was interrupted, and writes
runs/TABLE.md. Several may run at once and share the work: give each a core. What the runs read is
made before by ``make results/TABLE``. Without tables: writes docs/results.md anew below its mark,
of the runs that are there. ``--quick``: one seed of what ships, into runs/quick, with its own page.
"""

import argparse
import shlex
from pathlib import Path
from typing import NamedTuple

import torch

from ltr.__main__ import main as ltr

GRIDS = Path("experiments", "grids")
MARK = "<!-- Below this line: experiments/reproduce.py -->\n"
MEDQUAD = (
    "--data.path runs/data/medquad-400 --data.negatives runs/data/medquad-negatives "
    "--data.evaluation.candidates bm25 --data.evaluation.depth 20 "
    "--model.ranker.init_args.max_length 64"
)
# The first rung of the ladder and its last ones.
ENDS = "--only in-batch 'mined once' 'with margins'"
# What the folds choose, and its neighbour.
FOLDS = "--only 'dual encoder, averaged' 'dual encoder' --seeds 0 1 2"
# Ten candidates of BM25, and negatives of its best 20.
TEN = "--data.negatives_depth 20 --data.evaluation.depth 10"
# The arms that five seeds are for.
MAIN = "--only 'in-batch 32' 'mined once' refreshed 'k d' constant --seeds 0 1 2 3 4"


class Family(NamedTuple):
    """A grid, on the data that it names or on another.

    Attributes:
        grid: its file, without the suffix.
        runs: the folder of its runs.
        options: of ``ltr grid``, as one would type them.
        ships: whether its data is in the repository.
        wants_gpu: whether a CPU would need more than an hour for each run: then it is left out there.
    """

    grid: str
    runs: str
    options: str = ""
    ships: bool = False
    wants_gpu: bool = False


FAMILIES = (
    Family("wikiqa", "wikiqa"),
    Family("wikiqa_best", "wikiqa_best"),
    Family("wikiqa_dual", "wikiqa_dual"),
    Family("wikiqa_folds", "wikiqa_folds-5-folds", "--folds 5"),
    Family("wikiqa_folds", "wikiqa_folds", FOLDS),
    Family("cross_encoder", "cross_encoder", ships=True),
    Family("losses", "losses"),
    Family("losses", "losses-medquad", MEDQUAD),
    Family("dual_encoder", "dual_encoder"),
    Family(
        "transform",
        "transform",
        "--model.ranker.init_args.max_length 32 --trainer.limit_val_batches 0",
    ),
    Family("distil", "distil"),
    Family("distil_cross", "distil_cross"),
    Family("distil_corpus", "distil_corpus"),
    Family("windows", "windows"),
    Family("ladder", "ladder", ships=True),
    Family("ladder", "ladder-wikiqa", "--data.path data/wikiqa"),
    Family(
        "ladder",
        "ladder-liveqa",
        f"{ENDS} --data.path runs/data/liveqa-600 --trainer.max_epochs 2 --seeds 0 1 2",
    ),
    Family(
        "ladder",
        "ladder-cmedir",
        f"{ENDS} --data.path data/cmedir --trainer.max_epochs 1 --seeds 0",
    ),
    Family("schedule", "schedule", "--model.ranker.init_args.max_length 32 --trainer.max_epochs 2"),
    Family("margins", "margins"),
    Family("heart", "heart"),
    Family("heart", "heart", MAIN),
    Family(
        "heart",
        "heart_double",
        "--only 'mined once' refreshed --seeds 0 --trainer.max_epochs 6",
    ),
    Family("heart_long", "heart_long", wants_gpu=True),
    Family("heart_size", "heart_size"),
    Family("heart_rerank", "heart_rerank"),
    Family("calibration", "calibration-wikiqa", "--trainer.max_epochs 2"),
    Family("calibration", "calibration-medquad", f"--data.path examples/medquad {TEN}"),
    Family("calibration", "calibration-wordnet", f"--data.path runs/data/wordnet-2000 {TEN}"),
    Family("rerank_mined", "rerank_mined", "--trainer.max_epochs 1 --data.evaluation.depth 20"),
)


def table_section(family: Family, runs: Path, words: list[str]) -> str:
    """Train what is missing, unless the words say ``--table``. The section of the page: the question
    of the grid, the command, and the tables.
    """
    file = GRIDS / f"{family.grid}.yaml"
    folder = runs / family.runs
    table = folder.with_suffix(".md")
    command = ["grid", str(file), "--runs", str(folder), *words, *shlex.split(family.options)]
    if ltr([*command, "--markdown", str(table)]):
        raise SystemExit(2)
    command = [word for word in command if word != "--table"]  # a reader's command trains
    question = file.read_text().splitlines()[0].removeprefix("# Asks: ")
    question = question[0].upper() + question[1:]
    typed = shlex.join(["ltr", *command])
    return f"## {family.runs}\n\n{question}\n\n`{typed}`\n\n{table.read_text()}"


def main() -> None:
    """Train for the tables that were named, or write the page of all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = list(dict.fromkeys(family.runs for family in FAMILIES))
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=", ".join(names))
    parser.add_argument("--quick", action="store_true", help="one seed, on examples/medquad")
    asked = parser.parse_args()
    unknown = sorted(set(asked.tables) - set(names))
    if unknown:
        parser.error(f"there is no table {', '.join(unknown)}; there are {', '.join(names)}")
    runs = Path("runs")
    words = []
    families = list(FAMILIES)
    if asked.quick:
        runs = Path("runs", "quick")
        words = ["--seeds", "0"]
        families = [family for family in FAMILIES if family.ships]
    if asked.tables:
        families = [family for family in families if family.runs in asked.tables]
    if not torch.cuda.is_available():
        for family in [family for family in families if family.wants_gpu]:
            print(f"{family.runs} is left out: without a GPU each of its runs takes hours")
            families.remove(family)
    if asked.tables:
        for family in families:
            table_section(family, runs, words)
        return
    sections = [table_section(family, runs, [*words, "--table"]) for family in families]
    if asked.quick:
        page = runs / "results.md"
        head = "# Results, one seed\n\n"
    else:
        page = Path("docs", "results.md")
        head = page.read_text().partition(MARK)[0]
    page.write_text(head + MARK + "\n" + "\n".join(sections))
    print(f"written to {page}")


if __name__ == "__main__":
    main()
