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
from tests.mining.audited import (
    negatives_of,
)
from tests.world.backbones import wordpiece_tokenizer
from tests.world.data_modules import data_module
from tests.world.rankers import data_for, dual_encoder, trainer


@pytest.fixture
def mined(tmp_path, collection):
    """Each training query has its first two documents that are not judged, and one of another
    query; the first is suspected.
    """
    judged = collection.judgements("train")
    ids = {}
    for query in judged.query_rows.tolist():
        own = collection.queries.ids[query]
        ids[query] = [collection.corpus.row(f"{own}-d{d}") for d in (2, 3)] + [
            collection.corpus.row("dev-q0-d0")
        ]
    negatives_of(collection, ids).save(tmp_path / "mined", collection)
    return tmp_path / "mined", np.array(list(ids)), np.array([row[0] for row in ids.values()])


def overlay(mined, collection, policy, label):
    folder, queries, docs = mined
    manifest = {
        "policy": policy,
        "content": MinedNegatives.open(folder, collection).lists.digest(),
    }
    ones = np.ones(len(docs), np.float32)
    return save_overlay(
        folder,
        collection,
        manifest,
        query_rows=queries,
        doc_rows=docs,
        scores=ones,
        labels=label * ones,
    )


def batches(path, negatives, **options):
    data = data_module(
        TripletDataModule,
        str(path),
        str(negatives),
        batch_size=30,
        **options,
        reads=JoinedPairs(wordpiece_tokenizer(), 24),
    )
    data.setup("fit")
    return data, list(data.train_dataloader())


def documents(batches, suspects):
    """For each query the label of its suspect, None where it is not drawn."""
    found = {}
    for batch in batches:
        for query, docs, labels in zip(
            batch.query_rows.tolist(), batch.doc_rows.tolist(), batch.labels.tolist(), strict=True
        ):
            found[query] = labels[docs.index(suspects[query])] if suspects[query] in docs else None
    return found


def test_training_with_an_overlay(mined, collection, collection_folder):
    folder, queries, docs = mined
    suspects = dict(zip(queries.tolist(), docs.tolist(), strict=True))
    options = {"negatives_per_query": 3}
    assert set(documents(batches(collection_folder, folder, **options)[1], suspects).values()) == {
        0.0
    }
    data, dropped = batches(
        collection_folder, overlay(mined, collection, "drop", np.nan), **options
    )
    assert (
        set(documents(dropped, suspects).values()) == {None}
        and dropped[0].labels.sum(dim=1).tolist() == [1.0] * 30
    )
    assert dropped[0].mask.sum(dim=1).tolist() == [3] * 30, (
        "the relevant document, and the other two"
    )
    assert not data.has_soft_labels
    data, soft = batches(collection_folder, overlay(mined, collection, "soft", 0.75), **options)
    assert set(documents(soft, suspects).values()) == {0.75} and data.has_soft_labels
    relevant_distance, *mined_distances = soft[0].distances[0].tolist()
    assert math.isnan(relevant_distance) and sorted(mined_distances) == [0, 1, 2]
    data, relabelled = batches(
        collection_folder, overlay(mined, collection, "relabel", 2.0), **options, positives=2
    )
    assert set(documents(relabelled, suspects).values()) == {2.0} and not data.has_soft_labels
    judged, grades = data.collection.learnable("train").of(queries[0])
    assert dict(zip(judged.tolist(), grades.tolist(), strict=True))[suspects[queries[0]]] == 2.0


@pytest.mark.parametrize("policy, label", [("drop", np.nan), ("soft", 0.5)])
def test_no_other_row_brings_a_suspect_in_as_irrelevant(
    mined, collection, collection_folder, policy, label
):
    """It counts as judged, so in-batch lists leave it out; BM25 and chance don't draw what is
    dropped.
    """
    folder, queries, docs = mined
    found = overlay(mined, collection, policy, label)
    data = data_module(
        TripletDataModule,
        str(collection_folder),
        {str(found): 1, "random": 720},
        batch_size=30,
        reads=JoinedPairs(wordpiece_tokenizer(), 24),
    )
    data.setup("fit")
    (batch,) = data.train_dataloader()
    suspects = dict(zip(queries.tolist(), docs.tolist(), strict=True))
    labels = documents([batch], suspects)
    assert set(labels.values()) == ({None} if policy == "drop" else {0.5}), (
        "720 documents are all there are"
    )
    for row in range(len(data.train.plan.rows)):
        one = data.train.plan.rows.draw(0, row)
        assert suspects[one.query_row] in one.known_rows


def test_overlays_are_numbered_and_bound_to_their_negatives(mined, collection, tmp_path):
    folder, _, _ = mined
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    first, second = (overlay(mined, collection, "drop", np.nan) for _ in range(2))
    assert [first.name, second.name] == ["mined.drop-1", "mined.drop-2"] and overlay(
        mined, collection, "soft", 0.5
    ).name[-1] == "1"
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


def test_judgements_win_over_an_overlay_and_it_may_be_read_twice(
    mined, collection, collection_folder
):
    """What is judged by now keeps its grade; a second setup adds nothing."""
    folder, queries, docs = mined
    data, _ = batches(collection_folder, overlay(mined, collection, "relabel", 2.0))
    digest = data.collection.learnable("train").digest()
    data.setup("fit")
    assert data.collection.learnable("train").digest() == digest == data.digests["judgements"]
    both = QueryLists.from_rows([3, 1], [7, 5], [1, 1]).joined(
        QueryLists.from_rows([1, 1, 2], [5, 6, 5], [9, 8, 7])
    )
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
        assert (module.last_step.lists.labels == 0.5).any() and torch.isfinite(
            module.last_step.loss
        )
    else:
        with pytest.raises(InputError, match="takes every label above 0 for relevant"):
            fit.fit(module, data)


@pytest.mark.parametrize("losses", [(SoftmaxLoss, RankNetLoss), (RankNetLoss, SoftmaxLoss)])
def test_soft_labels_need_such_a_loss_in_every_stage(
    mined, collection, collection_folder, backbone, tmp_path, losses
):
    own, later = losses
    module = dual_encoder(backbone, own(), in_batch=OwnLists())
    soft = overlay(mined, collection, "soft", 0.5)
    data = data_for(module, TripletDataModule, collection_folder, negatives=str(soft), batch_size=4)
    schedule = LossSchedule([LossChange(epoch=1, loss=later())])
    with pytest.raises(InputError, match="SoftmaxLoss takes every label above 0 for relevant"):
        trainer(tmp_path, max_steps=1, callbacks=[schedule]).fit(module, data)
