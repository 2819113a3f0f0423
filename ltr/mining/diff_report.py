"""What two folders of negatives differ in, as lines to read and as a table."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from ltr.data.collection import Collection
from ltr.data.texts import TextTable, beginning
from ltr.mining.diff import overlap_at

SHOWN = 3  # queries that changed, and suspects
LETTERS = 100  # of a text
DEPTHS = (1, 5, 10, np.inf)  # at which the overlap is told
COLUMNS = (
    "query",
    "doc",
    "rank_1",
    "rank_2",
    "distance_1",
    "distance_2",
    "suspected",
    "query_text",
    "doc_text",
)


def diff_lines(pairs: pd.DataFrame, collection: Collection) -> Iterator[str]:
    """What is told of two folders: their overlap, the queries that changed most, and likely false
    negatives.

    Args:
        pairs: of :func:`ltr.mining.diff.pairs_of_both`.
        collection: theirs.
    """
    ranks = pairs[["rank_1", "rank_2"]]
    n_first, n_second = ranks.notna().sum()
    n_both = ranks.notna().all(axis=1).sum()
    by_query = overlap_at(pairs)
    yield f"{n_first:,} and {n_second:,} negatives, {n_both:,} in both; {len(by_query):,} queries in both"
    if by_query.empty:
        return
    for depth in DEPTHS:
        mean = overlap_at(pairs, depth).mean()
        name = "all" if depth == np.inf else f"first {depth}"
        yield f"  {name:8} {mean['share']:7.1%} of the first folder's are in the second; Jaccard {mean['jaccard']:.3f}"
    if n_both:
        moved = (pairs["rank_1"] - pairs["rank_2"]).abs().mean()
        yield f"  a negative of both moves by {moved:.1f} places on average"
    yield "changed most:"
    for query, jaccard in by_query["jaccard"].nsmallest(SHOWN).items():
        yield f"  {jaccard:.3f} {_id_and_text(collection.queries, query)}"
    if pairs["near"].isna().all():
        yield "no folder says how far relevant documents are, which would tell likely false negatives"
        return
    suspects = pairs[pairs["suspected"]].sort_values("near", kind="stable")
    yield f"likely false negatives (in both, nearer than relevant documents are on average): {len(suspects):,} pairs"
    for pair in suspects.head(SHOWN).itertuples():
        yield f"  {_id_and_text(collection.queries, pair.query)}"
        place = f"rank {pair.rank_1:.0f} and {pair.rank_2:.0f}, at {pair.near:.0%} of that distance"
        yield f"    {place}: {_id_and_text(collection.corpus, pair.doc)}"


def diff_tsv(pairs: pd.DataFrame, collection: Collection) -> str:
    """All pairs with ids for rows, and with texts where they are suspected, as a TSV file."""
    columns = {}
    for name, table in (("query", collection.queries), ("doc", collection.corpus)):
        rows = pairs[name]
        columns[name] = [table.ids[row] for row in rows]
        columns[f"{name}_text"] = [
            beginning(table.texts[row], LETTERS) if suspected else ""
            for row, suspected in zip(rows, pairs["suspected"], strict=True)
        ]
    named = pairs.assign(**columns, suspected=pairs["suspected"].astype(int))[list(COLUMNS)]
    return named.to_csv(sep="\t", index=False, float_format="%.6g", lineterminator="\n")


def _id_and_text(table: TextTable, row: int) -> str:
    return f"{table.ids[row]}: {beginning(table.texts[row], LETTERS)}"
