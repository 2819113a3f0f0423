"""Two folders of negatives side by side."""

import numpy as np
import pandas as pd

from ltr.mining.mined_negatives import MinedNegatives


def pairs_of_both(first: MinedNegatives, second: MinedNegatives) -> pd.DataFrame:
    """The pairs of a query and a document that is a negative of it in either folder, by rows.

    Returns:
        A table with the columns

        * ``query``, ``doc``: their rows;
        * ``rank_1``, ``rank_2``: place among the negatives of the query in the first and the second
          folder, from 1; NaN where that folder has not the pair;
        * ``distance_1``, ``distance_2``: NaN also where that folder has no distances;
        * ``near``: the distance as a share of the mean distance of relevant documents, in the
          folder where it is larger; NaN where no folder knows it;
        * ``suspected``: whether the pair is a likely false negative: in both folders, and ``near``
          below 1.
    """
    pairs_1 = _pairs_of_folder(first, "1")
    pairs_2 = _pairs_of_folder(second, "2")
    pairs = pairs_1.merge(pairs_2, on=["query", "doc"], how="outer")
    pairs["near"] = pairs[["near_1", "near_2"]].max(axis=1)
    in_both = pairs["rank_1"].notna() & pairs["rank_2"].notna()
    pairs["suspected"] = in_both & (pairs["near"] < 1)
    return pairs.drop(columns=["near_1", "near_2"])


def _pairs_of_folder(negatives: MinedNegatives, suffix: str) -> pd.DataFrame:
    """The pairs of one folder, with columns that end on ``_<suffix>``."""
    lists = negatives.lists
    # Negatives from elsewhere have no such means. A mean of 0 measures nothing: no relevant document
    # was compared, or each is its query's own text.
    mean_distances = negatives.manifest.get("mean_distance", {})
    relevant_distance = mean_distances.get("relevant") or np.nan
    return pd.DataFrame(
        {
            "query": lists.query_of_doc,
            "doc": lists.doc_rows,
            f"rank_{suffix}": lists.place_in_list + 1,
            f"distance_{suffix}": lists.values,
            f"near_{suffix}": lists.values / relevant_distance,
        }
    )


def overlap_at(pairs: pd.DataFrame, k: float = np.inf) -> pd.DataFrame:
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
