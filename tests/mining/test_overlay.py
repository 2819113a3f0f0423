"""What an audit decides is trained on."""

import json
import math
import shutil

import numpy as np
import pytest
import torch

from ltr.callbacks import LossChange, LossSchedule
from ltr.data.layouts import JoinedPairs
from ltr.data.query_lists import QueryLists
from ltr.datamodules import TripletDataModule
from ltr.errors import InputError
from ltr.in_batch import AllTexts, OtherQueries, OwnLists
from ltr.losses import BCELoss, RankNetLoss, SoftmaxLoss
from ltr.mining.mined_negatives import MinedNegatives
from ltr.mining.overlay import Overlay, negatives_in, save_overlay
from tests.mining.audited import negatives_of
from tests.world.backbones import wordpiece_tokenizer
from tests.world.data_modules import data_module
from tests.world.rankers import data_for, dual_encoder, trainer


@pytest.fixture
def mined(tmp_path, collection):
    """Each training query has its first two documents that are not judged, and one of another
    query; the first is suspected. The folder, and the suspect of each query.
    """
    ids = {}
    for query in collection.judgements("train").query_rows.tolist():
        own = collection.queries.ids[query]
        names = (f"{own}-d2", f"{own}-d3", "dev-q0-d0")
        ids[query] = [collection.corpus.row(name) for name in names]
    negatives_of(collection, ids).save(tmp_path / "mined", collection)
    return tmp_path / "mined", {query: docs[0] for query, docs in ids.items()}


@pytest.fixture
def overlay(mined, collection):
    """Save an overlay by which every suspect gets a label."""
    folder, suspects = mined

    def save(policy, label):
        content = MinedNegatives.open(folder, collection).lists.digest()
        ones = np.ones(len(suspects), np.float32)
        return save_overlay(
            folder,
            collection,
            {"policy": policy, "content": content},
            query_rows=np.array(list(suspects)),
            doc_rows=np.array(list(suspects.values())),
            scores=ones,
            labels=label * ones,
        )

    return save


def batches(path, negatives, **options):
    reads = JoinedPairs(wordpiece_tokenizer(), 24)
    options |= {"negatives": negatives, "batch_size": 30, "reads": reads}
    data = data_module(TripletDataModule, str(path), **options)
    data.setup("fit")
    return data, list(data.train_dataloader())


def labels_of(suspects, batches):
    """The labels that suspects have, None where one is not drawn."""
    found = set()
    for batch in batches:
        rows = (batch.query_rows.tolist(), batch.doc_rows.tolist(), batch.labels.tolist())
        for query, docs, labels in zip(*rows, strict=True):
            doc = suspects[query]
            found.add(labels[docs.index(doc)] if doc in docs else None)
    return found


def test_training_with_an_overlay(mined, overlay, collection_folder):
    folder, suspects = mined

    def trained_on(negatives, **options):
        options |= {"negatives_per_query": 3}
        data, found = batches(collection_folder, str(negatives), **options)
        return data, found, labels_of(suspects, found)

    _, _, labels = trained_on(folder)
    assert labels == {0.0}
    data, dropped, labels = trained_on(overlay("drop", np.nan))
    assert labels == {None} and not data.largest_soft_label
    assert dropped[0].labels.sum(dim=1).tolist() == [1.0] * 30
    assert dropped[0].mask.sum(dim=1).tolist() == [3] * 30, "the relevant one, and the other two"
    data, soft, labels = trained_on(overlay("soft", 0.75))
    assert labels == {0.75} and data.largest_soft_label == 0.75
    relevant_distance, *mined_distances = soft[0].distances[0].tolist()
    assert math.isnan(relevant_distance) and sorted(mined_distances) == [0, 1, 2]
    data, _, labels = trained_on(overlay("relabel", 2.0), positives=2)
    assert labels == {2.0} and not data.largest_soft_label
    query, suspect = next(iter(suspects.items()))
    judged, grades = data.collection.learnable("train").of(query)
    assert dict(zip(judged.tolist(), grades.tolist(), strict=True))[suspect] == 2.0


