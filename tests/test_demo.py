"""The parts of ``make demo`` that are its own, with tiny weights."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import ltr
from ltr.data.collection import open_collection

DEMO = Path(__file__).parents[1] / "examples/medquad/demo.py"


@pytest.fixture
def demo(backbone, monkeypatch):
    spec = importlib.util.spec_from_file_location("demo", DEMO)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "BACKBONE", backbone)
    monkeypatch.setattr(module, "LENGTH", 64)
    return module


def test_the_bi_encoder_ranks_the_pools_by_cosine(demo, backbone, collection_folder):
    collection = open_collection(str(collection_folder))
    pools = collection.pools("test", option="candidates")
    found = demo.bi_encoder(collection, pools)
    ranker = ltr.load(backbone, precision="32-true")
    queries = ranker.encode(list(collection.queries.texts), "query")
    docs = ranker.encode(list(collection.corpus.texts), "document")
    rows = pools.query_of_doc
    expected = (queries[rows] * docs[pools.doc_rows]).sum(axis=1)
    expected /= np.linalg.norm(queries[rows], axis=1) * np.linalg.norm(docs[pools.doc_rows], axis=1)
    assert found.values == pytest.approx(expected, abs=1e-5) and np.ptp(expected) > 1e-3
    values = demo.measure(collection, found)
    assert len(values) == len(demo.MEASURES) and all(0 <= one <= 1 for one in values[:3])
