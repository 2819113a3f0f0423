"""Which weights a command starts from: what is resumed, measured, and refused."""

import torch

from ltr.__main__ import main
from tests.cli.configured import config, metrics  # noqa: F401


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
