"""``ltr negatives``: folders of negatives made of other files, compared, and audited."""

import logging
from collections.abc import Iterator
from pathlib import Path

import jsonargparse
import numpy as np
import pandas as pd

from ltr.cli.audit import Data, audit
from ltr.data.collection import Collection, open_collection
from ltr.data.files import write_whole
from ltr.data.texts import TextTable, beginning
from ltr.errors import InputError
from ltr.mining.diff import overlap, side_by_side
from ltr.mining.imported import negatives_of_file
from ltr.mining.negatives import MinedNegatives

log = logging.getLogger(__name__)

SHOWN = 3  # queries that changed, and suspects
LETTERS = 100  # of a text


def import_negatives(source: str, output: str, data: Data, distances: str | None = None) -> None:
    """Make a folder of negatives of a run file, an array or a table.

    Args:
        source: A run file in TREC format (.trec, .run, plain or .gz), document rows [Q, K] (.npy),
            or a table with the columns query_id, doc_id and, if it has them, distance or score
            (.parquet).
        output: The new folder.
        data: The collection.
        distances: An array [Q, K] (.npy) beside that of rows: the Euclidean distances of documents
            and queries.
    """
    if Path(output).exists():
        raise InputError(f"{output} must be a new folder, and is there already; name another one")
    collection = open_collection(data.path)
    found = negatives_of_file(
        Path(source), collection, None if distances is None else Path(distances)
    )
    found.save(Path(output), collection)
    counts = found.manifest["counts"]
    known = "with distances" if found.has_distances else "without distances"
    log.info(
        "%s: %d negatives of %d queries, %s",
        output,
        counts["chosen"],
        found.manifest["mined_queries"],
        known,
    )
    if counts["relevant"]:
        log.info(
            "  %d documents are left out: they, or others of the same text, are judged relevant",
            counts["relevant"],
        )
    if "train" in collection.qrels:
        without = np.setdiff1d(collection.qrels["train"].query_rows, found.lists().query_rows)
        if len(without):
            log.info("  %d training queries have none", len(without))
    log.info("  to train on them: --data.negatives %s", output)


def diff(first: str, second: str, data: Data, tsv: str | None = None) -> None:
    """Compare two folders of negatives: overlap, moved ranks, queries that changed most, likely
    false negatives.

    Args:
        first: A folder of negatives.
        second: Another one.
        data: The collection.
        tsv: Also write all pairs of queries and documents to this file.
    """
    collection = open_collection(data.path)
    folders = [MinedNegatives.open(Path(path), collection) for path in (first, second)]
    for path, one in zip((first, second), folders, strict=True):
        if not (one.doc_rows >= 0).any():
            raise InputError(f"{path}: there must be a negative to compare, and there is none")
    pairs = side_by_side(*folders)
    for line in _told(pairs, collection):
        log.info("%s", line)
    if tsv is not None:
        write_whole(
            tsv,
            [
                _named(pairs, collection).to_csv(
                    sep="\t", index=False, float_format="%.6g", lineterminator="\n"
                )
            ],
        )
        log.info("all %d pairs are in %s", len(pairs), tsv)


def _told(pairs: pd.DataFrame, collection: Collection) -> Iterator[str]:
    in_both = pairs[["rank_1", "rank_2"]].notna().all(axis=1)
    in_all = overlap(pairs)
    n = pairs[["rank_1", "rank_2"]].notna().sum()
    yield f"{n.iloc[0]:,} and {n.iloc[1]:,} negatives, {in_both.sum():,} in both; {len(in_all):,} queries in both"
    for k in (1, 5, 10, np.inf):
        one = overlap(pairs, k).mean()
        name = "all" if k == np.inf else f"first {k}"
        yield f"  {name:8} {one['share']:7.1%} of the first folder's are in the second; Jaccard {one['jaccard']:.3f}"
    yield f"  a negative of both moves by {(pairs['rank_1'] - pairs['rank_2']).abs().mean():.1f} places on average"
    yield "changed most:"
    for query, value in in_all["jaccard"].nsmallest(SHOWN).items():
        yield f"  {value:.3f} {_shown(collection.queries, query)}"
    if pairs["near"].isna().all():
        yield "no folder says how far relevant documents are, which would tell likely false negatives"
        return
    suspects = pairs[pairs["suspected"]].sort_values("near", kind="stable")
    yield f"likely false negatives (in both, nearer than relevant documents are on average): {len(suspects):,} pairs"
    for one in suspects.head(SHOWN).itertuples():
        yield f"  {_shown(collection.queries, one.query)}"
        near = f"rank {one.rank_1:.0f} and {one.rank_2:.0f}, at {one.near:.0%} of that distance"
        yield f"    {near}: {_shown(collection.corpus, one.doc)}"


def _shown(table: TextTable, row: int) -> str:
    return f"{table.ids[row]}: {beginning(table.texts[row], LETTERS)}"


def _named(pairs: pd.DataFrame, collection: Collection) -> pd.DataFrame:
    """The pairs with ids for rows, and with texts where they are suspected."""
    texts = {}
    for name, table in (("query", collection.queries), ("doc", collection.corpus)):
        suspects = pairs[name].where(pairs["suspected"])
        texts[f"{name}_text"] = suspects.map(
            lambda row, t=table: beginning(t.texts[int(row)], LETTERS), "ignore"
        )
        texts[name] = pairs[name].map(lambda row, t=table: t.ids[row])
    whole = pairs.assign(**texts, suspected=pairs["suspected"].astype(int))
    return whole[
        [
            "query",
            "doc",
            "rank_1",
            "rank_2",
            "distance_1",
            "distance_2",
            "suspected",
            "query_text",
            "doc_text",
        ]
    ]


COMMANDS = {"import": import_negatives, "diff": diff, "audit": audit}


def run(args: list[str]) -> None:
    """Parse the arguments after ``ltr negatives``, and do what they say."""
    jsonargparse.auto_cli(
        COMMANDS, args=args, prog="ltr negatives", exit_on_error=False, allow_abbrev=False
    )
