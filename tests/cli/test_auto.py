"""A folder without pools, and nothing else said of the data: trained, tested, resumed, compared."""

import shutil

import pytest
import yaml

from ltr.__main__ import main
from tests.world.collections import write_collection
from tests.world.commands import refusal, run_ltr
from tests.world.runs import TEXTS, metrics, report, trained


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """As BEIR ships it: texts and judgements."""
    folder = write_collection(tmp_path_factory.mktemp("beir") / "c", n_queries=8)
    shutil.rmtree(folder / "candidates")
    return folder


def trained_without_options(place, kind, data_module, folder, backbone, *options):
    init_args = TEXTS[kind]["init_args"] | {"backbone": backbone}
    ranker = TEXTS[kind] | {"init_args": init_args}
    data = {"class_path": data_module, "init_args": {"path": str(folder)}}
    return trained(place, ranker, data, *options)


@pytest.mark.parametrize(
    ("kind", "data_module"),
    [
        ("cross", "TripletDataModule"),
        pytest.param("dual", "ListDataModule", marks=pytest.mark.long),
        ("dual", "GroupDataModule"),
    ],
)
def test_a_folder_without_pools_is_enough(tmp_path, capsys, folder, backbone, kind, data_module):
    options = ["--trainer.max_steps", "1"]
    if data_module == "GroupDataModule":
        options += ["--data.groups", "4", "--model.in_batch", "OtherQueries"]
    run = trained_without_options(tmp_path, kind, data_module, folder, backbone, *options)
    told = capsys.readouterr().out
    for split in ("dev", "test"):
        assert f"split '{split}': evaluation.candidates: auto takes the best 100 of BM25" in told
    tested = report(run)
    assert (tested["candidates"], tested["depth"]) == ("bm25", 100)
    assert "queries" in tested["evaluated"] and tested["nDCG@10"] is not None
    trained_with = metrics(run)["trained_with"]
    assert trained_with["taken"]["evaluation.candidates of dev"] == "bm25, 100 deep"
    if data_module == "TripletDataModule":
        assert "split 'train': negatives: auto takes the best 100 of BM25" in told
        assert trained_with["taken"]["negatives of train"] == "bm25, 100 deep"
    described = yaml.safe_load((run / "ir-metadata.yml").read_text())
    assert described["method"]["candidates"] == "bm25, 100"


@pytest.mark.long
def test_pools_that_came_later(tmp_path, capsys, folder, backbone):
    """A resume would go on with other negatives, a test ranks other candidates, and both are said."""
    later = write_collection(tmp_path / "c", n_queries=8)
    pools = (later / "candidates").rename(tmp_path / "pools")
    words = ["cross", "TripletDataModule", later, backbone, "--trainer.max_steps", "1"]
    before = trained_without_options(tmp_path / "before", *words)
    negatives_random = ["--data.negatives", "random"]
    others = trained_without_options(tmp_path / "random", *words, *negatives_random)
    # What auto took is stored, so its depth may be said.
    assert run_ltr(f"fit {before} --trainer.max_steps 1 --data.negatives_depth 100") == 0
    line = refusal(capsys, f"fit {before} --trainer.max_steps 1 --data.negatives_depth 99")
    assert "data.negatives_depth was 100 and is 99" in line
    pools.rename(later / "candidates")
    more = ["--trainer.max_steps", "2", "--trainer.max_epochs", "2"]
    capsys.readouterr()
    assert run_ltr(f"fit {before}", *more) == 2
    assert "the checkpoint was trained on other negatives" in capsys.readouterr().err
    assert run_ltr(f"fit {others}", *more) == 0
    assert "the run goes on with other dev candidates than before" in capsys.readouterr().err

    after = trained_without_options(tmp_path / "after", *words)
    assert report(after)["candidates"] == "candidates"
    capsys.readouterr()
    assert run_ltr(f"compare {before} {after}") == 0
    note = " ".join(capsys.readouterr().out.split())
    assert "the runs rank other candidates" in note
    assert "bm25, 100 deep" in note and ": candidates" in note


@pytest.mark.long
def test_a_run_without_validation_that_was_tested_by_auto_is_reproduced(
    tmp_path, capsys, folder, backbone, monkeypatch
):
    """Its configuration says null, and its weights are the last ones."""
    monkeypatch.setattr("ltr.cli.reproduce.run_in_process", main)
    ranker = TEXTS["cross"] | {"init_args": {"max_length": 20, "backbone": backbone}}
    data = {"class_path": "TripletDataModule", "init_args": {"path": str(folder)}}
    model = {"ranker": ranker, "loss": "ltr.losses.SoftmaxLoss"}
    config = {"model": model, "data": data, "trainer": {"max_steps": 1}}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    run = tmp_path / "run"
    null = ["--data.evaluation.candidates", "null", "--trainer.default_root_dir", str(run)]
    assert run_ltr(f"fit --config {tmp_path / 'c.yaml'}", *null) == 0
    assert run_ltr(f"test {run}") == 2
    assert "there is nothing to evaluate without candidates" in capsys.readouterr().err
    assert run_ltr(f"test {run} --data.evaluation.candidates auto") == 0
    assert report(run)["options"] == {"data.evaluation.candidates": "auto"}
    capsys.readouterr()
    assert run_ltr(f"reproduce {run}") == 0
    assert "now: same" in capsys.readouterr().out
    assert report(run / "reproduced")["options"] == {"data.evaluation.candidates": "auto"}


@pytest.mark.long
def test_seeds_of_auto_and_of_what_it_took_are_of_one_experiment(
    tmp_path, capsys, folder, backbone
):
    words = ["cross", "TripletDataModule", folder, backbone, "--trainer.max_steps", "1"]
    other_words = ["--data.negatives", "bm25", "--data.evaluation.candidates", "bm25"]
    for seed, more in ((0, []), (1, other_words)):
        place = ["--seed_everything", str(seed)]
        run = trained_without_options(tmp_path / f"made-{seed}", *words, *place, *more)
        shutil.copytree(run, tmp_path / f"runs/x/seed={seed}")
    capsys.readouterr()
    assert run_ltr(f"compare {tmp_path / 'runs/x'} {tmp_path / 'made-0/run'}") == 0
    assert "other candidates" not in capsys.readouterr().out
    other = ["--data.negatives", "random"]
    run = trained_without_options(tmp_path / "made-2", *words, "--seed_everything", "2", *other)
    shutil.copytree(run, tmp_path / "runs/x/seed=2")
    line = refusal(capsys, f"compare {tmp_path / 'runs/x'} {tmp_path / 'made-0/run'}")
    assert "they differ in data.negatives ('bm25', 'random')" in line
