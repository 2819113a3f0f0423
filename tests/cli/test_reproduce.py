"""A published number is made again, and what made it lies beside it."""

import json
from pathlib import Path

import pytest
import yaml

from ltr import __version__
from ltr.__main__ import main
from tests.run.resumes import BASE
from tests.world.features import write_letor


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
    if Path("/proc/self").exists():
        assert main(["reproduce", str(run), "--output", "/proc/nope"]) == 2
        assert "--output must lie where something can be written" in capsys.readouterr().err
    add(run, "nDCG_exp@10", 0.01)
    assert main(["reproduce", str(run)]) == 0
    assert (
        f"{value + 0.01:.4f} then, {value:.4f} now: not the same; there are no three seeds"
        in capsys.readouterr().out
    )
    found = json.loads((run / "metrics.json").read_text())
    digests = found["trained_with"]
    found["trained_with"] = digests | {"data": digests["data"] | {"queries": "others"}}
    (run / "metrics.json").write_text(json.dumps(found))
    assert main(["reproduce", str(run)]) == 2
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
    found = json.loads((run / "metrics.json").read_text())
    found["test"][metric] += gain
    (run / "metrics.json").write_text(json.dumps(found))


def test_a_run_that_was_tested_by_the_weights_of_a_step_is_so_again(config, monkeypatch, capsys):
    """Of two validations the second is the best; the first is tested."""
    monkeypatch.setattr("ltr.cli.reproduce.run_in_process", main)
    run = Path("runs/c/seed=3")
    options = ["--best.save_top_k", "-1", "--trainer.max_epochs", "2"]
    assert main(["fit", "--config", config, *options]) == 0
    first = run / "checkpoints/step=6.ckpt"
    assert json.loads((run / "metrics.json").read_text())["validations"][0]["step"] == 6
    assert main(["test", str(run), "--ckpt_path", str(first)]) == 0
    assert main(["reproduce", str(run)]) == 0
    found = json.loads((run / "reproduced/metrics.json").read_text())
    assert found["test"]["checkpoint"].endswith("reproduced/checkpoints/step=6.ckpt")
    assert capsys.readouterr().out.count("now: same") == 2

    say_tested_by(run / "reproduced", "reproduced/checkpoints/best.ckpt")
    assert main(["reproduce", str(run)]) == 2
    assert "was not tested by step=6.ckpt, as runs/c/seed=3 was" in capsys.readouterr().err
    (run / "reproduced/checkpoints/step=6.ckpt").unlink()
    (run / "reproduced/per_query.tsv").unlink()
    assert main(["reproduce", str(run)]) == 2
    assert "reproduced has kept no such weights, so it was not" in capsys.readouterr().err
    say_tested_by(run, "mine.ckpt")
    assert main(["reproduce", str(run), "--output", "new"]) == 2
    assert "tested by mine.ckpt, which its training has not written" in capsys.readouterr().err
    assert not Path("new").exists()


def say_tested_by(run, checkpoint):
    found = json.loads((run / "metrics.json").read_text())
    found["test"]["checkpoint"] = checkpoint
    (run / "metrics.json").write_text(json.dumps(found))


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
    told = capsys.readouterr().err
    assert "holds a run of other options" in told and "model.lr (0.1, 0.2)" in told
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
