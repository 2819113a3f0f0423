"""A published number is made again, and what made it lies beside it."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from ltr import __version__
from ltr.__main__ import main
from tests.run.resumes import BASE
from tests.world.commands import run_ltr
from tests.world.features import write_letor


@pytest.fixture(scope="module")
def tested(tmp_path_factory):
    """A folder with data, a configuration, and its run ``runs/c/seed=3``, which was tested."""
    folder = tmp_path_factory.mktemp("tested")
    write_letor(folder / "letor")
    config = BASE | {"trainer": BASE["trainer"] | {"max_epochs": 1}}
    (folder / "c.yaml").write_text(yaml.safe_dump(config))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert run_ltr("fit --config c.yaml") == run_ltr("test runs/c/seed=3") == 0
    return folder


@pytest.fixture
def run(tested, tmp_path, monkeypatch):
    """The run in a copy of that folder, as if it had been made there: the working directory."""
    shutil.copytree(tested, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    run = Path("runs/c/seed=3")
    change_metrics(run, directory=str(tmp_path))
    return run


def metrics_file(run):
    return json.loads((run / "metrics.json").read_text())


def change_metrics(run, **changes):
    (run / "metrics.json").write_text(json.dumps(metrics_file(run) | changes))


def change_test(run, **changes):
    change_metrics(run, test=metrics_file(run)["test"] | changes)


def test_a_run_is_trained_again_and_its_numbers_are_the_same(run, capsys):
    assert run_ltr(f"reproduce {run / 'metrics.json'}") == 0
    lines = capsys.readouterr().out.strip().splitlines()
    value = metrics_file(run)["test"]["nDCG_exp@10"]
    assert f"nDCG_exp@10: {value:.4f} then, {value:.4f} now: same" in lines
    assert lines[-1].endswith("now: same")
    ranked = [
        [line.split()[:5] for line in (folder / "test.run").read_text().splitlines()]
        for folder in (run, run / "reproduced")
    ]
    assert ranked[0] == ranked[1]
    made = metrics_file(run / "reproduced")["test"]["made"]
    change_test(run / "reproduced", made=made | {"commit": "0123"})
    # This trains nothing: what is compared says when it was made, and by what.
    assert run_ltr(f"reproduce {run}") == 0
    told = f"{run}/reproduced was tested on {made['date']}, by ltr {__version__} 0123"
    assert capsys.readouterr().out.startswith(f"{told}; remove it to train again")
    add(run, "nDCG_exp@10", 0.01)
    assert run_ltr(f"reproduce {run}") == 0
    expected = f"{value + 0.01:.4f} then, {value:.4f} now: not the same; there are no three seeds"
    assert expected in capsys.readouterr().out
    digests = metrics_file(run)["trained_with"]
    data = digests["data"] | {"queries": "others"}
    change_metrics(run, trained_with=digests | {"data": data})
    assert run_ltr(f"reproduce {run}") == 2
    told = capsys.readouterr().err
    assert "they differ in data.path ('letor', " in told and ": other queries)" in told


def add(run, metric, gain):
    """Let a run have measured more: each query, and the mean."""
    header, *lines = (run / "per_query.tsv").read_text().splitlines()
    column = header.split("\t").index(metric)
    rows = [line.split("\t") for line in lines]
    for row in rows:
        row[column] = str(float(row[column]) + gain)
    text = "\n".join([header, *("\t".join(row) for row in rows)])
    (run / "per_query.tsv").write_text(f"{text}\n")
    change_test(run, **{metric: metrics_file(run)["test"][metric] + gain})


@pytest.mark.long
def test_a_run_that_was_tested_by_the_weights_of_a_step_is_so_again(run, monkeypatch, capsys):
    """Of two validations the second is the best; the first is tested."""
    monkeypatch.setattr("ltr.cli.reproduce.run_in_process", main)
    shutil.rmtree(run)
    assert run_ltr("fit --config c.yaml --best.save_top_k -1 --trainer.max_epochs 2") == 0
    assert metrics_file(run)["validations"][0]["step"] == 6
    assert run_ltr(f"test {run} --ckpt_path {run}/checkpoints/step=6.ckpt") == 0
    assert run_ltr(f"reproduce {run}") == 0
    reproduced = run / "reproduced"
    tested_by = metrics_file(reproduced)["test"]["checkpoint"]
    assert tested_by.endswith("reproduced/checkpoints/step=6.ckpt")
    assert capsys.readouterr().out.count("now: same") == 2

    change_test(reproduced, checkpoint="reproduced/checkpoints/best.ckpt")
    assert run_ltr(f"reproduce {run}") == 2
    assert "was not tested by step=6.ckpt, as runs/c/seed=3 was" in capsys.readouterr().err
    (reproduced / "checkpoints/step=6.ckpt").unlink()
    (reproduced / "per_query.tsv").unlink()
    assert run_ltr(f"reproduce {run}") == 2
    assert "reproduced has kept no such weights, so it was not" in capsys.readouterr().err
    change_test(run, checkpoint="mine.ckpt")
    assert run_ltr(f"reproduce {run} --output new") == 2
    assert "tested by mine.ckpt, which its training has not written" in capsys.readouterr().err
    assert not Path("new").exists()


@pytest.mark.long
def test_a_run_that_was_tested_under_other_options_is_so_again(run, monkeypatch, capsys):
    """The configuration says nDCG_exp@10 and swapped_pairs."""
    monkeypatch.setattr("ltr.cli.reproduce.run_in_process", main)
    assert "options" not in metrics_file(run)["test"]
    assert run_ltr(f"test {run} --model.metrics [AP,P@1] --data.loading.num_workers 1") == 0
    assert metrics_file(run)["test"]["options"] == {"model.metrics": ["AP", "P@1"]}
    capsys.readouterr()
    assert run_ltr(f"reproduce {run}") == 0
    told = capsys.readouterr().out
    assert "\nAP: " in told and "\nP@1: " in told
    assert told.count("now: same") == 2

    change_test(run, options={"model.metrics": ["AP"]})
    assert run_ltr(f"reproduce {run}") == 2
    assert "was tested under other options than runs/c/seed=3" in capsys.readouterr().err


@pytest.mark.parametrize("split", ["train", "vali", "test"])
def test_data_that_has_changed_is_told_before_training(run, capsys, split):
    """The last document of each split is one more line."""
    file = Path(f"letor/{split}.txt")
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join([*lines, lines[-1].replace("#docid = ", "#docid = new-")]))
    assert run_ltr(f"reproduce {run}") == 2
    told = capsys.readouterr().err.splitlines()[-1]
    what = {"train": "other data", "vali": "other dev ", "test": "of the tested split"}[split]
    assert "can't be trained and tested as it was, since then these have changed: data.path" in told
    assert what in told
    assert not (run / "reproduced").exists()


@pytest.mark.long
def test_another_run_is_not_taken_for_the_reproduction(run, tmp_path, monkeypatch, capsys):
    other = shutil.copytree(run, "runs/c/other")
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["model"]["lr"] = 0.2
    Path(other, "config.yaml").write_text(yaml.safe_dump(config))
    assert run_ltr(f"reproduce {run} --output {run}") == 2
    assert "--output must be a folder of its own" in capsys.readouterr().err
    assert run_ltr(f"reproduce {run} --output {other}") == 2
    told = capsys.readouterr().err
    assert "holds a run of other options" in told and "model.lr (0.1, 0.2)" in told
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert run_ltr(f"reproduce {tmp_path / run}") == 0
    assert "now: same" in capsys.readouterr().out


def test_what_was_not_tested_or_has_no_configuration_is_refused(run, tmp_path, capsys):
    assert run_ltr(f"reproduce {tmp_path}") == 2
    assert "a run must have been tested" in capsys.readouterr().err
    (run / "config.yaml").unlink()
    assert run_ltr(f"reproduce {run}") == 2
    assert "has no config.yaml" in capsys.readouterr().err


def test_metadata_lie_beside_the_run_file_and_say_what_made_it(run):
    found = yaml.safe_load((run / "ir-metadata.yml").read_text())
    made = metrics_file(run)["test"]["made"]
    assert made["ltr"] == __version__ and made["packages"]["torch"] and made["machine"]
    assert found["implementation"]["source"]["version"] == __version__
    method = found["method"]
    assert (method["seed"], method["model"]) == (3, "ltr.models.FeatureRanker")
    assert method["loss"] == "ltr.losses.RankNetLoss"
    measures = found["research goal"]["evaluation"]["reported measures"]
    assert measures == ["nDCG_exp@10", "swapped_pairs"]
    assert found["data"]["test collection"]["queries"] == 24
    assert "#" not in (run / "test.run").read_text(), "trec_eval reads no comments"
    assert run_ltr(f"fit {run} --trainer.max_epochs 2") == 0
    assert not (run / "ir-metadata.yml").exists(), "new weights: the run file is gone, and so is it"
