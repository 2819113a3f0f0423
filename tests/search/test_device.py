"""A search runs where the ranker is: not on a GPU that happens to be there."""

import numpy as np
import pytest
import torch

from ltr.data.collection import open_collection
from ltr.mining.filters import Recipe
from ltr.mining.miner import Miner
from ltr.models import DualEncoder
from ltr.search import index
from ltr.search.corpus_search import SearchedCorpus, search_corpus
from ltr.search.encoding_places import TemporaryEncodings
from ltr.search.tiles import Tiles
from ltr.use.retriever import Retriever
from tests.search.indexed import build, embeddings

GPU = torch.device("cuda:3")


@pytest.mark.parametrize("factory", ["Flat", "IVF4,Flat"])
def test_a_search_on_the_cpu_takes_no_gpu(factory, monkeypatch):
    """Torch says that there is one, and none can be had."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    docs = embeddings(200)
    _, rows = build(docs, "euclidean", factory).search(docs[:5], 1)
    assert rows.tolist() == [[0], [1], [2], [3], [4]]


def test_only_a_gpu_of_cuda_is_searched_on():
    """Of Apple's, torch lacks what the order of equal scores needs."""
    docs = embeddings(20)
    assert build(docs, "dot", device=torch.device("mps")).device == torch.device("cpu")
    assert build(docs, "dot", device=GPU).device == GPU


@pytest.fixture
def devices(monkeypatch) -> list[torch.device]:
    """Where exact searches were to run, which run on the CPU instead. Dual encoders say that they
    are on a GPU.
    """
    devices = []

    def recorded(docs, similarity, centre, device, *, stay=False):
        devices.append(device)
        return Tiles(docs, similarity, centre)

    monkeypatch.setattr(index, "tiles_of", recorded)
    monkeypatch.setattr(DualEncoder, "device", GPU)
    return devices


def test_an_evaluation_searches_where_the_ranker_is(devices, backbone, collection_folder, tmp_path):
    model = DualEncoder(backbone, max_length=24)
    collection = open_collection(str(collection_folder))
    queries = model.reads.queries.store(collection.queries)
    docs = model.reads.docs.store(collection.corpus)
    corpus = SearchedCorpus(queries, docs, model.reads, depth=10)
    search_corpus(model, corpus, np.arange(3), TemporaryEncodings(tmp_path))
    assert {*devices} == {GPU}


def test_mining_searches_where_the_ranker_is(devices, backbone, collection_folder, tmp_path):
    model = DualEncoder(backbone, max_length=24)
    collection = open_collection(str(collection_folder))
    miner = Miner(model, collection, collection.judgements("train"), Recipe(depth=20, n=5))
    miner.mine(TemporaryEncodings(tmp_path))
    assert {*devices} == {GPU}


def test_a_retriever_searches_where_its_ranker_is(devices, backbone, collection_folder):
    retriever = Retriever(DualEncoder(backbone, max_length=20))
    retriever.corpus(collection_folder).search("w3", k=5)
    assert devices == [GPU]
