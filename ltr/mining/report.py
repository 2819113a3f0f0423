"""What a refresh of negatives has done, in a few lines and numbers."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ltr.data.collection import Collection
from ltr.data.query_lists import QueryLists
from ltr.mining.negatives import MinedNegatives


def lines(manifest: Mapping[str, Any]) -> Iterator[str]:
    """A short report of how negatives were mined, from their manifest."""
    counts, seconds, distance = manifest["counts"], manifest["seconds"], manifest["mean_distance"]
    took = ", ".join(f"{name} {value:.1f} s" for name, value in seconds.items())
    at = f" at step {manifest['step']}" if "step" in manifest else ""
    depth = manifest["recipe"]["depth"]
    yield f"hard negatives{at}: {manifest['mined_queries']} queries, {depth} documents searched for each; {took}"
    fell = [f"{name} {counts[name]:,}" for name in ("relevant", *FILTERS) if name in counts]
    yield f"  of {counts['found']:,} found, left out: {', '.join(fell)}; {counts['chosen']:,} are kept"
    if counts["short"]:
        yield f"  {counts['short']} queries have too few, and got {counts['random']} random documents"
    text = f"  mean distance to the query: relevant documents {distance['relevant']:.3f}, negatives {distance['negatives']:.3f}"
    if "overlap" in manifest:
        text += f"; {manifest['overlap']:.0%} were negatives before"
    if "staleness" in manifest:
        text += f"; training went on for {manifest['staleness']} steps meanwhile"
    if manifest["recipe"]["index"] != "Flat":
        text += f"; the index finds {manifest['recall']:.1%} of the exact search"
    yield text


SAMPLE = ("query", "relevant", "negative", "distance")
SAMPLED = 20  # queries


def sample(negatives: MinedNegatives, collection: Collection, judged: QueryLists) -> Iterator[tuple[str, str, str, float]]:
    """Some queries, always the same: their texts, those of a relevant document and of the hardest negative, and its distance."""
    texts = collection.corpus.texts
    for row in np.sort(np.random.default_rng(0).permutation(judged.query_rows)[:SAMPLED]).tolist():
        doc_rows, grades = judged.of(row)
        negative = int(negatives.ids[row, 0])
        if negative >= 0:
            shown = (collection.queries.texts[row], texts[int(doc_rows[grades.argmax()])], texts[negative])
            query, relevant, hard = (" ".join(text.split())[:120] for text in shown)
            yield query, relevant, hard, float(negatives.distances[row, 0])


FILTERS = ("skip_top", "max_score", "absolute", "relative", "judge")


def numbers(manifest: Mapping[str, Any]) -> dict[str, float]:
    """The same for a logger."""
    found = {f"mining/seconds_{name}": value for name, value in manifest["seconds"].items()}
    found |= {f"mining/left_out_{name}": manifest["counts"][name] for name in FILTERS if name in manifest["counts"]}
    found |= {f"mining/distance_{name}": value for name, value in manifest["mean_distance"].items()}
    return found | {f"mining/{name}": manifest[name] for name in ("overlap", "staleness") if name in manifest}
