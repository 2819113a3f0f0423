"""`ltr test RUN --split …`: splits of any name, their places, and values by hand."""

import io
import shutil
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ltr.__main__ import main
from ltr.compare.documents import Ranking, collection_of
from ltr.compare.tested_run import read_run
from ltr.errors import InputError
from tests.world.collections import write_collection
from tests.world.commands import refusal, run_ltr
from tests.world.features import write_letor
from tests.world.runs import report, results, trained, trained_on_texts

HEADER = "query-id\tcorpus-id\tscore\n"


def run_here(args: list[str]) -> None:
    """Measures a split in this process."""
    if main(args) != 0:
        raise InputError("it has failed, see above")


@pytest.fixture(scope="module")
def world(tmp_path_factory, backbone) -> Path:
    """A run ``run`` of a cross-encoder, and ``same.ckpt``, weights of which all scores are 0. Test
    has two queries with pools of three documents; of q0 the first is relevant, of q1 the last one.
    In test.clean there is q0 alone.
    """
    root = tmp_path_factory.mktemp("splits")
    own = write_collection(root / "own", n_queries=6)
    lines = ["test-q0\ttest-q0-d0\t1\n", "test-q1\ttest-q1-d2\t1\n"]
    (own / "qrels/test.tsv").write_text(HEADER + "".join(lines))
    (own / "qrels/test.clean.tsv").write_text(HEADER + lines[0])
    (own / "qrels/test.clean.removed.jsonl").write_text("{}\n")
    pools = [
        f"test-q{q} Q0 test-q{q}-d{n} {n + 1} {3 - n} pool\n" for q in (0, 1) for n in range(3)
    ]
    (own / "candidates/test.trec").write_text("".join(pools))
    options = ("--model.metrics", "[RR, AP]", "--best.monitor", "val/RR")
    trained_on_texts(root, "cross", own, backbone, *options)
    checkpoint = torch.load(root / "run/checkpoints/best.ckpt", weights_only=True)
    for weights in checkpoint["state_dict"].values():
        weights.zero_()
    torch.save(checkpoint, root / "same.ckpt")
    return root


@pytest.fixture
def here(world, tmp_path, monkeypatch) -> Path:
    """Copies to be changed, as the working directory. Splits are measured in this process."""
    for name in ("own", "run"):
        shutil.copytree(world / name, tmp_path / name)
    shutil.copyfile(world / "same.ckpt", tmp_path / "same.ckpt")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ltr.cli.measuring.run_in_process", run_here)
    return tmp_path


def measured(words: str = "") -> int:
    return run_ltr(f"test run --data.path own {words}")


def told(capsys, words: str) -> str:
    """The line that refuses these options."""
    return refusal(capsys, f"test run --data.path own {words}")


def test_values_by_hand_of_a_split_with_one_of_two_queries(here, capsys):
    """All scores are 0, and of equal scores the later document comes first: q0 has its relevant
    document at rank 3, q1 at rank 1. RR is 1/3 and 1: on test their mean 2/3, on test.clean 1/3.
    """
    assert measured("--ckpt_path same.ckpt --split test test.clean") == 0
    whole, clean = report("run"), report("run/splits/test.clean")
    assert (whole["queries"], clean["queries"]) == (2, 1)
    assert whole["RR"] == pytest.approx(2 / 3) and clean["RR"] == pytest.approx(1 / 3)
    assert "split" not in whole and clean["split"] == "test.clean"
    assert Path("run/splits/test.clean/per_query.tsv").read_text().splitlines() == [
        "query\tRR\tAP",
        "test-q0\t0.333333\t0.333333",
    ]
    ranked = Path("run/splits/test.clean/test.run").read_text().split()
    assert ranked[2::6] == ["test-q0-d2", "test-q0-d1", "test-q0-d0"], "the pool of test"
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["test", "0.6667", "0.6667", "2"] in lines
    assert ["test.clean", "0.3333", "0.3333", "1"] in lines


def test_the_results_on_test_stay_as_they_are(here):
    before = results("run")
    assert measured("--split test.clean") == 0
    assert results("run") == before
    # test-q0 is ranked as in test, by the same weights.
    of_query = Path("run/test.run").read_text().splitlines()[:3]
    clean = Path("run/splits/test.clean/test.run").read_text().splitlines()
    assert [line.split()[:4] for line in clean] == [line.split()[:4] for line in of_query]
    evaluated, others = report("run/splits/test.clean")["evaluated"], report("run")["evaluated"]
    assert evaluated["judgements"] != others["judgements"]
    assert evaluated["documents"] == others["documents"]


