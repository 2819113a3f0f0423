"""A level of relevance for training: grades below it count as 0 there; what is measured keeps all."""

import logging
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from ltr.__main__ import main
from ltr.batch import RankingBatch
from ltr.data.collection import open_collection
from ltr.data.query_lists import zero_below
from ltr.datamodules import (
    FeatureDataModule,
    GroupDataModule,
    ListDataModule,
    TripletDataModule,
)
from ltr.errors import InputError
from ltr.mining.same_texts import known_documents
from ltr.run.same_options import Asking, deciding_options
from tests.datamodules.read import reads_of
from tests.world.collections import GRADES_OF_T2RANKING as GRADES
from tests.world.collections import QUERIES_OF_T2RANKING as N_QUERIES
from tests.world.collections import write_t2ranking
from tests.world.configurations import write_config
from tests.world.data_modules import batches, data_module
from tests.world.features import write_letor

TEXT_MODULES = {
    "triplets": (TripletDataModule, {"negatives_per_query": 3, "positives": 2, "batch_size": 2}),
    "groups": (GroupDataModule, {"groups": 3, "docs_per_group": 2}),
    "lists": (ListDataModule, {"batch_size": 2}),
}


def opened(folder: Path, kind: str, **options):
    made, usual = TEXT_MODULES[kind]
    data = data_module(made, str(folder), reads=reads_of("apart"), **usual, **options)
    data.setup("fit")
    return data


def batches_of(data, epochs: int = 3) -> list[RankingBatch]:
    return [batch for epoch in range(epochs) for batch in batches(data, epoch)]


def grades_of(data, batches) -> dict[float, set[int]]:
    """By label, the grades of the files that documents with it have; −1 for one without."""
    found: dict[float, set[int]] = {}
    doc_ids = data.collection.corpus.ids
    for batch in batches:
        rows = batch.doc_rows[batch.mask].tolist()
        for row, label in zip(rows, batch.labels[batch.mask].tolist(), strict=True):
            query, place = doc_ids[row].split("-")
            is_judged = int(place) < len(GRADES)
            grade = GRADES[int(place)] if is_judged else -1
            if is_judged and query == f"train{N_QUERIES - 1}":
                grade = min(grade, 1)
            found.setdefault(label, set()).add(grade)
    return found


def test_what_is_drawn_as_relevant_and_as_negative_from_a_level_on(tmp_path, caplog):
    """Without a level a document of grade 1 is relevant; from 2 on it is drawn as a negative."""
    folder = write_t2ranking(tmp_path / "t2")
    data = opened(folder, "triplets")
    assert grades_of(data, batches_of(data)) == {1.0: {1}, 2.0: {2}, 3.0: {3}, 0.0: {0, -1}}
    caplog.set_level(logging.WARNING)
    data = opened(folder, "triplets", relevant_from=2)
    assert grades_of(data, batches_of(data)) == {2.0: {2}, 3.0: {3}, 0.0: {0, 1, -1}}
    told = "1 of 6 queries have no document with a grade of 2 or above and are left out, first 'train5'"
    assert told in caplog.text
    data = opened(folder, "groups", relevant_from=3)
    assert grades_of(data, batches_of(data)) == {3.0: {3}}
    data = opened(folder, "lists", relevant_from=2)
    assert grades_of(data, batches_of(data)) == {2.0: {2}, 3.0: {3}, 0.0: {0, 1, -1}}


@pytest.mark.parametrize("kind", TEXT_MODULES)
def test_it_equals_the_data_whose_lower_grades_are_0(tmp_path, kind):
    """All fields of all batches, what in-batch lists know of judgements, and the digests that a
    resume compares. What is measured is that of all grades.
    """
    graded = opened(write_t2ranking(tmp_path / "t2"), kind, relevant_from=2)
    by_hand = opened(write_t2ranking(tmp_path / "by_hand", level=2), kind)
    whole = opened(tmp_path / "t2", kind)
    assert graded.digests == by_hand.digests != whole.digests
    ours = batches_of(graded, epochs=2)
    theirs = batches_of(by_hand, epochs=2)
    for batch, other in zip(ours, theirs, strict=True):
        for name in ("labels", "mask", "query_rows", "doc_rows", "judged_rows", "judged_grades"):
            torch.testing.assert_close(getattr(batch, name), getattr(other, name), equal_nan=True)
    assert {0.0, 2.0, 3.0} == set(torch.cat([x.judged_grades.flatten() for x in ours]).tolist())
    for batch in graded.val_dataloader():
        assert batch.ideal.tolist() == [[3.0, 3.0, 2.0, 1.0, 1.0]] * len(batch.ideal)
        assert set(batch.labels.flatten().tolist()) == {0.0, 1.0, 2.0, 3.0}


def test_it_holds_for_all_sources(tmp_path):
    """Two sources alternate; each has one training query without a document of grade 2."""
    folders = [str(write_t2ranking(tmp_path / name)) for name in ("first", "second")]
    made, usual = TEXT_MODULES["triplets"]
    data = data_module(made, folders, reads=reads_of("apart"), **usual, relevant_from=2)
    data.setup("fit")
    labels = []
    sources = []
    for batch in batches_of(data, epochs=1):
        labels += batch.labels[batch.mask].tolist()
        sources += batch.sources.tolist()
    assert set(labels) == {0.0, 2.0, 3.0}
    assert sorted(sources) == [0] * (N_QUERIES - 1) + [1] * (N_QUERIES - 1)


