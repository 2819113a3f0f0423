"""What an audit finds, and what training makes of it."""

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from ltr.data.collection import open_collection
from ltr.data.formats import JoinedPairs
from ltr.data.query_lists import QueryLists
from ltr.datamodules import TripletDataModule
from ltr.errors import InputError
from ltr.in_batch import AllTexts, OtherQueries, OwnLists
from ltr.losses import BCELoss, RankNetLoss, SoftmaxLoss
from ltr.mining.audit import Suspects, audited
from ltr.mining.judge import Judge
from ltr.mining.negatives import MinedNegatives
from ltr.mining.overlay import Overlay, negatives_in, save_overlay
from ltr.models import PairWiseBertRanker, Ranker
from tests.conftest import wordpiece_tokenizer
from tests.rankers import data_for, dual_encoder, trainer


class ByNumber(Ranker):
    """Scores a document by its row: the test says what."""

    def __init__(self, scores: dict[int, float]) -> None:
        super().__init__()
        self.reads, self.scores, self.weight = JoinedPairs(wordpiece_tokenizer(), 24), scores, nn.Parameter(torch.zeros(1))

    def forward(self, batch):
        return torch.tensor([[self.scores[doc] for doc in row] for row in batch.doc_rows.tolist()])


@pytest.fixture(scope="module")
def collection(collection_folder):
    return open_collection(str(collection_folder))


def negatives_of(collection, ids: dict[int, list[int]]) -> MinedNegatives:
    """Of some queries, by row, at distances 0, 1, 2 …"""
    width, distances = max(map(len, ids.values())), np.arange(max(map(len, ids.values())), dtype=np.float32)
    rows = np.array([[*row, *[-1] * (width - len(row))] for row in ids.values()])
    manifest = {"key": "of the test"}
    return MinedNegatives.of_queries(
        np.array(list(ids)), len(collection.queries), rows, np.broadcast_to(distances, rows.shape), manifest
    )


def test_what_the_judge_scores_above_the_weakest_relevant_document(collection):
    """Query 0 has 10 (score 5) and 11 (score 2) as relevant: 12 (3) is above 2, 13 (1.5) only by a margin of 1; 14 is judged.

    Query 1 has 20 (score 1): 21 with 9 has the largest gap. Query 2 has no negatives.
    """
    judged = QueryLists.from_rows([0, 0, 0, 1, 2], [10, 11, 14, 20, 30], [2, 1, 0, 1, 1])
    negatives = negatives_of(collection, {0: [14, 12, 13], 1: [21, 22]})
    scores = {10: 5, 11: 2, 12: 3, 13: 1.5, 14: 9, 20: 1, 21: 9, 22: 1, 30: 0}
    judge = Judge("a table", ByNumber({row: scores.get(row, 0.0) for row in range(len(collection.corpus))}), collection)
    found, counts = audited(negatives, judged, judge)
    assert [values.tolist() for values in found] == [[1, 0], [21, 12], [0, 1], [9, 3], [20, 11], [1, 2]]
    assert counts == {"queries": 2, "negatives": 4, "suspects": 2, "suspect_queries": 2}
    more, _ = audited(negatives, judged, judge, margin=1.0)
    assert more.doc_rows.tolist() == [21, 12, 22, 13] and more.gaps.tolist() == [8, 1, 0, -0.5]
    none, counts = audited(negatives, judged, judge, margin=-100.0)
    assert counts["suspects"] == 0 and all(len(values) == 0 for values in none)


def test_scores_are_those_of_the_ranker(collection, backbone):
    """Whatever else is judged with them, by a real cross-encoder: each list alone gives the same."""
    torch.manual_seed(1)
    judge = Judge("x", PairWiseBertRanker(backbone, max_length=24).eval(), collection)
    judged, rng = collection.judgements("train"), np.random.default_rng(0)
    ids = rng.integers(len(collection.corpus), size=(len(judged.query_rows), 5))
    negatives = negatives_of(collection, dict(zip(judged.query_rows.tolist(), ids.tolist(), strict=True)))
    found, _ = audited(negatives, judged, judge)
    scores, lowest = judge.scores(judged, negatives.ids[judged.query_rows])
    known = np.array([np.isin(row, judged.of(q)[0]) for q, row in zip(judged.query_rows, ids, strict=True)])
    above = (scores > lowest[:, None]) & ~known
    assert len(found.scores) == above.sum() > 10
    place = np.searchsorted(judged.query_rows, found.query_rows)
    np.testing.assert_allclose(found.scores, scores[place, found.places], atol=1e-5)
    np.testing.assert_allclose(found.relevant_scores, lowest[place], atol=1e-5)
    assert (np.diff(found.gaps) <= 0).all()


