"""What no index is built of."""

import numpy as np
import pytest

from ltr.errors import InputError
from ltr.search import embeddings as maps
from tests.search.indexed import build, embeddings

BAD = [
    (
        {"similarity": "l2"},
        "similarity must be one of dot, cosine, euclidean, squared_euclidean, got 'l2'",
    ),
    (
        {"factory": "Falt"},
        r"one that faiss can build of 40 embeddings .* got 'Falt': could not parse index string Falt$",
    ),
    ({"factory": "PQ5x8"}, "got 'PQ5x8': .*should be a multiple of the number of subquantizers"),
    (
        {"factory": "PQ4x8"},
        r"got 'PQ4x8': .*Number of training points \(40\) should be at least as large as number of clu.*256",
    ),
    (
        {"factory": "IVF41,Flat"},
        "the 41 clusters of 'IVF41,Flat' can't be more than the 40 documents; ask for fewer clusters",
    ),
    ({"probes": 3}, "probes must be at least 1, and with an IVF or HNSW index, got 3 with 'Flat'"),
    ({"factory": "HNSW8", "probes": 0}, "probes must be at least 1"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=[str(options) for options, _ in BAD])
def test_bad_options_are_one_line(options, message):
    with pytest.raises(InputError, match=message) as caught:
        build(embeddings(40), **({"similarity": "dot"} | options))
    assert "\n" not in str(caught.value) and ".cpp" not in str(caught.value)


def test_bad_embeddings_and_queries_are_refused(monkeypatch):
    monkeypatch.setattr(maps, "DOCS_AT_ONCE", 4)
    docs = embeddings(10)
    docs[6, 3] = np.inf
    with pytest.raises(InputError, match="embeddings must be finite, got NaN or infinity in row 6"):
        build(docs, "dot")
    with pytest.raises(InputError, match=r"at least one document, got \(0, 16\)"):
        build(docs[:0], "dot")
    index = build(docs[:6], "dot")
    with pytest.raises(InputError, match="queries must be finite, got NaN or infinity in row 1"):
        index.search(docs[5:7], 1)
    with pytest.raises(
        InputError, match=r"queries must be \[Q, 16\] as the documents, got \(6, 8\)"
    ):
        index.search(docs[:6, :8], 1)
    with pytest.raises(InputError, match="k must be at least 1, got 0"):
        index.search(docs[:6], 0)
