"""Measures trained runs on the clean part of test too (docs/results.md): python
experiments/clean_splits.py, after experiments/reproduce.py. Writes the clean splits beside the
others, in the data folders.
"""

from pathlib import Path

from ltr.__main__ import main as ltr

EXPERIMENTS = {
    "examples/medquad": ["runs/cross_encoder/mean"],
    "runs/data/medquad-400": ["runs/ladder/in-batch", "runs/ladder/with margins"],
    "data/wikiqa": ["runs/wikiqa_best/sentence encoder/as published"],
}
SPLITS = ["--split", "test", "test.clean"]


def call(*words: object) -> None:
    """A command of ltr, which must succeed."""
    if ltr([str(word) for word in words]):
        raise SystemExit(2)


def main() -> None:
    """Measure them all, then compare those that were trained on the same data."""
    for data, experiments in EXPERIMENTS.items():
        call("check", "--data", data, "--write")
        for experiment in experiments:
            for run in sorted(Path(experiment).glob("seed=*")):
                call("test", run, *SPLITS)
        call("compare", *experiments, *SPLITS)


if __name__ == "__main__":
    main()
