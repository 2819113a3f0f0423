"""A run over several sources, through all commands."""

import json
import shutil

import pytest
import torch
import yaml

from ltr.__main__ import main
from ltr.compare.tested_run import is_tested
from ltr.data.trec import read_run
from tests.test_ranks import two_processes
from tests.world.collections import write_collection
from tests.world.configurations import QUIET
from tests.world.runs import metrics


@pytest.fixture(scope="module")
def world(tmp_path_factory, backbone):
    """A run that was trained and tested on a (30 queries) and b (9), by relative paths."""
    folder = tmp_path_factory.mktemp("world")
    write_collection(folder / "a")
    write_collection(folder / "b", n_queries=9, seed=1)
    config = {
        "seed_everything": 3,
        "model": {
            "ranker": {
                "class_path": "ltr.models.PairWiseBertRanker",
                "init_args": {"backbone": backbone, "max_length": 24},
            },
            "loss": {"class_path": "ltr.losses.SoftmaxLoss"},
            "lr": 0.01,
        },
        "data": {
            "class_path": "ltr.datamodules.TripletDataModule",
            "init_args": {
                "path": [
                    {"path": "a", "weight": 3, "negatives": "random"},
                    {"path": "b", "weight": 1},
                ],
                "negatives_per_query": 3,
                "batch_size": 8,
                "mixture": {"batches": "mixed"},
            },
        },
        "trainer": QUIET | {"max_epochs": 2},
    }
    (folder / "both.yaml").write_text(yaml.safe_dump(config))
    for kind in ("LabelDataModule", "FeatureDataModule"):
        other = config | {"data": {"class_path": kind, "init_args": {"path": ["a", "b"]}}}
        (folder / f"{kind}.yaml").write_text(yaml.safe_dump(other))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        words = ["--config", "both.yaml", "--trainer.default_root_dir", "run"]
        assert main(["fit", *words]) == 0
        assert main(["test", "run"]) == 0
    return folder


def test_results_are_told_of_each_source_and_their_mean(world):
    results = metrics(world / "run")
    assert results["fit"]["steps"] == 2 * 5  # 39 lists in batches of 8
    report = results["test"]
    assert report["sources"] == ["a", "b"] and report["queries"] == 39
    assert report["ceiling"]["R"] == 1.0
    for name in ("nDCG@10", "AP"):
        assert report[name] == pytest.approx((report[f"a/{name}"] + report[f"b/{name}"]) / 2)
        assert results["start"].keys() >= {name, f"a/{name}", f"b/{name}"}
    lines = (world / "run/per_query.tsv").read_text().splitlines()
    of_source = {"a": [], "b": []}
    for line in lines[1:]:
        query, value, *_ = line.split("\t")
        of_source[query[0]].append(float(value))
    assert [len(values) for values in of_source.values()] == [30, 9]
    for name, values in of_source.items():
        assert sum(values) / len(values) == pytest.approx(report[f"{name}/nDCG@10"], abs=1e-6)
    ranked = [line for _, line in read_run(world / "run/test.run")]
    assert {line.query[:7] for line in ranked} == {"a/test-", "b/test-"}
    assert all(line.doc.startswith(line.query) for line in ranked)  # its own pool
    assert is_tested(world / "run")


