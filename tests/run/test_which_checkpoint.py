"""Which weights a command starts from: what is resumed, measured, and refused."""

from pathlib import Path

import pytest
import torch

from ltr.__main__ import main
from tests.cli.conftest import config  # noqa: F401  # a fixture
from tests.run.interrupted import step_of
from tests.world.runs import metrics


@pytest.fixture
def run(copied_run, tmp_path) -> Path:
    """A run of 4 steps that was tested."""
    return copied_run(tmp_path, "cross")


def refusal(capsys, *words: object) -> str:
    """The line that a command ends with."""
    capsys.readouterr()
    assert main([str(word) for word in words]) == 2
    return capsys.readouterr().err.strip().splitlines()[-1]


OF_ANOTHER_MODEL = {
    "state_dict": {"x": torch.zeros(1)},
    "pytorch-lightning_version": "2.6.0",
    "loops": {},
}


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"PK\x03\x04 torn", "the checkpoint can't be read"),
        (b"hello", "the checkpoint can't be read"),
        ({"weights": 1}, "no Lightning checkpoint"),
        (OF_ANOTHER_MODEL, "{file}: the checkpoint is damaged, or does not fit"),
    ],
)
def test_what_is_no_checkpoint_of_this_model_is_one_line(config, tmp_path, capsys, content, line):
    file = tmp_path / "other.ckpt"
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        torch.save(content, file)
    said = refusal(capsys, "test", "--config", config, "--ckpt_path", file)
    assert line.format(file=file) in said


def test_a_checkpoint_that_does_not_say_where_its_run_stands_is_not_resumed(run, capsys):
    """In one line, where Lightning would fail on the way."""
    last = run / "checkpoints/last.ckpt"
    whole = torch.load(last)
    epochs = {"epoch_progress": {"current": {"processed": None}}}
    for change, text in (
        ({"loops": {}}, "loops.fit_loop must be there, and is not"),
        ({"loops": {"fit_loop": epochs}}, "epoch_progress.current.processed must be a whole"),
        ({"optimizer_states": {"a": 1}}, "optimizer_states must be a list"),
        ({"global_step": None}, "global_step must be a whole number, got null"),
    ):
        torch.save(whole | change, last)
        line = refusal(capsys, "fit", run)
        assert f"{last}: the file is damaged, " in line and text in line


def test_a_state_that_can_t_be_restored_is_one_line(run, capsys):
    """Of parts whose entries only the part itself knows: of callbacks, of the data module, and of
    Lightning.
    """
    last = run / "checkpoints/last.ckpt"
    whole = torch.load(last)
    callbacks = whole["callbacks"]
    (name,) = [name for name in whole if name.endswith("DataModule")]
    data = whole[name]
    for change, text in (
        ({"pytorch-lightning_version": "x"}, "(InvalidVersion: Invalid version: 'x')"),
        ({"callbacks": callbacks | {"Checkpoints": {1: 2}}}, "Checkpoints: the file is damaged, "),
        ({name: data | {"per_step": [1]}}, f"{name}: the file is damaged, per_step must be a"),
        ({name: data | {"kept": []}}, "checkpoint must keep 8 batches that hold 30 rows around"),
        ({name: data | {"steps": 99}}, "the checkpoint comes from epochs of 99 steps"),
    ):
        torch.save(whole | change, last)
        line = refusal(capsys, "fit", run, "--trainer.max_steps", 5)
        assert line.startswith(f"ltr: --ckpt_path {last}: ") and text in line


def test_a_run_is_not_overwritten(config, run, capsys):
    before = (run / "checkpoints/last.ckpt").read_bytes()
    assert "already holds a run" in refusal(capsys, "fit", "--config", config)
    assert (run / "checkpoints/last.ckpt").read_bytes() == before


def test_trained_weights_are_asked_for_and_untrained_ones_do_not_pass_for_them(
    config,
    tmp_path,
    capsys,
):
    run = tmp_path / "run"
    assert main(["test", "--config", str(config)]) == 0
    assert "not trained ones" in (run / "train.log").read_text()
    assert (run / "test.run").is_file()
    assert main(["fit", "--config", str(config), "--trainer.max_steps", "3"]) == 0
    # Nothing of the untrained weights stands beside the trained ones.
    assert "test" not in metrics(run) and not (run / "test.run").exists()
    line = refusal(capsys, "test", "--config", run / "config.yaml")
    assert "say which to take (--ckpt_path best or last)" in line


def test_a_resume_with_other_steps_says_how_to_write_them(run, capsys):
    """Two processes with batch_size 2 each: a step has 4 lists."""
    assert torch.load(run / "checkpoints/last.ckpt")["TripletDataModule"]["per_step"] == 4
    more = ("--trainer.max_steps", "5", "--data.init_args.batch_size")
    for size in (2, 8):
        line = refusal(capsys, "fit", run, *more, size)
        assert f"the checkpoint comes from steps of 4 lists, here they have {size}; " in line
        assert "batch_size counts the lists of all processes: set it to 4" in line
    assert main(["fit", str(run), *more, "4"]) == 0 and step_of(run) == 5