def test_new_weights_remove_what_was_measured_on_a_split(here):
    assert measured("--split test.clean") == 0
    assert run_ltr("fit run --trainer.max_epochs 2 --data.path own") == 0
    assert not Path("run/splits").exists()


def test_a_broken_split_breaks_only_who_asks_for_it(here, capsys):
    Path("own/qrels/test.clean.tsv").write_text(HEADER + "no such line\n")
    assert run_ltr("fit run --trainer.max_epochs 2 --data.path own") == 0
    assert measured() == 0 and measured("--split dev") == 0
    assert "own/qrels/test.clean.tsv:2: a grade must be" in told(capsys, "--split test.clean")
    assert not Path("run/splits/test.clean").exists()


NO_SUCH_SPLIT = "own: a split must be one of train, dev, test, empty, test.clean, got 'nope'"
REFUSED = {
    "nope": NO_SUCH_SPLIT,
    "test nope": NO_SUCH_SPLIT,
    "test.clean.removed.jsonl": "got 'test.clean.removed.jsonl'",
    "../dev": "the name of a split must be letters, digits",
    "empty": "own/qrels/empty.tsv: the split is empty",
    "": "--split",
    "dev --data.evaluation.fold '{number: 1, of: 3}'": "a fold takes the place of all",
    "test dev --data.path own other": "on one split at a time",
    "test dev --trainer.fast_dev_run true": "a trial run measures nothing",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_can_t_be_measured_is_refused_in_one_line(here, capsys, words):
    Path("own/qrels/empty.tsv").write_text(HEADER)
    before = files_here()
    assert REFUSED[words] in told(capsys, f"--split {words}")
    assert files_here() == before, "nothing is left, and nothing was measured"


def files_here():
    return sorted(path for path in Path().rglob("*") if path.name not in (".lock", "train.log"))


def test_processes_of_a_launcher_measure_one_split_at_a_time(here, capsys, monkeypatch):
    for name, value in {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert "without torchrun or srun" in told(capsys, "--split test test.clean")


def test_feature_vectors_have_no_splits_of_other_names(here, capsys):
    write_letor(here / "x")
    ranker = {"class_path": "FeatureRanker", "init_args": {"n_features": 5}}
    data = {"class_path": "FeatureDataModule", "init_args": {"path": str(here / "x")}}
    trained(here / "features", ranker, data)
    for words in ("test.clean", "test test.clean"):
        line = refusal(capsys, f"test features/run --split {words}")
        assert "FeatureDataModule tests 'test' alone, got 'test.clean'" in line
    assert run_ltr("test features/run --split test") == 0


@pytest.mark.long
def test_a_data_set_beside_the_own_one_is_measured_on_a_split(here):
    shutil.copytree("own", "other")
    words = "test run --data.path own other --split"
    with redirect_stdout(io.StringIO()) as said:
        assert run_ltr(f"{words} test.clean") == 0
    for name in ("own", "other"):
        assert report(f"run/sets/{name}/splits/test.clean")["queries"] == 1
    assert not Path("run/sets/own/metrics.json").exists(), "test was not asked for"
    assert "run, test.clean" in said.getvalue()
    assert run_ltr(f"{words} test.clean") == run_ltr(f"{words} test") == 0
    assert report("run/sets/own")["queries"] == 2


@pytest.mark.long
def test_each_split_is_measured_in_a_process_of_its_own(world, monkeypatch):
    """Which the tests above leave out."""
    monkeypatch.chdir(world)
    assert run_ltr("test run --split test test.clean") == 0
    assert report("run/splits/test.clean")["queries"] == 1


def test_documents_are_shown_of_the_split_that_is_compared(here):
    """Of test.clean the collection has the split, and the ranking is that of its own run file: q0
    alone, whose first document is relevant.
    """
    assert measured("--ckpt_path same.ckpt --split test.clean") == 0
    run = read_run(Path("run"), split="test.clean")
    collection = collection_of(run)
    assert "test.clean" in collection.qrels
    ranking = Ranking(run, collection)
    assert list(ranking.documents) == ["test-q0"]
    assert ranking.precision(3).tolist() == pytest.approx([0, 0, 1 / 3])
    assert collection_of(replace(run, split="gone")) is None, "a warning says why"
