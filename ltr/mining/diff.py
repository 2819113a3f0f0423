"""Two folders of negatives side by side."""

import numpy as np
import pandas as pd

from ltr.mining.negatives import MinedNegatives


def side_by_side(first: MinedNegatives, second: MinedNegatives) -> pd.DataFrame:
    """The pairs of a query and a document that is a negative of it in either folder, by rows.

    Returns:
        The columns ``query``, ``doc``; ``rank_1``, ``rank_2``, from 1, and ``distance_1``,
        ``distance_2``: NaN where a folder has not the pair, or no distances; ``near``, the distance
        as a share of the mean distance of relevant documents, the larger of the two, NaN where no
        folder knows it; ``suspected``, likely false negatives: in both folders, and ``near``
        below 1.
    """
    sides = [_side(first, "1"), _side(second, "2")]
    pairs = sides[0].merge(sides[1], on=["query", "doc"], how="outer")
    pairs["near"] = pairs[["near_1", "near_2"]].max(axis=1)
    in_both = pairs["rank_1"].notna() & pairs["rank_2"].notna()
    pairs["suspected"] = in_both & (pairs["near"] < 1)
    return pairs.drop(columns=["near_1", "near_2"])


def _side(negatives: MinedNegatives, name: str) -> pd.DataFrame:
    """The pairs of one folder; the name ends the names of its columns."""
    lists = negatives.lists()
    counts = np.diff(lists.offsets)
    rank = np.arange(len(lists.doc_rows)) - np.repeat(lists.offsets[:-1], counts) + 1
    distance = np.full(len(rank), np.nan, np.float32)
    if negatives.has_distances:
        distance = lists.values
    relevant_distance = negatives.manifest.get("mean_distance", {}).get("relevant", np.nan)
    return pd.DataFrame(
        {
            "query": np.repeat(lists.query_rows, counts),
            "doc": lists.doc_rows,
            f"rank_{name}": rank,
            f"distance_{name}": distance,
            f"near_{name}": distance / relevant_distance,
        }
    )


def overlap(pairs: pd.DataFrame, k: float = np.inf) -> pd.DataFrame:
    """What the first k negatives of each query have in common.

    Only queries that have some in both folders count.

    Returns:
        ``share``, of those in the first folder that are in the second too; and ``jaccard``, of
        those in either that are in both.
    """
    is_among_k = pairs[["rank_1", "rank_2"]] <= k
    is_among_k["both"] = is_among_k.all(axis=1)
    counts = is_among_k.groupby(pairs["query"]).sum()
    counts = counts[(counts["rank_1"] > 0) & (counts["rank_2"] > 0)]
    either = counts["rank_1"] + counts["rank_2"] - counts["both"]
    return pd.DataFrame(
        {"share": counts["both"] / counts["rank_1"], "jaccard": counts["both"] / either}
    )
