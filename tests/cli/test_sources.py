"""A run over several sources, through all commands."""

import json
import shutil

import pytest
import torch
import yaml

from ltr.compare.tested_run import is_tested
from ltr.data.trec import read_run
from tests.test_ranks import two_processes
from tests.world.collections import write_collection
from tests.world.commands import run_ltr
from tests.world.configurations import write_config
from tests.world.runs import metrics, report


@pytest.fixture(scope="module")
def world(tmp_path_factory, backbone):
    """A run that was trained and tested on a (30 queries) and b (9), by relative paths."""
    folder = tmp_path_factory.mktemp("world")
    write_collection(folder / "a")
    write_collection(folder / "b", n_queries=9, seed=1)
    changes = {
        "path": [{"path": "a", "weight": 3, "negatives": "random"}, {"path": "b", "weight": 1}],
        "batch_size": 8,
        "mixture": {"batches": "mixed"},
    }
    changes = {f"data.init_args.{name}": value for name, value in changes.items()}
    file = write_config(folder, backbone, folder, **changes).rename(folder / "both.yaml")
    config = yaml.safe_load(file.read_text())
    for kind in ("LabelDataModule", "FeatureDataModule"):
        other = config | {"data": {"class_path": kind, "init_args": {"path": ["a", "b"]}}}
        (folder / f"{kind}.yaml").write_text(yaml.safe_dump(other))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert run_ltr("fit --config both.yaml") == run_ltr("test run") == 0
    return folder


def test_results_are_told_of_each_source_and_their_mean(world):
    written = metrics(world / "run")
    assert written["fit"]["steps"] == 2 * 5  # 39 lists in batches of 8
    results = written["test"]
    assert results["sources"] == ["a", "b"] and results["queries"] == 39
    assert results["ceiling"]["R"] == 1.0
    for name in ("nDCG@10", "AP"):
        assert results[name] == pytest.approx((results[f"a/{name}"] + results[f"b/{name}"]) / 2)
        assert written["start"].keys() >= {name, f"a/{name}", f"b/{name}"}
    lines = (world / "run/per_query.tsv").read_text().splitlines()
    of_source = {"a": [], "b": []}
    for line in lines[1:]:
        query, value, *_ = line.split("\t")
        of_source[query[0]].append(float(value))
    assert [len(values) for values in of_source.values()] == [30, 9]
    for name, values in of_source.items():
        assert sum(values) / len(values) == pytest.approx(results[f"{name}/nDCG@10"], abs=1e-6)
    ranked = [line for _, line in read_run(world / "run/test.run")]
    assert {line.query[:7] for line in ranked} == {"a/test-", "b/test-"}
    assert all(line.doc.startswith(line.query) for line in ranked)  # its own pool
    assert is_tested(world / "run")


def test_a_run_is_found_from_another_folder_with_all_its_sources(world, here):
    before = report(world / "run")
    assert run_ltr(f"test {world / 'run'}") == 0
    after = report(world / "run")
    for name in ("nDCG@10", "a/nDCG@10", "b/nDCG@10", "evaluated"):
        assert after[name] == before[name]


@pytest.fixture
def results(world, monkeypatch):
    """What the run has measured on test; the working directory holds it."""
    monkeypatch.chdir(world)
    return metrics(world / "run")["test"]


def test_other_sets_are_measured_one_after_the_other(results):
    assert run_ltr("test run --data.path a b") == 0
    for name in "ab":
        alone = report(f"run/sets/{name}")["nDCG@10"]
        assert alone == pytest.approx(results[f"{name}/nDCG@10"], abs=1e-6)


def test_runs_are_compared_by_source_and_by_their_mean(results, capsys):
    shutil.copytree("run", "twin")
    assert run_ltr("compare run twin") == 0
    table = capsys.readouterr().out
    for name in ("nDCG@10", "a/nDCG@10", "b/nDCG@10"):
        assert f"{results[name]:.4f}" in table


def test_a_card_has_the_results_on_each_source(results, tmp_path):
    assert run_ltr(f"export run {tmp_path / 'out'} --to sentence-transformers") == 0
    card = (tmp_path / "out/README.md").read_text()
    for name in "ab":
        part = card.partition(f"### {name}\n")[2]
        assert f"{results[f'{name}/nDCG@10']:.4f}" in part.partition("### ")[0]


@pytest.mark.long
def test_a_grid_leaves_out_each_source(world, monkeypatch, capfd):
    monkeypatch.chdir(world)
    axes = {"left out": {"nothing": {}, "a": {"data.mixture.leave_out": "a"}}}
    grid = {"base": "both.yaml", "axes": axes, "seeds": [0, 1]}
    (world / "left_out.yaml").write_text(yaml.safe_dump(grid))
    assert run_ltr("grid left_out.yaml") == 0
    table = capfd.readouterr().out
    assert "mean of 2 sets" in table
    assert report("runs/left_out/a/seed=0")["sources"] == ["a", "b"]


ONE_COLLECTION = "one collection, and path names 2"
ONE_PATH = (
    "data.path: this data module takes one path, and not several sources; take TripletDataModule"
)
OTHER_WEIGHTS = [{"path": "a", "weight": 2, "negatives": "random"}, {"path": "b", "weight": 1}]
REFUSED = {
    "check": ("check run", None, f"ltr check looks at {ONE_COLLECTION}"),
    "mine": ("mine run --output hard", None, f"ltr mine mines of {ONE_COLLECTION}"),
    "labels": ("fit --config LabelDataModule.yaml", None, ONE_PATH),
    "features": ("fit --config FeatureDataModule.yaml", None, ONE_PATH),
    "weights": (
        "fit run --trainer.max_epochs 3",
        OTHER_WEIGHTS,
        "the checkpoint was trained on other mixture",
    ),
    "unknown": (
        "fit --config both.yaml",
        [{"path": "a", "wait": 1}, "b"],
        "path[0]: a source has path, weight, name, instruction, negatives, got 'wait'",
    ),
    "nowhere": ("fit --config both.yaml", ["a", "c"], "c: there is no such data folder or file"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_several_sources_do_not_mean_is_refused_in_one_line(case, world, monkeypatch, capfd):
    monkeypatch.chdir(world)
    words, paths, message = REFUSED[case]
    kept = metrics(world / "run")
    if "--config" in words:
        words += f" --trainer.default_root_dir new-{case}"
    more = ["--data.path", json.dumps(paths)] if paths else []
    assert run_ltr(words, *more) == 2
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
    assert run_ltr(f"fit --config {file} --trainer.default_root_dir {one}") == 0
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
