"""`ltr test RUN --data.path A B …`: several data sets, their places, and what is measured again."""

import io
import json
import shutil
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch

import ltr.cli.measuring
from ltr.__main__ import main
from ltr.cli.measuring import DATA_PATHS, names_several_sets
from ltr.cli.words import split_off_option
from ltr.errors import InputError
from tests.world.collections import write_collection
from tests.world.commands import refusal, run_ltr
from tests.world.features import write_letor
from tests.world.runs import report, results, trained, trained_on_texts

BOTH = "data/A data/B"
MEASURED: list[str] = []  # the data sets that a test has measured, in order


def path_and_place(args: list[str]) -> tuple[str, Path]:
    """What a command that measures one set reads, and where it writes."""
    place = args[args.index("--trainer.default_root_dir") + 1]
    return args[args.index("--data.path") + 1], Path(place)


def run_here(args: list[str]) -> None:
    """Measures a set in this process."""
    MEASURED.append(path_and_place(args)[0])
    if main(args) != 0:
        raise InputError("it has failed, see above")


@pytest.fixture(scope="module")
def world(tmp_path_factory, backbone) -> Path:
    """A run of a dual encoder on its own data, measured on the data sets ``data/A``, with pools, and
    ``data/B``, without. ``run`` is that run as it was before.
    """
    root = tmp_path_factory.mktemp("benchmark")
    own = write_collection(root / "own", n_queries=6)
    write_collection(root / "data/A", n_queries=5, seed=1)
    write_collection(root / "data/B", n_queries=7, seed=2)
    shutil.rmtree(root / "data/B/candidates")
    trained_on_texts(root, "dual", own, backbone)
    shutil.copytree(root / "run", root / "measured")
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as said:
        patch.chdir(root)
        patch.setattr("ltr.cli.measuring.run_in_process", run_here)
        assert run_ltr("test measured --data.path data/A data/B") == 0
    (root / "said").write_text(said.getvalue())
    return root


