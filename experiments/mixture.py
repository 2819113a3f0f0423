"""Trains on two sources and on each alone, three seeds, and compares on both (docs/results.md):
python experiments/mixture.py. What is trained already stays.
"""

from pathlib import Path

from ltr.__main__ import main as ltr

CONFIGS = Path("experiments", "mixture")
RUNS = Path("runs", "mixture")
EXPERIMENTS = ["one_source", "mixed", "medquad", "wikiqa"]
SOURCES = ["examples/medquad", "data/wikiqa"]


def call(*words: object) -> None:
    """A command of ltr, which must succeed."""
    if ltr([str(word) for word in words]):
        raise SystemExit(2)


def main() -> None:
    """Train them all, test each on both sources, compare."""
    for name in EXPERIMENTS:
        for seed in range(3):
            run = RUNS / name / f"seed={seed}"
            config = ["--config", CONFIGS / f"{name}.yaml", "--seed_everything", seed]
            options = ["--trainer.default_root_dir", run, "--trainer.precision", "bf16-mixed"]
            call("fit", *config, *options, "--ckpt_path", "last")
            call("test", run, "--data.path", *SOURCES)
    call("compare", *[RUNS / name for name in EXPERIMENTS], "--data", *SOURCES)


if __name__ == "__main__":
    main()
