"""Writes a collection with some of the queries, and perhaps of the documents, of another one: python
experiments/subset.py SOURCE FOLDER --queries 400

All is drawn with seed 0. What no option cuts stays as it is. Documents that are judged for a query
that is left are never cut.
"""

import argparse
import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np


def main() -> None:
    """Copy, and cut judgements and documents."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, help="a collection in a folder")
    parser.add_argument("folder", type=Path, help="the one to write; what is there stays")
    parser.add_argument(
        "--queries", type=int, required=True, help="how many training queries to keep"
    )
    parser.add_argument(
        "--evaluated", type=int, help="keep one of so many queries of dev and test (default: all)"
    )
    parser.add_argument("--documents", type=int, help="how many documents to keep (default: all)")
    asked = parser.parse_args()
    if asked.folder.exists():
        return
    part = asked.folder.with_name(f"{asked.folder.name}.tmp")
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(asked.source, part)
    cut_queries(part / "qrels/train.tsv", lambda n: asked.queries)
    if asked.evaluated is not None:
        for split in ("dev", "test"):
            cut_queries(part / f"qrels/{split}.tsv", lambda n: n // asked.evaluated)
    if asked.documents is not None:
        cut_documents(part, asked.documents)
    part.rename(asked.folder)


def cut_queries(file: Path, n_kept: Callable[[int], int]) -> None:
    """Keep the judgements of some queries; how many is said of how many there are."""
    header, *lines = file.read_text().splitlines(keepends=True)
    queries = sorted({line.split("\t")[0] for line in lines})
    drawn = np.random.default_rng(0).permutation(queries)[: n_kept(len(queries))]
    kept = set(drawn.tolist())
    file.write_text(header + "".join(line for line in lines if line.split("\t")[0] in kept))


def cut_documents(folder: Path, n: int) -> None:
    """Keep the judged documents, and random others up to n in all."""
    judged = set()
    for file in sorted((folder / "qrels").glob("*.tsv")):
        for line in file.read_text().splitlines()[1:]:
            judged.add(line.split("\t")[1])
    file = folder / "corpus.jsonl.gz"
    with gzip.open(file, "rt", encoding="utf-8") as opened:
        lines = opened.readlines()
    ids = [json.loads(line)["_id"] for line in lines]
    others = sorted(set(ids) - judged)
    n_others = n - len(judged)
    if n_others < 0:
        raise SystemExit(f"{len(judged)} documents are judged, more than {n}; keep fewer queries")
    drawn = np.random.default_rng(0).permutation(others)[:n_others]
    kept = judged | set(drawn.tolist())
    with gzip.open(file, "wt", encoding="utf-8") as opened:
        for id_, line in zip(ids, lines, strict=True):
            if id_ in kept:
                opened.write(line)


if __name__ == "__main__":
    main()
