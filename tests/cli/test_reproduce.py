"""A published number is made again, and what made it lies beside it."""

import json
from pathlib import Path

import pytest
import yaml

from ltr import __version__
from ltr.__main__ import main
from tests.conftest import write_letor
from tests.run.resumes import BASE


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LTR_DEBUG", raising=False)
    write_letor(tmp_path / "letor")
    (tmp_path / "c.yaml").write_text(
        yaml.safe_dump(BASE | {"trainer": BASE["trainer"] | {"max_epochs": 1}})
    )
    return "c.yaml"


def test_a_run_is_trained_again_and_its_numbers_are_the_same(config, capsys):
    run = Path("runs/c/seed=3")
    assert main(["fit", "--config", config]) == 0
    assert main(["test", str(run)]) == 0
    capsys.readouterr()
    assert main(["reproduce", str(run / "metrics.json")]) == 0
    lines = capsys.readouterr().out.strip().splitlines()
    value = json.loads((run / "metrics.json").read_text())["test"]["nDCG_exp@10"]
    assert f"nDCG_exp@10: {value:.4f} then, {value:.4f} now: same" in lines and lines[-1].endswith(
        "now: same"
    )
    ranked = [
        [line.split()[:5] for line in (folder / "test.run").read_text().splitlines()]
        for folder in (run, run / "reproduced")
    ]
    assert ranked[0] == ranked[1]
    made = json.loads((run / "reproduced/metrics.json").read_text())["test"]["made"]
    made["commit"] = "0123"
    found = json.loads((run / "reproduced/metrics.json").read_text())
    found["test"]["made"] = made
    (run / "reproduced/metrics.json").write_text(json.dumps(found))
    assert (
        main(["reproduce", str(run)]) == 0
    )  # trains nothing: what is compared says when it was made, and by what
    told = f"{run}/reproduced was tested on {made['date']}, by ltr {__version__} 0123; remove it to train again"
    assert capsys.readouterr().out.startswith(told)
    found = json.loads((run / "metrics.json").read_text())
    found["test"]["nDCG_exp@10"] += 0.01
    (run / "metrics.json").write_text(json.dumps(found))
    assert main(["reproduce", str(run)]) == 0
    assert (
        f"{value + 0.01:.4f} then, {value:.4f} now: not the same; there are no three seeds"
        in capsys.readouterr().out
    )


def test_another_run_is_not_taken_for_the_reproduction(config, tmp_path, monkeypatch, capsys):
    run = Path("runs/c/seed=3")
    other = Path("runs/c/other")
    assert main(["fit", "--config", config]) == main(["test", str(run)]) == 0
    assert (
        main(
            [
                "fit",
                "--config",
                config,
                "--model.lr",
                "0.2",
                "--trainer.default_root_dir",
                str(other),
            ]
        )
        == 0
    )
    assert main(["test", str(other)]) == 0
    assert main(["reproduce", str(run), "--output", str(run)]) == 2
    assert "--output must be a folder of its own" in capsys.readouterr().err
    assert main(["reproduce", str(run), "--output", str(other)]) == 2
    assert "holds a run of other options" in capsys.readouterr().err
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(["reproduce", str(tmp_path / run)]) == 0
    assert "now: same" in capsys.readouterr().out


def test_what_was_not_tested_or_has_no_configuration_is_refused(config, tmp_path, capsys):
    assert main(["reproduce", str(tmp_path)]) == 2
    assert "a run must have been tested" in capsys.readouterr().err
    run = Path("runs/c/seed=3")
    assert main(["fit", "--config", config]) == 0
    assert main(["test", str(run)]) == 0
    (run / "config.yaml").unlink()
    assert main(["reproduce", str(run)]) == 2
    assert "has no config.yaml" in capsys.readouterr().err


def test_metadata_lie_beside_the_run_file_and_say_what_made_it(config):
    assert main(["fit", "--config", config]) == 0
    assert main(["test", "runs/c/seed=3"]) == 0
    found = yaml.safe_load(Path("runs/c/seed=3/ir-metadata.yml").read_text())
    made = json.loads(Path("runs/c/seed=3/metrics.json").read_text())["test"]["made"]
    assert made["ltr"] == __version__ and made["packages"]["torch"] and made["machine"]
    assert (
        found["implementation"]["source"]["version"] == __version__ and found["method"]["seed"] == 3
    )
    assert (
        found["method"]["model"] == "ltr.models.FeatureRanker"
        and found["method"]["loss"] == "ltr.losses.RankNetLoss"
    )
    assert found["research goal"]["evaluation"]["reported measures"] == [
        "nDCG_exp@10",
        "swapped_pairs",
    ]
    assert found["data"]["test collection"]["queries"] == 24
    assert "#" not in Path("runs/c/seed=3/test.run").read_text(), (
        "never in it: trec_eval reads no comments"
    )
    assert main(["fit", "runs/c/seed=3", "--trainer.max_epochs", "2"]) == 0
    assert not Path("runs/c/seed=3/ir-metadata.yml").exists(), (
        "new weights: the run file is gone, and so is what made it"
    )
