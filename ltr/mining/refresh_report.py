"""What a refresh of negatives has done, in a few lines and numbers."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ltr.data.collection import Collection
from ltr.data.query_lists import QueryLists
from ltr.data.texts import in_one_line
from ltr.mining.filters import FILTERS
from ltr.mining.mined_negatives import MinedNegatives

EXAMPLE_COLUMNS = ("query", "relevant", "negative", "distance")
EXAMPLES = 20  # queries
WIDTH = 120  # letters of a text, at most


def summary_lines(manifest: Mapping[str, Any]) -> Iterator[str]:
    """A short report of how negatives were mined, from their manifest."""
    counts = manifest["counts"]
    mean_distance = manifest["mean_distance"]
    recipe = manifest["recipe"]

    moment = f" at step {manifest['step']}" if "step" in manifest else ""
    seconds = ", ".join(f"{name} {value:.1f} s" for name, value in manifest["seconds"].items())
    yield (
        f"hard negatives{moment}: {manifest['mined_queries']} queries, "
        f"the {recipe['depth']} best documents of each; {seconds}"
    )

    left_out = [f"{name} {counts[name]:,}" for name in ("relevant", *FILTERS) if name in counts]
    yield (
        f"  of {counts['found']:,} found, left out: {', '.join(left_out)}; "
        f"kept: {counts['chosen']:,}, at most {recipe['n']} a query"
    )

    if counts["short"]:
        yield (
            f"  {counts['short']} queries had too few for a list, and got random documents: {counts['random']} in all"
        )

    line = (
        f"  mean distance of embeddings to the query: relevant documents {mean_distance['relevant']:.3f}, "
        f"negatives {mean_distance['negatives']:.3f}"
    )
    if "overlap" in manifest:
        line += f"; {manifest['overlap']:.0%} were negatives before"
    if "staleness" in manifest:
        line += f"; training went on for {manifest['staleness']} steps meanwhile"
    if recipe["index"] != "Flat":
        line += f"; the index finds {manifest['recall']:.1%} of the exact search"
    yield line


def examples(
    negatives: MinedNegatives, collection: Collection, judged: QueryLists
) -> Iterator[tuple[str, str, str, float]]:
    """Rows of :data:`EXAMPLE_COLUMNS`, of some queries, always the same: the texts of a query, of a
    relevant document and of the hardest negative, and this negative's distance.
    """
    corpus = collection.corpus.texts
    query_rows = np.random.default_rng(0).permutation(judged.query_rows)[:EXAMPLES]
    for row in np.sort(query_rows).tolist():
        doc_rows, grades = judged.of(row)
        negative_rows, distances = negatives.lists.of(row)
        if len(negative_rows):
            most_relevant = int(doc_rows[grades.argmax()])
            query = _beginning(collection.queries.texts[row])
            relevant = _beginning(corpus[most_relevant])
            negative = _beginning(corpus[int(negative_rows[0])])
            yield query, relevant, negative, float(distances[0])


def _beginning(text: str) -> str:
    return in_one_line(text)[:WIDTH]


def logged_numbers(manifest: Mapping[str, Any], prefix: str) -> dict[str, float]:
    """The numbers of a manifest, for a logger, under names that begin with the prefix."""
    numbers = {}
    for name, value in manifest["seconds"].items():
        numbers[f"{prefix}seconds_{name}"] = value
    for name in FILTERS:
        if name in manifest["counts"]:
            numbers[f"{prefix}left_out_{name}"] = manifest["counts"][name]
    for name, value in manifest["mean_distance"].items():
        numbers[f"{prefix}distance_{name}"] = value
    for name in ("overlap", "staleness"):
        if name in manifest:
            numbers[f"{prefix}{name}"] = manifest[name]
    return numbers