def test_labels_of_the_policies():
    """Gaps of 0 and log 3: soft labels 1/2 and 3/4."""
    one = Suspects(*np.zeros((6, 2)))._replace(scores=np.array([1.0, 1 + math.log(3)]), relevant_scores=np.ones(2))
    np.testing.assert_allclose(one.labels("soft", 2.0), [0.5, 0.75])
    assert one.labels("relabel", 2.0).tolist() == [2.0, 2.0] and np.isnan(one.labels("drop", 2.0)).all()
    far = one._replace(scores=np.array([-2000.0, 2000.0])).labels("soft", 2.0)
    assert 0 < far[0] < 1e-5 and 1 - 1e-5 < far[1] < 1


@pytest.fixture
def mined(tmp_path, collection):
    """Each training query has its first two documents that are not judged, and one of another query; the first is suspected."""
    judged = collection.judgements("train")
    ids = {}
    for query in judged.query_rows.tolist():
        own = collection.queries.ids[query]
        ids[query] = [collection.corpus.row(f"{own}-d{d}") for d in (2, 3)] + [collection.corpus.row("dev-q0-d0")]
    negatives_of(collection, ids).save(tmp_path / "mined", collection)
    return tmp_path / "mined", np.array(list(ids)), np.array([row[0] for row in ids.values()])


def overlay(mined, collection, policy, label):
    folder, queries, docs = mined
    manifest = {"policy": policy, "content": MinedNegatives.open(folder, collection).lists().digest()}
    ones = np.ones(len(docs), np.float32)
    return save_overlay(folder, manifest, query_rows=queries, doc_rows=docs, scores=ones, labels=label * ones)


def batches(path, negatives, **options):
    data = TripletDataModule(str(path), str(negatives), batch_size=30, **options, reads=JoinedPairs(wordpiece_tokenizer(), 24))
    data.setup("fit")
    return data, list(data.train_dataloader())


def documents(batches, suspects):
    """For each query the label of its suspect, None where it is not drawn."""
    found = {}
    for batch in batches:
        for query, docs, labels in zip(batch.query_rows.tolist(), batch.doc_rows.tolist(), batch.labels.tolist(), strict=True):
            found[query] = labels[docs.index(suspects[query])] if suspects[query] in docs else None
    return found


def test_training_with_an_overlay(mined, collection, collection_folder):
    folder, queries, docs = mined
    suspects = dict(zip(queries.tolist(), docs.tolist(), strict=True))
    options = {"negatives_per_query": 3}
    assert set(documents(batches(collection_folder, folder, **options)[1], suspects).values()) == {0.0}
    data, dropped = batches(collection_folder, overlay(mined, collection, "drop", np.nan), **options)
    assert set(documents(dropped, suspects).values()) == {None} and dropped[0].labels.sum(dim=1).tolist() == [1.0] * 30
    assert dropped[0].mask.sum(dim=1).tolist() == [3] * 30, "the relevant document, and the other two"
    assert not data.has_soft_labels
    data, soft = batches(collection_folder, overlay(mined, collection, "soft", 0.75), **options)
    assert set(documents(soft, suspects).values()) == {0.75} and data.has_soft_labels
    assert soft[0].distances[0].tolist()[0] == 0 and sorted(soft[0].distances[0].tolist()) == [0, 0, 1, 2]
    data, relabelled = batches(collection_folder, overlay(mined, collection, "relabel", 2.0), **options, positives=2)
    assert set(documents(relabelled, suspects).values()) == {2.0} and not data.has_soft_labels
    judged, grades = data.collection.learnable("train").of(queries[0])
    assert dict(zip(judged.tolist(), grades.tolist(), strict=True))[suspects[queries[0]]] == 2.0


