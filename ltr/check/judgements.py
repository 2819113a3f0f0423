"""What the judgements of a collection allow: who has a relevant document, who is judged at all, and
what the pools hold.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ltr.check.section import Section
from ltr.compare.tables import Table
from ltr.data.bm25 import bm25_lists
from ltr.data.collection import Collection
from ltr.data.judge_labels import machine_judged_lines
from ltr.data.own_documents import own_documents_line, without_own
from ltr.data.query_lists import QueryLists
from ltr.data.trec import text_of_grade
from ltr.metrics import RankingMetric
from ltr.mining.same_texts import classes_of_queries
from ltr.run.ceiling import ceiling
from ltr.spans import spans

QUERIES = 1000  # of a split that BM25 searches for; fewer are all
DEPTHS = (10, 100)  # of the best documents, of which the unjudged are counted
MANY_WITHOUT = 0.1  # of the queries of a split without a relevant document: severe from here on
LOW_CEILING = 0.8  # of the relevant documents that are in the pools: severe below
MOST_GRADES = 8  # that a table shows; more are scores rather than grades
LISTS_AT_ONCE = 256  # whose ceiling is computed at once


def judgements_section(
    collection: Collection, ranked: QueryLists | None = None, *, search: bool = True
) -> Section:
    """The judgements of each split, how much of what rankers find is judged, and the ceiling of the
    candidate pools.

    Args:
        collection: what is checked.
        ranked: what a run ranks, best first; None for none.
        search: whether to search by BM25, for up to 1,000 queries of each split but ``train``.
    """
    counts = _counts_of_grades(collection)
    own_docs = collection.documents_left_out()
    lines: list[str] = []
    severe: list[str] = []
    split_entries = {}
    for split in collection.qrels:
        split_entries[split] = _entries_of_split(collection, split, counts[split], own_docs)
        split_lines, split_severe = _lines_of_split(
            collection, split, split_entries[split], own_docs
        )
        lines += split_lines
        severe += split_severe
    n_unjudged = _unjudged_queries(collection)
    if n_unjudged:
        lines.append(
            f"{n_unjudged:,} of {len(collection.queries):,} queries have no judgement in any split"
        )
    lines += machine_judged_lines(collection)
    entries: dict[str, object] = {
        "queries_without_judgement": n_unjudged,
        "splits": split_entries,
    }
    tables = [_table_of_judgements(split_entries), _table_of_grades(counts)]
    table_of_unjudged, shares = _unjudged(collection, ranked, search)
    if shares:
        tables.append(table_of_unjudged)
        entries["unjudged"] = shares
    ceilings = _ceilings(collection)
    if ceilings:
        tables.append(_table_of_ceilings(ceilings))
        entries["ceiling"] = ceilings
    for split, values in ceilings.items():  # ceiling() adds R to the metrics
        if values["R"] < LOW_CEILING:
            severe.append(
                f"the candidates of {split} hold {values['R']:.1%} of the relevant documents; no re-ranking of them finds the others"
            )
    return Section("Judgements", tables, lines=lines, severe=severe, entries=entries)


def _counts_of_grades(collection: Collection) -> dict[str, dict[float, int]]:
    """How often each grade stands in a split, by split; the lowest grade first."""
    counts_of = {}
    for split, judged in collection.qrels.items():
        values, counts = np.unique(judged.values, return_counts=True)
        counts_of[split] = dict(zip(values.tolist(), counts.tolist(), strict=True))
    return counts_of


def _counted(collection: Collection, split: str) -> QueryLists:
    """The judgements of a split as they count there: those of train from a level of relevance on."""
    return collection.learnt(split) if split == "train" else collection.qrels[split]


def _entries_of_split(
    collection: Collection, split: str, counts: dict[float, int], own_docs: np.ndarray
) -> dict[str, Any]:
    """The numbers of a split, from its counts of grades and the document that each query is."""
    judged = _counted(collection, split)
    n_relevant = judged.n_relevant()
    n_queries = len(judged.query_rows)
    class_sizes = np.bincount(
        classes_of_queries(collection.queries, judged.query_rows), minlength=1
    )
    shown = list(counts.items())[:MOST_GRADES]
    return {
        "queries": n_queries,
        "judgements": len(judged.values),
        "without_relevant": int((n_relevant == 0).sum()),
        "relevant_mean": float(n_relevant.mean()) if n_queries else 0.0,
        "relevant_median": float(np.median(n_relevant)) if n_queries else 0.0,
        "relevant_most": int(n_relevant.max(initial=0)),
        "grades": len(counts),
        "of_grade": {text_of_grade(grade): count for grade, count in shown},
        "equal_queries": int(class_sizes[class_sizes > 1].sum()),
        "own_documents": int((own_docs[judged.query_rows] >= 0).sum()),
    }


def _lines_of_split(
    collection: Collection, split: str, entries: dict[str, Any], own_docs: np.ndarray
) -> tuple[list[str], list[str]]:
    """What a split says and what of it is severe, from its numbers."""
    lines: list[str] = []
    severe: list[str] = []
    judged = _counted(collection, split)
    n_queries = entries["queries"]
    n_without = entries["without_relevant"]
    if n_without:
        line = f"{n_without:,} of {n_queries:,} queries of {split} have no relevant document: no metric by rank counts them"
        if split == "train":
            line = f"{n_without:,} of {n_queries:,} queries of train have no relevant document: they are left out, but by a ListDataModule whose loss learns from each document (MSELoss, BCELoss) or from the whole batch (OneList)"
        if n_without >= MANY_WITHOUT * n_queries:
            severe.append(line)
        else:
            lines.append(line)
    if entries["equal_queries"]:
        lines.append(
            f"{entries['equal_queries']:,} of {n_queries:,} queries of {split} have the text of another one, under another id: what is relevant for one is never a negative of the other"
        )
    own_line = own_documents_line(
        collection.queries, collection.corpus, judged.query_rows, own_docs
    )
    if own_line:
        lines.append(f"{split}: {own_line}")
    if n_queries and (judged.values > 0).all():
        lines.append(
            f"nobody has judged a document of {split} irrelevant: what is not judged counts as irrelevant"
        )
    return lines, severe


def _unjudged_queries(collection: Collection) -> int:
    """How many queries no split judges."""
    judged_rows = [np.empty(0, dtype=np.int64)]
    judged_rows += [judged.query_rows for judged in collection.qrels.values()]
    return len(collection.queries) - len(np.unique(np.concatenate(judged_rows)))


def _table_of_judgements(split_entries: dict[str, dict[str, Any]]) -> Table:
    header = [
        "split",
        "queries",
        "judgements",
        "without relevant",
        "relevant, median",
        "mean",
        "most",
    ]
    rows = []
    for split, entries in split_entries.items():
        rows.append(
            [
                split,
                f"{entries['queries']:,}",
                f"{entries['judgements']:,}",
                f"{entries['without_relevant']:,}",
                f"{entries['relevant_median']:,.9g}",
                f"{entries['relevant_mean']:.2f}",
                f"{entries['relevant_most']:,}",
            ]
        )
    return Table("judged queries, and relevant documents of a query", header, rows)


def _table_of_grades(counts_of: dict[str, dict[float, int]]) -> Table:
    """How often each grade stands in a split."""
    grades = sorted({grade for counts in counts_of.values() for grade in counts})
    shown = grades[:MOST_GRADES]
    header = ["split", *(f"grade {text_of_grade(grade)}" for grade in shown)]
    if len(grades) > len(shown):
        header.append(f"{len(grades) - len(shown):,} others")
    rows = []
    for split, counts in counts_of.items():
        cells = [split, *(f"{counts.get(grade, 0):,}" for grade in shown)]
        if len(grades) > len(shown):
            cells.append(f"{sum(counts.get(grade, 0) for grade in grades[MOST_GRADES:]):,}")
        rows.append(cells)
    return Table("judgements by grade", header, rows)


def sample_of(query_rows: np.ndarray, count: int = QUERIES) -> np.ndarray:
    """``[n]`` ascending: so many of the queries at most, the same ones each time."""
    if len(query_rows) <= count:
        return query_rows
    return np.sort(np.random.default_rng(0).permutation(query_rows)[:count])


def found_by_bm25(collection: Collection, split: str) -> QueryLists:
    """The best documents of the corpus for up to 1,000 judged queries of a split; cached."""
    return bm25_lists(collection, sample_of(collection.qrels[split].query_rows), max(DEPTHS))


def _unjudged(
    collection: Collection, ranked: QueryLists | None, search: bool
) -> tuple[Table, dict[str, dict[str, dict[str, float]]]]:
    """The share of what rankers put on top that nobody has judged, by ranker and split."""
    rows = []
    shares: dict[str, dict[str, dict[str, float]]] = {}
    if ranked is not None:
        ranked = without_own(ranked, collection.documents_left_out())
    for split, judged in collection.qrels.items():
        lists_of_ranker = {}
        if search and split != "train":
            lists_of_ranker["BM25"] = found_by_bm25(collection, split)
        if ranked is not None:
            is_in_split = np.isin(ranked.query_rows, judged.query_rows)
            if is_in_split.any():
                lists_of_ranker["the run"] = ranked.lists_at(np.flatnonzero(is_in_split))
        for name, lists in lists_of_ranker.items():
            by_depth = {f"top_{depth}": unjudged_share(lists, judged, depth) for depth in DEPTHS}
            shares.setdefault(name, {})[split] = by_depth
            # Of no list there is no share.
            has_lists = len(lists.query_rows) > 0
            cells = [f"{share:.1%}" if has_lists else "" for share in by_depth.values()]
            rows.append([split, name, f"{len(lists.query_rows):,}", *cells])
    header = ["split", "ranker", "queries", *(f"unjudged of the top {depth}" for depth in DEPTHS)]
    title = "share of the best documents that nobody has judged"
    return Table(title, header, rows, text_columns=["ranker"]), shares


def unjudged_share(lists: QueryLists, judged: QueryLists, depth: int) -> float:
    """The share of the first ``depth`` documents of all lists that are not judged for their query;
    0 where there is none.
    """
    n_docs = 0
    n_unjudged = 0
    for query_row in lists.query_rows.tolist():
        docs = lists.of(query_row)[0][:depth]
        known, _ = judged.of(query_row)
        n_docs += len(docs)
        n_unjudged += int((~np.isin(docs, known)).sum())
    return n_unjudged / n_docs if n_docs else 0.0


def _ceilings(collection: Collection) -> dict[str, dict[str, float]]:
    """By split, what the best order of its pools would reach."""
    ceilings = {}
    for split in collection.candidates:
        judged = collection.qrels.get(split)
        if judged is None:
            continue
        pools = collection.pools(split, option="candidates")
        rows = sample_of(judged.query_rows)
        batches = []
        for span in spans(len(rows), LISTS_AT_ONCE):
            lists = []
            for query_row in rows[span].tolist():
                docs, _ = pools.of(query_row)
                lists.append(judged.labelled(query_row, docs))
            batches.append(lists)
        values = ceiling([RankingMetric("nDCG@10"), RankingMetric("AP")], batches)
        if values:
            ceilings[split] = values
    return ceilings


def _table_of_ceilings(ceilings: dict[str, dict[str, float]]) -> Table:
    names: Sequence[str] = list(next(iter(ceilings.values())))
    rows = []
    for split, values in ceilings.items():
        rows.append([split, *(f"{values[name]:.4f}" for name in names)])
    return Table("ceiling of the candidate pools: their best order", ["split", *names], rows)