def test_a_relabelled_document_below_the_level_of_relevance_is_refused(overlay, collection_folder):
    """It would be a negative again. At the level it is drawn as relevant."""
    low = str(overlay("relabel", 0.5))
    told = "an audit gave documents the grade 0.5, and training counts those below 1 as 0; audit again with --grade 1"
    with pytest.raises(InputError, match=told):
        batches(collection_folder, low, relevant_from=1)
    data, _ = batches(collection_folder, str(overlay("relabel", 1.0)), relevant_from=1)
    assert set(data.collection.learnable("train").values.tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("policy, label, drawn", [("drop", np.nan, None), ("soft", 0.5, 0.5)])
def test_no_other_row_brings_a_suspect_in_as_irrelevant(
    mined, overlay, collection_folder, policy, label, drawn
):
    """It counts as judged for in-batch lists; BM25 and chance don't draw what is dropped."""
    _, suspects = mined
    every_document = {str(overlay(policy, label)): 1, "random": 720}
    data, found = batches(collection_folder, every_document)
    assert labels_of(suspects, found) == {drawn}
    for row in range(len(data.train.plan.rows)):
        one = data.train.plan.rows.draw(0, row)
        assert suspects[one.query_row] in one.known_rows


def test_overlays_are_numbered_and_bound_to_their_negatives(mined, overlay, collection, tmp_path):
    folder, _ = mined
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    first, second = (overlay("drop", np.nan) for _ in range(2))
    assert [first.name, second.name] == ["mined.drop-1", "mined.drop-2"]
    assert overlay("soft", 0.5).name == "mined.soft-1"
    assert before == {file.name: file.read_bytes() for file in folder.iterdir()}, "never in place"
    assert negatives_in(second) == folder and negatives_in(folder) == folder
    assert not list(tmp_path.glob(".*tmp*"))
    others = MinedNegatives.open(folder, collection)
    folder.rename(tmp_path / "before")
    lists = others.lists._replace(values=others.lists.values + 1)
    others._replace(lists=lists).save(folder, collection)
    with pytest.raises(InputError, match="have changed since; audit them again"):
        Overlay.open(first, collection)
    shutil.rmtree(folder)
    (tmp_path / "before").rename(folder)
    np.save(first / "labels.npy", np.zeros(3))
    with pytest.raises(InputError, match="have changed since; remove the folder, and audit"):
        Overlay.open(first, collection)
    forget_digest(first)
    with pytest.raises(InputError, match="must be as long, got 30, 30 and 3 entries"):
        Overlay.open(first, collection)
    manifest = json.loads((second / "manifest.json").read_text())
    (second / "manifest.json").write_text(json.dumps(manifest | {"corpus": "another"}))
    with pytest.raises(InputError, match="made of another collection"):
        Overlay.open(second, collection)
    for base in (5, None, []):
        (second / "manifest.json").write_text(json.dumps(manifest | {"base": base}))
        for reads in (negatives_in, lambda folder: Overlay.open(folder, collection)):
            with pytest.raises(InputError, match="damaged, base must be a text, got .*; audit"):
                reads(second)
    (second / "manifest.json").write_text("{")
    with pytest.raises(InputError, match="drop-2/manifest.json: the file is damaged .*audit"):
        Overlay.open(second, collection)


def forget_digest(folder):
    """As other programs write a folder."""
    file = folder / "manifest.json"
    manifest = json.loads(file.read_text())
    del manifest["digest"]
    file.write_text(json.dumps(manifest))


def test_judgements_win_over_an_overlay_and_it_may_be_read_twice(overlay, collection_folder):
    """What is judged by now keeps its grade; a second setup adds nothing."""
    data, _ = batches(collection_folder, str(overlay("relabel", 2.0)))
    digest = data.collection.learnable("train").digest()
    data.setup("fit")
    assert data.collection.learnable("train").digest() == digest == data.digests["judgements"]
    first = QueryLists.from_rows([3, 1], [7, 5], [1, 1])
    both = first.joined(QueryLists.from_rows([1, 1, 2], [5, 6, 5], [9, 8, 7]))
    assert [part.tolist() for part in both] == [[1, 2, 3], [0, 2, 3, 4], [5, 6, 5, 7], [1, 8, 7, 1]]


@pytest.fixture
def fit_soft(overlay, collection_folder, backbone, tmp_path):
    """Train one step with labels of 0.5."""

    def fit(loss, in_batch, **options):
        module = dual_encoder(backbone, loss, in_batch=in_batch)
        options = {"max_steps": 1, "limit_val_batches": 0} | options
        negatives = str(overlay("soft", 0.5))
        data = data_for(
            module, TripletDataModule, collection_folder, negatives=negatives, batch_size=4
        )
        trainer(tmp_path, **options).fit(module, data)
        return module.last_step

    return fit


@pytest.mark.parametrize(
    "loss, in_batch, fits",
    [
        (RankNetLoss, OtherQueries, True),
        (BCELoss, OwnLists, True),
        (SoftmaxLoss, OwnLists, False),
        (RankNetLoss, AllTexts, False),
    ],
)
def test_soft_labels_need_a_loss_that_tells_them_from_relevant(fit_soft, loss, in_batch, fits):
    if fits:
        step = fit_soft(loss(), in_batch())
        assert (step.lists.labels == 0.5).any() and torch.isfinite(step.loss)
    else:
        with pytest.raises(InputError, match="takes every label above 0 for relevant"):
            fit_soft(loss(), in_batch())


@pytest.mark.parametrize("losses", [(SoftmaxLoss, RankNetLoss), (RankNetLoss, SoftmaxLoss)])
def test_soft_labels_need_such_a_loss_in_every_stage(fit_soft, losses):
    own, later = losses
    schedule = LossSchedule([LossChange(epoch=1, loss=later())])
    with pytest.raises(InputError, match="SoftmaxLoss takes every label above 0 for relevant"):
        fit_soft(own(), OwnLists(), callbacks=[schedule])
