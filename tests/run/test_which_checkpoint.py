"""Which weights a command starts from: what is resumed, measured, and refused."""

import torch

from ltr.__main__ import main
from tests.cli.conftest import config  # noqa: F401  # a fixture
from tests.world.runs import metrics


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
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert f"{tmp_path / 'other.ckpt'}: the checkpoint is damaged, or does not fit" in said


def test_a_checkpoint_that_does_not_say_where_its_run_stands_is_not_resumed(
    config, tmp_path, capsys, monkeypatch
):
    """In one line, where Lightning would fail on the way."""
    monkeypatch.delenv("LTR_DEBUG", raising=False)
    assert main(["fit", "--config", str(config), "--trainer.max_steps", "3"]) == 0
    last = tmp_path / "run/checkpoints/last.ckpt"
    whole = torch.load(last)
    epochs = {"epoch_progress": {"current": {"processed": None}}}
    for change, text in (
        ({"loops": {}}, "loops.fit_loop must be there, and is not"),
        ({"loops": {"fit_loop": epochs}}, "epoch_progress.current.processed must be a whole"),
        ({"optimizer_states": {"a": 1}}, "optimizer_states must be a list"),
        ({"global_step": None}, "global_step must be a whole number, got null"),
    ):
        torch.save(whole | change, last)
        capsys.readouterr()
        assert main(["fit", str(tmp_path / "run")]) == 2
        line = capsys.readouterr().err.strip().splitlines()[-1]
        assert f"{last}: the file is damaged, " in line
        assert text in line


def test_a_state_that_can_t_be_restored_is_one_line(config, tmp_path, capsys, monkeypatch):
    """Of parts whose entries only the part itself knows: of callbacks, of the data module, and of
    Lightning.
    """
    monkeypatch.delenv("LTR_DEBUG", raising=False)
    assert main(["fit", "--config", str(config), "--trainer.max_steps", "3"]) == 0
    last = tmp_path / "run/checkpoints/last.ckpt"
    whole = torch.load(last)
    callbacks = whole["callbacks"]
    (name,) = [name for name in whole if name.endswith("DataModule")]
    data = whole[name]
    for change, text in (
        ({"pytorch-lightning_version": "x"}, "(InvalidVersion: Invalid version: 'x')"),
        ({"callbacks": callbacks | {"Checkpoints": {1: 2}}}, "Checkpoints: the file is damaged, "),
        ({name: data | {"per_step": [1]}}, f"{name}: the file is damaged, per_step must be a"),
        (
            {name: data | {"kept": []}},
            "the checkpoint must keep 8 batches that hold 30 rows around",
        ),
        ({name: data | {"steps": 99}}, "the checkpoint comes from epochs of 99 steps"),
    ):
        torch.save(whole | change, last)
        capsys.readouterr()
        assert main(["fit", str(tmp_path / "run"), "--trainer.max_steps", "4"]) == 2
        line = capsys.readouterr().err.strip().splitlines()[-1]
        assert line.startswith(f"ltr: --ckpt_path {last}: ")
        assert text in line


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


def test_a_resume_with_smaller_steps_says_how_to_write_them(config, tmp_path, capsys, monkeypatch):
    """Two processes with batch_size 2 each: a step has 4 lists."""
    monkeypatch.delenv("LTR_DEBUG", raising=False)
    fit = ["fit", "--config", str(config), "--ckpt_path", "last"]
    assert main([*fit, "--trainer.max_steps", "3"]) == 0
    file = tmp_path / "run/checkpoints/last.ckpt"
    assert torch.load(file, weights_only=True)["TripletDataModule"]["per_step"] == 4
    capsys.readouterr()
    assert main([*fit, "--data.init_args.batch_size", "2"]) == 2
    assert (
        "the checkpoint comes from steps of 4 lists, here they have 2; batch_size counts the lists of all processes: set it to 4"
        in capsys.readouterr().err.splitlines()[-1]
    )
    assert main([*fit, "--data.init_args.batch_size", "4", "--trainer.max_steps", "5"]) == 0
    assert torch.load(file, weights_only=True)["global_step"] == 5


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
        "the checkpoint comes from steps of 4 lists, here they have 8; batch_size counts the lists of all processes: set it to 4"
        in capsys.readouterr().err.splitlines()[-1]
    )
