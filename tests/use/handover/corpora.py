"""An encoding of numbers drawn at random, and what a search of ours finds in it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ltr.data.strings import Strings
from ltr.search.encoding import IDS, Encoding, EncodingPlan
from ltr.search.index import DenseIndex
from ltr.search.numbers import to_stored
from ltr.search.shard_file import write_shard
from ltr.similarity import similarity_of
from ltr.use.handover.hand_over import hand_over

DIM = 24
ROWS = 256  # of a shard
COUNT = 2 * ROWS + 88
SIMILARITIES = ("dot", "cosine", "euclidean")

# The ids that searches find, of each query [Q, 10].
Search = Callable[[Path, np.ndarray], list[list[str]]]


def ids_of(count: int) -> list[str]:
    """Ids of several lengths, some with letters of two bytes, in the order of a corpus."""
    ids = [f"doc-{number}" if number % 3 else f"é{number:05d}" for number in range(count)]
    return sorted(ids, key=lambda id_: id_.encode())


def write_encoding(
    folder: Path,
    similarity: str,
    numbers: str = "float16",
    dim: int = DIM,
    count: int = COUNT,
    ids: list[str] | None = None,
) -> Encoding:
    """A finished encoding, as ``ltr encode`` leaves it."""
    generator = np.random.default_rng(0)
    folder.mkdir(parents=True)
    plan = EncodingPlan("weights", "32-true", "texts", count, ROWS, numbers)
    encoding = Encoding(folder, plan)
    for number in range(plan.n_shards):
        span = plan.span(number)
        # Of lengths between 1 and 3 times that of others, far from the origin: inner products,
        # cosines and distances order them differently.
        lengths = generator.uniform(1, 3, (span.stop - span.start, 1))
        embeddings = generator.standard_normal((span.stop - span.start, dim)) * lengths + 0.3
        stored = to_stored(embeddings.astype(np.float32), numbers)
        write_shard(encoding.file(number), stored, plan.key, number, "cpu")
    Strings.write(folder, IDS, (id_.encode() for id_ in ids or ids_of(count)))
    encoding.finish({"ranker": "runs/dual", "similarity": similarity})
    return encoding


def queries(dim: int = DIM) -> np.ndarray:
    """``[20, H]`` float32, of many lengths."""
    generator = np.random.default_rng(1)
    rows = generator.standard_normal((20, dim)) * generator.uniform(0.5, 4, (20, 1))
    return rows.astype(np.float32)


def ten_best(encoding: Encoding, similarity: str) -> list[list[str]]:
    """The ids that our own exact search finds."""
    index = DenseIndex.build(encoding.embeddings(), similarity_of(similarity))
    _, rows = index.search(queries(encoding.embeddings().shape[1]), 10)
    ids = ids_of(len(encoding.embeddings()))
    return [[ids[row] for row in ranked] for ranked in rows.tolist()]


def check_same_best(tmp_path: Path, format: str, similarity: str, numbers: str, search: Search):
    """The client finds what we find. Searches return ids of each query."""
    encoding = write_encoding(tmp_path / "encoded", similarity, numbers)
    line = hand_over(tmp_path / "encoded", format, tmp_path / "out")
    assert f"out: {COUNT} documents of {DIM} dimensions" in line
    assert ("at length 1" in line) == (similarity == "cosine")
    expected = ten_best(encoding, similarity)
    assert search(tmp_path / "out", queries()) == expected
    others = {name: ten_best(encoding, name) for name in SIMILARITIES if name != similarity}
    assert all(ranked != expected for ranked in others.values()), "the three would be told apart"


def each_similarity(*names: str):
    """Parametrize by a similarity and by the numbers of the shards."""
    rows = [(name, numbers) for name in names for numbers in ("float32", "float16", "int8")]
    return pytest.mark.parametrize(("similarity", "numbers"), rows)
