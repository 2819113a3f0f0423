"""Encodings of embeddings that nobody has encoded."""

from pathlib import Path

import numpy as np

from ltr.search.encoding import Encoding, EncodingPlan
from ltr.search.numbers import to_stored
from ltr.search.shard_file import write_shard


def stored(folder: Path, embeddings: np.ndarray, numbers: str = "float16", rows=500) -> Encoding:
    """A finished encoding with these embeddings, in shards of some rows."""
    folder.mkdir()
    plan = EncodingPlan("a model", "32-true", "texts", len(embeddings), rows, numbers)
    encoding = Encoding(folder, plan)
    for number in range(plan.n_shards):
        shard = to_stored(embeddings[plan.span(number)].astype(np.float32), numbers)
        write_shard(encoding.file(number), shard, plan.key, number, "cpu")
    encoding.finish()
    return encoding


def in_clusters(count: int, dim: int, seed: int = 0) -> np.ndarray:
    """Embeddings around fewer centres, as those of texts are."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(count // 20 + 1, dim))
    noise = rng.normal(size=(count, dim))
    return (centres[rng.integers(len(centres), size=count)] + 0.7 * noise).astype(np.float32)


def near(docs: np.ndarray, count: int, seed: int = 1) -> np.ndarray:
    """Queries: some of the documents, with noise."""
    rng = np.random.default_rng(seed)
    chosen = docs[rng.integers(len(docs), size=count)]
    return (chosen + 0.4 * rng.normal(size=chosen.shape)).astype(np.float32)
