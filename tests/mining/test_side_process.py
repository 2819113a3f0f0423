"""A refresh in a process of its own, with a stand-in for the process."""

import os
import subprocess

import pytest
import torch

from ltr.errors import ENDED_BY_RUN, InputError
from ltr.mining.side_process import SideProcess


class StandIn:
    """A process whose exit code the test sets; None while it runs."""

    def __init__(self, command, *, env, **files):
        self.command = command
        self.env = env
        self.code = None
        self.is_ended = False

    def poll(self):
        return self.code

    def send_signal(self, number):
        self.is_ended = number == ENDED_BY_RUN

    def wait(self):
        assert self.is_ended, "nobody waits for a process that was not ended"


CPU = torch.device("cpu")


def started(root, device=CPU):
    side = SideProcess()
    weights = {"w": torch.ones(2)}
    side.start(root / "config.yaml", weights, 4, "2.0", root / "negatives/step=4", device)
    return side, side._process


@pytest.fixture
def root(tmp_path, monkeypatch):
    """The folder of a run."""
    monkeypatch.setattr(subprocess, "Popen", StandIn)
    for name, value in (("WORLD_SIZE", "2"), ("LOCAL_RANK", "0"), ("KEPT", "yes")):
        monkeypatch.setenv(name, value)
    (tmp_path / "config.yaml").write_text("seed_everything: 1\n")
    return tmp_path


@pytest.fixture
def side(root):
    """A process that was started, and its stand-in; an earlier run has left its folder."""
    (root / "negatives/step=4").mkdir(parents=True)
    (root / "negatives/step=4/old").touch()
    return started(root)


def test_it_mines_alone_with_a_copy_of_the_weights_into_a_new_folder(side, tmp_path):
    side, process = side
    folder = tmp_path / "negatives/step=4"
    weights = tmp_path / "negatives/beside/weights.ckpt"
    assert process.command[1:5] == ["-m", "ltr.cli.process", str(os.getpid()), "mine"]
    options = dict(zip(process.command[5::2], process.command[6::2], strict=True))
    assert options["--output"] == str(folder) and options["--ckpt_path"] == str(weights)
    assert options["--trainer.devices"] == "1"
    assert "WORLD_SIZE" not in process.env and "LOCAL_RANK" not in process.env
    assert process.env["KEPT"] == "yes"
    checkpoint = torch.load(weights, weights_only=True)
    assert checkpoint["state_dict"]["w"].tolist() == [1, 1] and checkpoint["global_step"] == 4
    assert not folder.exists(), "that of an earlier run is gone"


def test_on_a_gpu_it_takes_that_of_the_training(root):
    _, process = started(root, torch.device("cuda", 3))
    command = process.command
    assert command[command.index("--trainer.devices") + 1] == "[3]", "1 would be the first one"


def test_it_is_done_when_the_folder_is_there_or_the_process_has_ended_well(side):
    side, process = side
    assert not side.is_done()
    side.folder.mkdir()
    assert side.is_done(), "though the process has not ended"
    side.folder.rmdir()
    process.code = 0
    assert side.is_done()
    side.folder.mkdir()
    process.code = 134
    assert side.is_done(), "though it has failed after its work"


@pytest.mark.parametrize(
    ("log", "line"), [("first\nlast line\n", "last line"), ("", "it said nothing")]
)
def test_a_failure_tells_the_last_line_of_the_log(side, tmp_path, log, line):
    side, process = side
    (tmp_path / "negatives/beside/mine.log").write_text(log)
    process.code = 2
    with pytest.raises(InputError, match=rf"ended with code 2: {line} \(.*mine.log\)"):
        side.is_done()


def test_the_end_ends_it_and_removes_the_copy(side, tmp_path):
    side, process = side
    side.end()
    assert process.is_ended and side.folder is None
    assert not (tmp_path / "negatives/beside/weights.ckpt").exists()
    side.end()  # nothing is left to end


def test_a_run_without_a_configuration_is_refused(tmp_path):
    with pytest.raises(InputError, match="needs .*config.yaml; start the run by ltr fit"):
        started(tmp_path)
