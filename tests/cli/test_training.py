"""The command line, in this process; what needs real processes is in test_checkpoints.py and
test_ranks.py.
"""

import csv
import math
import time

import pytest
import pytrec_eval
import torch
import yaml

from ltr.__main__ import main
from ltr.data.trec import read_qrels, read_run
from tests.world.configurations import write_config
from tests.world.runs import losses, metrics


def test_fit_then_validate_and_test(config, tmp_path, collection_folder):
    run = tmp_path / "run"
    assert main(["fit", "--config", str(config)]) == 0
    fitted = metrics(run)
    assert [v["epoch"] for v in fitted["validations"]] == [0, 1] and fitted["fit"]["steps"] == 16
    best = max(fitted["validations"], key=lambda v: v["nDCG@10"])
    assert best["nDCG@10"] > 0.6  # the tiny world can be learnt: chance is about 0.45
    assert (run / "train.log").read_text().count("tokenis") <= 2

    assert (
        main(
            [
                "validate",
                "--config",
                str(run / "config.yaml"),
                "--ckpt_path",
                str(run / "checkpoints/best.ckpt"),
            ]
        )
        == 0
    )
    validated = metrics(run)["validate"]
    for name in ("nDCG@10", "RR@10", "AP", "swapped_pairs"):
        assert validated[name] == pytest.approx(best[name], abs=1e-6)
    assert "gain = grade" in validated["conventions"]["nDCG@10"]

    assert main(["test", "--config", str(run / "config.yaml"), "--ckpt_path", "best"]) == 0
    tested = metrics(run)["test"]
    qrels: dict = {}
    for _, j in read_qrels(collection_folder / "qrels/test.tsv"):
        qrels.setdefault(j.query, {})[j.doc] = j.grade
    ranked: dict = {}
    for _, r in read_run(run / "test.run"):
        ranked.setdefault(r.query, {})[r.doc] = r.score
    oracle = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut_10", "map"}).evaluate(ranked)
    assert tested["queries"] == len(oracle) == 30
    assert tested["nDCG@10"] == pytest.approx(
        sum(v["ndcg_cut_10"] for v in oracle.values()) / 30, abs=1e-6
    )
    assert tested["AP"] == pytest.approx(sum(v["map"] for v in oracle.values()) / 30, abs=1e-6)
    per_query = list(csv.DictReader(open(run / "per_query.tsv"), delimiter="\t"))
    assert {r["query"]: float(r["nDCG@10"]) for r in per_query} == pytest.approx(
        {q: v["ndcg_cut_10"] for q, v in oracle.items()}, abs=1e-6
    )

    assert main(["predict", "--config", str(run / "config.yaml"), "--ckpt_path", "best"]) == 0
    assert list(read_run(run / "predict.run")) == list(read_run(run / "test.run"))
    # A trial measures a part, and takes the place of nothing.
    results = {
        name: (run / name).read_bytes()
        for name in ("metrics.json", "test.run", "per_query.tsv", "predict.run")
    }
    for command in ("test", "predict"):
        trial = ["--ckpt_path", "best", "--trainer.fast_dev_run", "true"]
        assert main([command, "--config", str(run / "config.yaml"), *trial]) == 0
    assert results == {name: (run / name).read_bytes() for name in results}
    checkpoint = torch.load(run / "checkpoints/best.ckpt", weights_only=True)
    assert checkpoint["hyper_parameters"]["loss"]["class_path"] == "ltr.losses.SoftmaxLoss"


def test_a_checkpoint_rebuilds_its_module(config, tmp_path):
    from ltr.module import RankerModule

    assert main(["fit", "--config", str(config), "--trainer.max_epochs", "1"]) == 0
    module = RankerModule.load_from_checkpoint(
        tmp_path / "run/checkpoints/last.ckpt", weights_only=True
    )
    assert (
        type(module.loss).__name__ == "SoftmaxLoss"
        and module.lr == 0.01
        and module.ranker.reads.max_length == 24
    )


def test_one_seed_gives_one_loss_curve_and_another_seed_another(config, tmp_path):
    curves = []
    for number, seed in enumerate((3, 3, 4)):
        run = tmp_path / f"run{number}"
        options = ["--seed_everything", str(seed), "--trainer.default_root_dir", str(run)]
        assert main(["fit", "--config", str(config), *options]) == 0
        curves.append(losses(run))
    assert len(curves[0]) == 16 and curves[0] == curves[1] != curves[2]