def test_a_batch_of_two_workers_knows_the_level(tmp_path):
    folder = write_t2ranking(tmp_path / "t2")
    alone = batches_of(opened(folder, "lists", relevant_from=2), epochs=1)
    by_workers = batches_of(opened(folder, "lists", relevant_from=2, num_workers=2), epochs=1)
    assert [x.labels.tolist() for x in alone] == [x.labels.tolist() for x in by_workers]


def test_mining_and_audits_compare_with_what_is_relevant_from_the_level_on(tmp_path):
    """They ask the collection what there is to learn, and what must not be a negative."""
    ours = open_collection(write_t2ranking(tmp_path / "t2"))._replace(relevant_from=2)
    by_hand = open_collection(write_t2ranking(tmp_path / "by_hand", level=2))
    for split in ("train", "dev"):
        judged = ours.learnable(split)
        if split == "train":
            assert judged.digest() == by_hand.learnable(split).digest()
            theirs = known_documents(by_hand, by_hand.learnable(split))
            assert known_documents(ours, judged).digest() == theirs.digest()
        assert set(judged.values.tolist()) == {0.0, 2.0, 3.0}
        assert set(ours.judgements(split).values.tolist()) == {0.0, 1.0, 2.0, 3.0}


def test_features_from_a_level_on(tmp_path):
    """Grades 0 to 2: training lists have 0 and 2, measured ones all. A split that is sent to a
    worker keeps its level.
    """
    folder = write_letor(tmp_path / "letor")
    options = {"batch_size": 6, "reads": reads_of("features")}
    made = {}
    for level in (None, 2):
        data = data_module(FeatureDataModule, str(folder), relevant_from=level, **options)
        data.prepare_data()
        data.setup("fit")
        made[level] = data
    for with_level, without in zip(batches_of(made[2]), batches_of(made[None]), strict=True):
        assert torch.equal(with_level.doc_rows, without.doc_rows)
        expected = torch.where(without.labels >= 2, without.labels, 0.0)
        assert torch.equal(with_level.labels, expected)
    measured = [batch.labels[batch.mask] for batch in made[2].val_dataloader()]
    assert set(torch.cat(measured).tolist()) == {0.0, 1.0, 2.0}
    split = made[2].train.plan.rows.whole_lists
    sent = pickle.loads(pickle.dumps(split))
    assert sent.relevant_from == 2
    assert np.array_equal(sent.whole(0).labels, split.whole(0).labels)


def test_labels_with_fractions_have_levels_too():
    """Each float32 is at its own level."""
    grades = np.array([0.1, 0.01, 1.0, 0.0], np.float32)
    for level in (0.1, 0.01):
        expected = np.where(grades >= np.float32(level), grades, 0)
        assert np.array_equal(zero_below(grades, level), expected)
    assert zero_below(grades, 0.1).tolist() == [np.float32(0.1), 0.0, 1.0, 0.0]


@pytest.mark.parametrize("level", [0, -1, math.nan, math.inf])
@pytest.mark.parametrize("kind", [*TEXT_MODULES.values(), (FeatureDataModule, {})])
def test_a_level_that_is_no_grade_is_refused(tmp_path, kind, level):
    made, options = kind
    told = r"relevant_from must be finite and above 0, got .* \(option relevant_from\)"
    with pytest.raises(InputError, match=told):
        data_module(made, str(tmp_path), **options, relevant_from=level)


@pytest.mark.parametrize("kind", TEXT_MODULES)
def test_data_without_a_document_at_the_level_is_one_line(tmp_path, kind):
    told = "none of 6 queries has a document with a grade of 4 or above; there is nothing to learn from"
    with pytest.raises(InputError, match=told):
        opened(write_t2ranking(tmp_path / "t2"), kind, relevant_from=4)


def test_features_without_a_document_at_the_level_are_one_line(tmp_path):
    options = {"reads": reads_of("features"), "relevant_from": 3}
    data = data_module(FeatureDataModule, str(write_letor(tmp_path / "letor")), **options)
    told = "split 'train', where grades below 3 count as 0: no query has two documents of different grades"
    with pytest.raises(InputError, match=told):
        data.setup("fit")


def test_a_command_refuses_it_before_anything_is_trained(tmp_path, backbone, capsys):
    config = write_config(tmp_path, backbone, write_t2ranking(tmp_path / "t2"))
    assert main(["fit", "--config", str(config), "--data.relevant_from", "4"]) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert "none of 6 queries has a document with a grade of 4 or above" in last
    assert last.endswith("(option data.relevant_from)")
    assert not list(tmp_path.rglob("*.ckpt"))


@pytest.mark.parametrize("asking", ["resume", "seeds", "set", "cell", "processes"])
def test_it_is_part_of_what_is_learnt(asking: Asking):
    """So a resume, the seeds of an experiment and a cell of a grid must agree in it."""
    config = {"data": {"class_path": "ListDataModule", "init_args": {"relevant_from": 2}}}
    assert deciding_options(config, asking)["data.relevant_from"] == 2