def test_a_run_is_found_from_another_folder_with_all_its_sources(world, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = metrics(world / "run")["test"]
    assert main(["test", str(world / "run")]) == 0
    after = metrics(world / "run")["test"]
    for name in ("nDCG@10", "a/nDCG@10", "b/nDCG@10", "evaluated"):
        assert after[name] == before[name]


def test_other_sets_are_measured_one_after_the_other(world, monkeypatch):
    monkeypatch.chdir(world)
    report = metrics(world / "run")["test"]
    assert main(["test", "run", "--data.path", "a", "b"]) == 0
    for name in "ab":
        alone = metrics(world / "run/sets" / name)["test"]
        assert alone["nDCG@10"] == pytest.approx(report[f"{name}/nDCG@10"], abs=1e-6)


def test_runs_are_compared_by_source_and_by_their_mean(world, monkeypatch, capsys):
    monkeypatch.chdir(world)
    shutil.copytree(world / "run", world / "twin")
    assert main(["compare", "run", "twin"]) == 0
    table = capsys.readouterr().out
    report = metrics(world / "run")["test"]
    assert f"{report['nDCG@10']:.4f}" in table
    for name in "ab":
        assert f"{report[f'{name}/nDCG@10']:.4f}" in table


def test_a_card_has_the_results_on_each_source(world, tmp_path, monkeypatch):
    monkeypatch.chdir(world)
    assert main(["export", "run", str(tmp_path / "out"), "--to", "sentence-transformers"]) == 0
    card = (tmp_path / "out/README.md").read_text()
    report = metrics(world / "run")["test"]
    for name in "ab":
        part = card.partition(f"### {name}\n")[2]
        assert f"{report[f'{name}/nDCG@10']:.4f}" in part.partition("### ")[0]


@pytest.mark.long
def test_a_grid_leaves_out_each_source(world, monkeypatch, capfd):
    monkeypatch.chdir(world)
    axes = {"left out": {"nothing": {}, "a": {"data.mixture.leave_out": "a"}}}
    grid = {"base": "both.yaml", "axes": axes, "seeds": [0, 1]}
    (world / "left_out.yaml").write_text(yaml.safe_dump(grid))
    assert main(["grid", "left_out.yaml"]) == 0
    table = capfd.readouterr().out
    assert "mean of 2 sets" in table
    report = metrics(world / "runs/left_out/a/seed=0")["test"]
    assert report["sources"] == ["a", "b"]


REFUSED = {
    "check": (["check", "run"], "ltr check looks at one collection, and path names 2"),
    "mine": (
        ["mine", "run", "--output", "mined"],
        "ltr mine mines of one collection, and path names 2",
    ),
    "labels": (
        ["fit", "--config", "LabelDataModule.yaml"],
        "data.path: this data module takes one path, and not several sources; take TripletDataModule",
    ),
    "features": (
        ["fit", "--config", "FeatureDataModule.yaml"],
        "data.path: this data module takes one path, and not several sources; take TripletDataModule",
    ),
    "weights": (
        [
            *["fit", "run", "--trainer.max_epochs", "3", "--data.path"],
            json.dumps(
                [{"path": "a", "weight": 2, "negatives": "random"}, {"path": "b", "weight": 1}]
            ),
        ],
        "the checkpoint was trained on other mixture",
    ),
    "unknown": (
        [
            "fit",
            "--config",
            "both.yaml",
            "--data.path",
            json.dumps([{"path": "a", "wait": 1}, "b"]),
        ],
        "path[0]: a source has path, weight, name, instruction, negatives, got 'wait'",
    ),
    "nowhere": (
        ["fit", "--config", "both.yaml", "--data.path", json.dumps(["a", "c"])],
        "c: there is no such data folder or file",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_several_sources_do_not_mean_is_refused_in_one_line(case, world, monkeypatch, capfd):
    monkeypatch.chdir(world)
    words, message = REFUSED[case]
    kept = metrics(world / "run")
    if "--config" in words:
        words = [*words, "--trainer.default_root_dir", f"new-{case}"]
    assert main(words) == 2
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("ltr: ")]
    assert message in line
    assert metrics(world / "run") == kept
    assert not list(world.glob("new-*/checkpoints/*"))


@pytest.mark.usefixtures("programs_begin_warm")
@pytest.mark.long
@pytest.mark.parametrize("batches", ["one_source", "mixed"])
def test_two_processes_train_on_the_same_lists_as_one(world, tmp_path, batches):
    """Equal but for rounding: its gradients are added up in another order."""
    config = yaml.safe_load((world / "both.yaml").read_text())
    for source in config["data"]["init_args"]["path"]:
        source["path"] = str(world / source["path"])
    config["data"]["init_args"]["mixture"]["batches"] = batches
    file = tmp_path / "both.yaml"
    file.write_text(yaml.safe_dump(config))
    one = tmp_path / "one"
    assert main(["fit", "--config", str(file), "--trainer.default_root_dir", str(one)]) == 0
    where = ["--trainer.default_root_dir", str(tmp_path / "two")]
    two_processes("fit", file, *where)
    steps, weights = [], []
    for run in (one, tmp_path / "two"):
        last = torch.load(run / "checkpoints/last.ckpt", weights_only=True)
        steps.append(last["global_step"])
        weights.append(last["state_dict"])
    assert steps[0] == steps[1] > 8
    for name, weight in weights[0].items():
        if not name.endswith(("key.bias", "head.bias")):  # their gradients are rounding alone
            torch.testing.assert_close(weights[1][name], weight, atol=2e-4, rtol=1e-3, msg=name)
