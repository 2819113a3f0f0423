"""Writes a collection with some of the training queries of another one: python
experiments/subset.py SOURCE FOLDER --queries 400

The queries are drawn with seed 0. Corpus, queries and the other splits stay as they are.
"""

import argparse
import shutil
from pathlib import Path

import numpy as np


def main() -> None:
    """Copy, and cut the training judgements."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, help="a collection in a folder")
    parser.add_argument("folder", type=Path, help="the one to write; what is there stays")
    parser.add_argument(
        "--queries", type=int, required=True, help="how many training queries to keep"
    )
    asked = parser.parse_args()
    if asked.folder.exists():
        return
    part = asked.folder.with_name(f"{asked.folder.name}.tmp")
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(asked.source, part)
    file = part / "qrels/train.tsv"
    header, *lines = file.read_text().splitlines(keepends=True)
    queries = sorted({line.split("\t")[0] for line in lines})
    kept = set(np.random.default_rng(0).permutation(queries)[: asked.queries].tolist())
    file.write_text(header + "".join(line for line in lines if line.split("\t")[0] in kept))
    part.rename(asked.folder)


if __name__ == "__main__":
    main()
