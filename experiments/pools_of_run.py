"""Writes a collection whose test pools are what a run has found: python
experiments/pools_of_run.py RUN SOURCE FOLDER --depth 50

The run has searched the corpus of SOURCE, and test.run holds what it found. It holds nothing for dev,
so there is no dev split. Everything else stays as it is.
"""

import argparse
import shutil
from pathlib import Path

from ltr.run.run_folder import RunFolder


def main() -> None:
    """Copy, and write the pools."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="a tested run folder")
    parser.add_argument("source", type=Path, help="the collection that it was tested on")
    parser.add_argument("folder", type=Path, help="the one to write; what is there stays")
    parser.add_argument("--depth", type=int, required=True, help="documents of a pool")
    asked = parser.parse_args()
    if asked.folder.exists():
        return
    part = asked.folder.with_name(f"{asked.folder.name}.tmp")
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(asked.source, part)
    (part / "candidates").mkdir(exist_ok=True)
    with (
        open(RunFolder(asked.run).test_run) as ranking,
        open(part / "candidates/test.trec", "w") as pools,
    ):
        for line in ranking:
            rank = int(line.split()[3])
            if rank <= asked.depth:
                pools.write(line)
    (part / "qrels/dev.tsv").unlink()
    part.rename(asked.folder)


if __name__ == "__main__":
    main()