def test_config_files_layer_and_print_config_runs_nothing(config, tmp_path, capsys):
    layer = tmp_path / "layer.yaml"
    layer.write_text(
        "model: {loss: {class_path: ltr.losses.RankNetLoss, init_args: {sigma: 2.0}}}\ntrainer: {max_epochs: 7}\n"
    )
    with pytest.raises(SystemExit) as stopped:
        main(
            [
                "fit",
                "--config",
                str(config),
                "--config",
                str(layer),
                "--data.init_args.batch_size",
                "5",
                "--print_config",
            ]
        )
    printed = yaml.safe_load(capsys.readouterr().out)
    assert stopped.value.code == 0 and not (tmp_path / "run").exists()
    assert printed["model"]["loss"]["init_args"]["sigma"] == 2.0 and printed["model"]["lr"] == 0.01
    assert printed["trainer"]["max_epochs"] == 7 and printed["data"]["init_args"]["batch_size"] == 5


def test_the_run_folder_is_named_by_experiment_and_seed(
    tmp_path, backbone, collection_folder, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "experiments/family"
    folder.mkdir(parents=True)
    config = write_config(
        folder,
        backbone,
        collection_folder,
        **{"trainer.default_root_dir": None, "trainer.max_steps": 1},
    )
    config.rename(folder / "one.yaml")
    assert main(["fit", "--config", "experiments/family/one.yaml", "--seed_everything", "5"]) == 0
    run = tmp_path / "runs/family/one/seed=5"
    # A file of that name is no folder of experiments.
    (folder / "one.yaml").rename("experiments.yaml")
    assert main(["fit", "--config", "experiments.yaml", "--seed_everything", "5"]) == 0
    assert (tmp_path / "runs/experiments/seed=5/config.yaml").is_file()
    assert {"config.yaml", "checkpoints", "metrics.json", "logs", "train.log"} <= {
        p.name for p in run.iterdir()
    }


def test_weights_and_biases_by_one_flag_and_offline_without_a_key(config, tmp_path, monkeypatch):
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-such-netrc"))
    assert (
        main(["fit", "--config", str(config), "--trainer.max_steps", "2", "--wandb", "tests"]) == 0
    )
    known = (tmp_path / "run/wandb/run-id").read_text()
    assert len(list((tmp_path / "run/wandb").glob(f"offline-run-*-{known}"))) == 1
    assert "no key found" in (tmp_path / "run/train.log").read_text()
    logged = yaml.safe_load((tmp_path / "run/logs/version_0/hparams.yaml").read_text())
    assert logged["model"]["lr"] == 0.01 and logged["data"]["init_args"]["batch_size"] == 4

    time.sleep(1.1)  # folders are named by the second
    assert (
        main(["fit", str(tmp_path / "run"), "--trainer.max_steps", "4"]) == 0
    )  # a resumed run is the same run there
    assert (tmp_path / "run/wandb/run-id").read_text() == known
    assert len(list((tmp_path / "run/wandb").glob(f"offline-run-*-{known}"))) == 2


def test_a_key_is_found_where_wandb_keeps_it(tmp_path, monkeypatch):
    from ltr.run.loggers import has_wandb_key

    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_BASE_URL", raising=False)
    file = tmp_path / "netrc"
    monkeypatch.setenv("NETRC", str(file))
    assert not has_wandb_key()
    file.write_text("machine api.wandb.ai login user password abc\n")
    file.chmod(0o600)
    assert has_wandb_key()
    file.unlink()
    monkeypatch.setenv("WANDB_API_KEY", "abc")
    assert has_wandb_key()


def test_training_without_a_dev_split(tmp_path, backbone, capsys):
    file = tmp_path / "train.tsv"
    file.write_text("".join(f"w{i} w5\tw{i} w{i}\tw{i + 1} w3\tw{i + 2} w4\n" for i in range(20)))
    config = write_config(tmp_path, backbone, file, **{"last.every_n_steps": 1000})
    run = tmp_path / "run"
    assert main(["fit", "--config", str(config)]) == 0
    last = torch.load(run / "checkpoints/last.ckpt", weights_only=True)
    assert last["global_step"] == metrics(run)["fit"]["steps"] == 10
    assert [file.name for file in (run / "checkpoints").iterdir()] == ["last.ckpt"]
    assert "last.ckpt has the weights" in capsys.readouterr().out
    (tmp_path / "test").mkdir()
    (tmp_path / "test/test.tsv").write_text(file.read_text())
    assert (
        main(
            [
                "test",
                str(run),
                "--data.path",
                str(tmp_path / "test"),
                "--data.evaluation.candidates",
                "bm25",
                "--data.evaluation.depth",
                "5",
            ]
        )
        == 0
    )
    assert "there is no best.ckpt; taking last.ckpt" in capsys.readouterr().err
    assert metrics(run)["test"]["checkpoint"].endswith("last.ckpt")


def test_weights_that_diverged_pass_for_nothing(config, tmp_path, capsys, monkeypatch):
    """Without a validation, nobody else sees it."""
    monkeypatch.delenv("LTR_DEBUG", raising=False)
    run = tmp_path / "run"
    output = tmp_path / "made"
    assert (
        main(
            [
                "fit",
                "--config",
                str(config),
                "--model.lr",
                "1e30",
                "--trainer.limit_val_batches",
                "0",
            ]
        )
        == 2
    )
    text = "the model has diverged; lower its learning rate (option model.lr)"
    assert (
        capsys.readouterr().err.splitlines()[-1]
        == f"ltr: training has made weights NaN or infinite: {text}"
    )
    assert not list(run.rglob("*.ckpt"))
    assert (
        main(
            [
                "fit",
                "--config",
                str(config),
                "--trainer.limit_val_batches",
                "0",
                "--trainer.max_steps",
                "3",
            ]
        )
        == 0
    )
    last = run / "checkpoints/last.ckpt"
    kept = torch.load(last, weights_only=True)
    kept["state_dict"]["ranker.head.weight"].fill_(math.nan)
    torch.save(kept, last)
    (tmp_path / "docs.txt").write_text("w1\nw2\n")
    for words in (
        ["predict", str(run)],
        ["rank", str(run), "--query", "w1", "--documents", str(tmp_path / "docs.txt")],
        [
            "score",
            str(run),
            "--data",
            yaml.safe_load(config.read_text())["data"]["init_args"]["path"],
            "--output",
            str(output),
        ],
        ["export", str(run), str(output)],
    ):
        assert main(words) == 2
        assert "NaN" in (told := capsys.readouterr().err) and "the model has diverged" in told, (
            words
        )
    assert not (run / "predict.run").exists() and not output.exists()


def test_what_measures_nothing_is_no_measurement(config, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("LTR_DEBUG", raising=False)
    assert (
        main(
            [
                "fit",
                "--config",
                str(config),
                "--trainer.limit_val_batches",
                "0",
                "--trainer.max_steps",
                "3",
            ]
        )
        == 0
    )
    assert main(["test", str(tmp_path / "run")]) == 0  # whose results are not those of the next one
    for command, option in (("validate", "val"), ("test", "test")):
        assert main([command, str(tmp_path / "run"), "--trainer.limit_test_batches", "0"]) == 2
        text = (
            f"ltr: ltr {command} must read batches to measure anything, and has read none; raise it"
        )
        assert (
            capsys.readouterr().err.splitlines()[-1]
            == f"{text} (option trainer.limit_{option}_batches)"
        )


def test_a_run_s_configuration_used_elsewhere_writes_there(config, tmp_path):
    assert main(["fit", "--config", str(config), "--trainer.max_steps", "3"]) == 0
    before = (tmp_path / "run/checkpoints/last.ckpt").stat().st_mtime_ns
    elsewhere = ["--trainer.default_root_dir", str(tmp_path / "other"), "--trainer.max_steps", "3"]
    assert main(["fit", "--config", str(tmp_path / "run/config.yaml"), *elsewhere]) == 0
    assert (tmp_path / "run/checkpoints/last.ckpt").stat().st_mtime_ns == before
    assert (tmp_path / "other/checkpoints/last.ckpt").is_file()


def test_one_callback_needs_no_list(config):
    assert (
        main(
            [
                "fit",
                "--config",
                str(config),
                "--trainer.max_steps",
                "1",
                "--trainer.callbacks",
                "ltr.callbacks.Health",
            ]
        )
        == 0
    )


def test_a_quiet_run_says_what_it_is_and_where_it_lies(config, tmp_path):
    """From start to end in a process without a terminal: few lines, no other product, no
    deprecations.
    """
    from tests.run.kills import Child

    output = tmp_path / "output"
    assert Child(["fit", "--config", str(config)], output).end() == 0
    lines = output.read_text().strip().splitlines()
    assert len(lines) <= 20
    assert lines[-1].startswith("trained 16 steps in ") and lines[-1].endswith(
        f"next: ltr test {tmp_path / 'run'}"
    )
    for word in (
        "litlogger",
        "Tip",
        "deprecat",
        "warn",
        "GPU available",
        "total length",
        "Total length",
    ):
        assert word not in output.read_text()


def test_progress_without_a_terminal(config, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("ltr.data.progress.EVERY", 0.0)
    assert main(["fit", "--config", str(config)]) == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if line.startswith("step 4 of 16, epoch 1: ")]
    assert " steps/s, loss " in line and line.endswith(" of training left")
    assert line in (tmp_path / "run/train.log").read_text()
    assert main(["test", str(tmp_path / "run")]) == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if line.startswith("testing: 1 of ")]
    assert " batches/s, " in line and line.endswith(" left")