@pytest.fixture
def here(world, tmp_path, monkeypatch) -> Path:
    """The run and the data, to be changed, as the working directory. What measures a set takes the
    results that are there already.
    """
    shutil.copytree(world / "run", tmp_path / "run")
    shutil.copytree(world / "data", tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    MEASURED.clear()

    def copy(args: list[str]) -> None:
        path, place = path_and_place(args)
        MEASURED.append(path)
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(world / "measured/sets" / place.name, place)
        (place / "row.json").unlink()

    monkeypatch.setattr("ltr.cli.measuring.run_in_process", copy)
    return tmp_path


@pytest.fixture
def measuring(here, monkeypatch) -> Path:
    """The same, and sets are measured."""
    monkeypatch.setattr("ltr.cli.measuring.run_in_process", run_here)
    return here


def measured_on(words: str) -> int:
    return run_ltr(f"test run --data.path {words}")


def row(name: str, run: str = "run") -> dict:
    return json.loads(Path(f"{run}/sets/{name}/row.json").read_text())


def test_each_set_has_a_place_and_the_table_their_mean(world, monkeypatch):
    monkeypatch.chdir(world)
    assert results("measured") == results("run"), "on the run's own data"
    a, b = report("measured/sets/A"), report("measured/sets/B")
    assert (a["queries"], b["queries"]) == (5, 7)
    assert len(Path("measured/sets/B/per_query.tsv").read_text().splitlines()) == 1 + 7
    lines = [line.split() for line in Path("said").read_text().splitlines()]
    (header,) = [line for line in lines if line[:1] == ["set"]]
    place = header.index("nDCG@10")
    (of_a,) = [line for line in lines if line[:1] == ["A"]]
    (of_mean,) = [line for line in lines if line[:4] == ["mean", "of", "2", "sets"]]
    assert of_a[place] == f"{a['nDCG@10']:.4f}"
    mean = (a["nDCG@10"] + b["nDCG@10"]) / 2
    assert of_mean[place + 3] == f"{mean:.4f}", "each set counts alike"
    assert row("A", "measured")["metrics"]["nDCG@10"] == a["nDCG@10"]
    assert row("A", "measured")["ranked"] == "its pools"
    assert row("B", "measured")["ranked"] == "corpus, 100 deep", "a dual encoder searches"


@pytest.mark.long
def test_each_set_is_measured_as_ltr_test_measures_it_alone(measuring):
    assert measured_on(BOTH) == 0
    searched = "--data.evaluation.candidates corpus --data.evaluation.depth 100"
    for name, options in (("A", ""), ("B", searched)):
        alone = f"--data.path data/{name} --trainer.default_root_dir alone/{name}"
        assert run_ltr(f"test run {alone} {options}") == 0
        expected = results(f"alone/{name}")
        found = results(f"run/sets/{name}")
        for file in ("per_query.tsv", "test.run"):
            # The tag is the folder that the run lies in; "run" lies in none.
            words = [b"ltr" if word == b"alone" else word for word in expected[file].split()]
            assert found[file].split() == words


def test_what_was_measured_by_the_same_weights_is_not_measured_again(here, capsys):
    assert measured_on(BOTH) == 0 and MEASURED == ["data/A", "data/B"]
    shutil.move("data/A", "data/moved")
    (here / "suite.yaml").write_text("A: data/moved\nB: data/B\n")
    assert measured_on("suite:suite.yaml") == 0 and len(MEASURED) == 2
    assert "measured before, by the same weights: A, B" in capsys.readouterr().out
    with open("data/B/qrels/test.tsv", "a") as file:
        file.write("test-q0\ttest-q1-d3\t1\n")
    assert measured_on("suite:suite.yaml") == 0 and MEASURED[2:] == ["data/B"]
    # A result that was damaged is none.
    Path("run/sets/A/per_query.tsv").write_text("query\n")
    assert measured_on("suite:suite.yaml") == 0 and MEASURED[3:] == ["data/moved"]


@pytest.mark.long
def test_what_is_measured_otherwise_is_measured_again(measuring):
    assert measured_on(BOTH) == 0
    # How fast it is measured changes nothing; what is measured does.
    assert measured_on(f"{BOTH} --data.evaluation.batch_size 2") == 0
    assert len(MEASURED) == 2
    assert measured_on(f"{BOTH} --data.evaluation.depth 3") == 0
    assert len(MEASURED) == 4 and row("A")["ranked"] == "its pools, 3 deep"
    assert row("B")["ranked"] == "corpus, 100 deep", "a search goes as deep as the metrics look"
    checkpoint = torch.load("run/checkpoints/best.ckpt", weights_only=True)
    weights = checkpoint["state_dict"]
    for name in weights:
        weights[name] = weights[name] + 0.1
    torch.save(checkpoint, "other.ckpt")
    assert measured_on(f"{BOTH} --ckpt_path other.ckpt") == 0 and len(MEASURED) == 6
    assert measured_on(BOTH) == 0 and len(MEASURED) == 8


@pytest.mark.long
def test_other_weights_are_measured_again(measuring):
    assert measured_on(BOTH) == 0
    assert run_ltr("fit run --trainer.max_epochs 2") == 0
    assert not Path("run/sets").exists(), "these were results of the weights of before"
    assert measured_on(BOTH) == 0 and len(MEASURED) == 4


def test_what_is_finished_stays_when_it_is_interrupted(here, monkeypatch):
    measure = ltr.cli.measuring.run_in_process

    def interrupted(args: list[str]) -> None:
        if "data/B" in args:
            raise KeyboardInterrupt
        measure(args)

    monkeypatch.setattr("ltr.cli.measuring.run_in_process", interrupted)
    assert measured_on(BOTH) == 130
    assert row("A") and not Path("run/sets/B").exists()
    monkeypatch.setattr("ltr.cli.measuring.run_in_process", measure)
    assert measured_on(BOTH) == 0 and MEASURED == ["data/A", "data/B"]


def told(capsys, words: str) -> str:
    """The line that refuses these data sets and options."""
    return refusal(capsys, f"test run --data.path {words}")


def test_a_set_that_can_t_be_measured_is_refused_before_any_work(here, capsys):
    write_collection(here / "bad", n_queries=3)
    with open("bad/qrels/test.tsv", "a") as file:
        file.write("x\n")
    before = sorted(Path().rglob("*"))
    assert "nowhere can't be measured, so nothing was" in told(capsys, "data/A nowhere")
    assert "bad/qrels/test.tsv:8: expected 4 columns" in told(capsys, "data/A bad")
    assert MEASURED == [] and sorted(Path().rglob("*")) == before


@pytest.mark.long
def test_options_that_ltr_test_refuses_are_refused_before_any_work(here, capsys, monkeypatch):
    write_collection(here / "untested", n_queries=3)
    Path("untested/qrels/test.tsv").unlink()
    before = sorted(Path().rglob("*"))
    assert "no judgements for the split 'test'" in told(capsys, "data/A untested")
    assert "there is no option --trainer.foo" in told(capsys, f"{BOTH} --trainer.foo 1")
    assert "there is no such file" in told(capsys, f"{BOTH} --ckpt_path x.ckpt")
    assert "a trial run" in told(capsys, f"{BOTH} --trainer.fast_dev_run true")
    for name, value in {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert "without torchrun or srun" in told(capsys, BOTH)
    assert MEASURED == [] and sorted(Path().rglob("*")) == before


def test_a_hub_that_can_t_be_reached_is_one_line(here, capsys, monkeypatch):
    def unreachable(name: str) -> None:
        raise ConnectionError(f"no network for {name}\nand more")

    monkeypatch.setattr("ltr.data.collection._from_ir_datasets", unreachable)
    line = told(capsys, "suite:nanobeir")
    assert "NanoArguAna can't be fetched, so nothing was measured" in line


@pytest.mark.long
def test_a_name_stands_for_one_data_set(here, capsys):
    assert measured_on(BOTH) == 0
    write_collection(here / "other/A", n_queries=4, seed=5)
    assert measured_on("other/A data/B") == 2
    assert "run/sets/A has the results on" in capsys.readouterr().err
    assert len(MEASURED) == 2 and row("A")["queries"] == 5
    Path("run/sets/A/row.json").write_text("{}")
    assert measured_on(BOTH) == 2
    assert "row.json: the file is damaged" in capsys.readouterr().err


@pytest.mark.long
def test_a_cross_encoder_orders_the_best_of_bm25_where_there_are_no_pools(
    measuring, backbone, collection_folder
):
    """Here one that was not trained, and a suite that is a folder."""
    model = f"--model.ranker PairWiseBertRanker --model.ranker.backbone {backbone}"
    model += " --model.ranker.max_length 20 --model.loss SoftmaxLoss"
    data = "--data TripletDataModule --data.path suite:data"
    trainer = "--trainer.default_root_dir new --trainer.accelerator cpu"
    assert run_ltr(f"test {model} {data} {trainer}") == 0
    rows = [row(name, "new") for name in "AB"]
    assert [row["ranked"] for row in rows] == ["its pools", "bm25, 100 deep"]
    compared = "compare new run --data suite:data"
    assert run_ltr(compared) == 2, "run was not tested there"
    without_depth = "suite:data --data.evaluation.candidates corpus"
    assert measured_on(without_depth) == 2, "it needs a depth"
    assert measured_on("suite:data") == 0
    assert run_ltr(compared) == 0


@pytest.mark.long
def test_feature_vectors_have_sets_too(measuring):
    write_letor(measuring / "x"), write_letor(measuring / "y", "test", seed=1)
    ranker = {"class_path": "FeatureRanker", "init_args": {"n_features": 5}}
    data = {"class_path": "FeatureDataModule", "init_args": {"path": str(measuring / "x")}}
    trained(measuring / "features", ranker, data)
    for _ in range(2):
        assert run_ltr("test features/run --data.path x y") == 0 and MEASURED == ["x", "y"]
    assert row("x", "features/run")["metrics"] != row("y", "features/run")["metrics"]
    assert run_ltr("test features/run --data.path x here") == 2


@pytest.mark.parametrize(
    ("args", "others", "words"),
    [
        ("run --data.path A B --x 1", "run --x 1", "A B"),
        ("run --data.path=suite:n", "run", "suite:n"),
        ("--data.init_args.path suite:n --x=1", "--x=1", "suite:n"),
        ("run --data.path A", "run", "A"),
        ("run --data.path A B --data.path C", "run", "C"),
        ("run --x suite:n", "run --x suite:n", ""),
    ],
)
def test_several_words_or_a_suite_are_sets(args, others, words):
    assert split_off_option(args.split(), DATA_PATHS) == (others.split(), words.split())
    assert names_several_sets(words.split()) == (words in ("A B", "suite:n"))


@pytest.mark.long
def test_each_set_is_measured_in_a_process_of_its_own(world, monkeypatch):
    """Which the tests above leave out."""
    monkeypatch.chdir(world)
    assert run_ltr("test run --data.path data/A data/B") == 0
    assert report("run/sets/A")["queries"] == 5