@pytest.mark.parametrize("policy, label", [("drop", np.nan), ("soft", 0.5)])
def test_no_other_row_brings_a_suspect_in_as_irrelevant(mined, collection, collection_folder, policy, label):
    """It counts as judged, so in-batch lists leave it out; BM25 and chance don't draw what is dropped."""
    folder, queries, docs = mined
    found = overlay(mined, collection, policy, label)
    data = TripletDataModule(
        str(collection_folder), {str(found): 1, "random": 720}, batch_size=30, reads=JoinedPairs(wordpiece_tokenizer(), 24)
    )
    data.setup("fit")
    (batch,) = data.train_dataloader()
    suspects = dict(zip(queries.tolist(), docs.tolist(), strict=True))
    labels = documents([batch], suspects)
    assert set(labels.values()) == ({None} if policy == "drop" else {0.5}), "720 documents are all there are"
    for row in range(len(data.train.plan.rows)):
        one = data.train.plan.rows.draw(0, row)
        assert suspects[one.query_row] in one.judged_rows


def test_overlays_are_numbered_and_bound_to_their_negatives(mined, collection, tmp_path):
    folder, _, _ = mined
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    first, second = (overlay(mined, collection, "drop", np.nan) for _ in range(2))
    assert [first.name, second.name] == ["mined.drop-1", "mined.drop-2"] and overlay(mined, collection, "soft", 0.5).name[
        -1
    ] == "1"
    assert before == {file.name: file.read_bytes() for file in folder.iterdir()}, "never in place"
    assert negatives_in(second) == folder and negatives_in(folder) == folder
    assert not list(tmp_path.glob(".*tmp*"))
    ids = np.load(folder / "ids.npy")
    np.save(folder / "ids.npy", np.roll(ids, 1, axis=1))
    with pytest.raises(InputError, match="have changed since; audit them again"):
        Overlay.open(first, collection)
    np.save(folder / "ids.npy", ids)
    np.save(first / "labels.npy", np.zeros(3))
    with pytest.raises(InputError, match="must be as long, got 30, 30 and 3 entries"):
        Overlay.open(first, collection)
    (second / "overlay.json").write_text(json.dumps({"base": "mined"}))
    with pytest.raises(InputError, match="overlay.json can't be read"):
        Overlay.open(second, collection)


def test_judgements_win_over_an_overlay_and_it_may_be_read_twice(mined, collection, collection_folder):
    """What is judged by now keeps its grade; a second setup adds nothing."""
    folder, queries, docs = mined
    data, _ = batches(collection_folder, overlay(mined, collection, "relabel", 2.0))
    digest = data.collection.learnable("train").digest()
    data.setup("fit")
    assert data.collection.learnable("train").digest() == digest == data.content["judgements"]
    both = QueryLists.from_rows([3, 1], [7, 5], [1, 1]).joined(QueryLists.from_rows([1, 1, 2], [5, 6, 5], [9, 8, 7]))
    assert [part.tolist() for part in both] == [[1, 2, 3], [0, 2, 3, 4], [5, 6, 5, 7], [1, 8, 7, 1]]


@pytest.mark.parametrize(
    "loss, in_batch, fits",
    [
        (RankNetLoss, OtherQueries, True),
        (BCELoss, OwnLists, True),
        (SoftmaxLoss, OwnLists, False),
        (RankNetLoss, AllTexts, False),
    ],
)
def test_soft_labels_need_a_loss_that_tells_them_from_relevant(
    mined, collection, collection_folder, backbone, tmp_path, loss, in_batch, fits
):
    module = dual_encoder(backbone, loss(), in_batch=in_batch())
    soft = overlay(mined, collection, "soft", 0.5)
    data = data_for(module, TripletDataModule, collection_folder, negatives=str(soft), batch_size=4)
    fit = trainer(tmp_path, max_steps=1, limit_val_batches=0)
    if fits:
        fit.fit(module, data)
        assert (module.last_step.lists.labels == 0.5).any() and torch.isfinite(module.last_step.loss)
    else:
        with pytest.raises(InputError, match="takes every label above 0 for relevant"):
            fit.fit(module, data)
