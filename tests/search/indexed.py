"""Embeddings to index, and brute force."""

import numpy as np
import pytest

from ltr.search.index import DenseIndex
from ltr.similarity import similarity_of

SIMILARITIES = ("dot", "cosine", "euclidean", "squared_euclidean")


EVERY = pytest.mark.parametrize("similarity", SIMILARITIES)


def build(docs, similarity, *options, **named):
    return DenseIndex.build(docs, similarity_of(similarity), *options, **named)


def embeddings(n, dim=16, seed=0, shift=0.0):
    return (np.random.default_rng(seed).standard_normal((n, dim)) + shift).astype(np.float32)
