"""Two folders of negatives side by side."""

import numpy as np
import pandas as pd

from ltr.mining.negatives import MinedNegatives


def side_by_side(first: MinedNegatives, second: MinedNegatives) -> pd.DataFrame:
    """The pairs of a query and a document that is a negative of it in either folder, by rows.

    Returns:
        The columns ``query``, ``doc``; ``rank_1``, ``rank_2``, from 1, and ``distance_1``, ``distance_2``: NaN where a folder has
        not the pair, or no distances; ``near``, the distance as a share of the mean distance of relevant documents, the larger of
        the two, NaN where no folder knows it; ``suspected``, likely false negatives: in both folders, and ``near`` below 1.
    """
    sides = []
    for name, one in (("1", first), ("2", second)):
        lists, counts = one.lists(), np.diff(one.lists().offsets)
        rank = np.arange(len(lists.doc_rows)) - np.repeat(lists.offsets[:-1], counts) + 1
        distance = lists.values if one.has_distances else np.full(len(rank), np.nan, np.float32)
        near = distance / one.manifest.get("mean_distance", {}).get("relevant", np.nan)
        side = {"query": np.repeat(lists.query_rows, counts), "doc": lists.doc_rows}
        sides.append(pd.DataFrame(side | {f"rank_{name}": rank, f"distance_{name}": distance, f"near_{name}": near}))
    pairs = sides[0].merge(sides[1], on=["query", "doc"], how="outer")
    pairs["near"] = pairs[["near_1", "near_2"]].max(axis=1)
    pairs["suspected"] = pairs["rank_1"].notna() & pairs["rank_2"].notna() & (pairs["near"] < 1)
    return pairs.drop(columns=["near_1", "near_2"])


def overlap(pairs: pd.DataFrame, k: float = np.inf) -> pd.DataFrame:
    """What the first k negatives of each query have in common, by queries that have some in both folders.

    Returns:
        ``share``, of those in the first folder that are in the second too; and ``jaccard``, of those in either that are in both.
    """
    there = pairs[["rank_1", "rank_2"]] <= k
    counts = there.assign(both=there.all(axis=1)).groupby(pairs["query"]).sum()
    counts = counts[(counts["rank_1"] > 0) & (counts["rank_2"] > 0)]
    either = counts["rank_1"] + counts["rank_2"] - counts["both"]
    return pd.DataFrame({"share": counts["both"] / counts["rank_1"], "jaccard": counts["both"] / either})
