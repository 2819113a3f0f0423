"""A run on two nodes: real processes that a launcher has started, by the variables of SLURM."""

import os
import signal

import pytest
import torch

from ltr.__main__ import main
from tests.run.interrupted import _slow, _written
from tests.run.kills import start, torn
from tests.run.nodes import TWO, until_written


@pytest.mark.long
def test_a_resume_on_nodes_without_a_common_folder_is_refused_on_all(world, tmp_path, nodes):
    """The first would go on at step 6, the second begin: both with wrong weights."""
    one = tmp_path / "one/run"
    other = tmp_path / "other/run"
    assert main(start(one, _written(world, one.parent, **{"trainer.max_epochs": 1}))) == 0
    before = (one / "checkpoints/last.ckpt").read_bytes()
    ended = [node.end() for node in nodes(_written(world, tmp_path / "job", **TWO), one, other)]
    for number, (code, told) in enumerate(ended):
        assert code == 2, told
        assert "must be one folder that all processes of a run see" in told[-1]
        assert f"process {number} of 2 does not see" in told[-1]
    assert len(ended[1][1]) == 1 and ended[1][1][0].startswith("ltr [rank 1]: ")
    assert not other.parent.exists()
    assert (one / "checkpoints/last.ckpt").read_bytes() == before


@pytest.mark.long
def test_a_finished_run_on_nodes_without_a_common_folder_ends_on_all(world, tmp_path, nodes):
    """And so does a start that is refused: the second would wait for the first."""
    one = tmp_path / "one/run"
    assert main(start(one, _written(world, one.parent))) == 0
    file = _written(world, tmp_path / "job", **TWO)
    ended = [node.end() for node in nodes(file, one, tmp_path / "other/run")]
    assert [code for code, _ in ended] == [0, 0], ended
    assert "nothing to do, nothing changed" in ended[0][1][-1]


@pytest.mark.long
@pytest.mark.parametrize("killed", [0, 1])
def test_a_process_whose_peer_was_killed_ends_with_one_line(world, tmp_path, nodes, killed):
    file = _slow(world, tmp_path / "job", "step", **TWO, **{"last.every_n_steps": 2})
    run = file.parent / "run"
    both = nodes(file, run, run)
    until_written(file.with_name("waits"), both)
    os.kill(both[killed].pid, signal.SIGKILL)
    code, told = both[1 - killed].end()
    assert code == 2, told
    assert f"process {1 - killed} of 2 lost the connection to process {killed} (" in told[-1]
    assert f"'ltr fit {run}' resumes the run" in told[-1]
    assert len([line for line in told if "lost" in line or "Traceback" in line]) == 1
    assert torn(run) == []


@pytest.mark.long
@pytest.mark.parametrize(("by", "code"), [("SIGTERM", 143), ("SIGUSR1", 138)])
def test_a_signal_to_all_nodes_ends_all_with_its_code(world, tmp_path, nodes, by, code):
    file = _slow(world, tmp_path / "job", "step", **TWO, **{"last.every_n_steps": 500})
    run = file.parent / "run"
    both = nodes(file, run, run)
    until_written(file.with_name("waits"), both)
    for node in both:
        os.kill(node.pid, signal.Signals[by])
    ended = [node.end() for node in both]
    assert [came for came, _ in ended] == [code, code], ended
    assert f"'ltr fit {run}' resumes" in ended[0][1][-1] and ended[1][1] == []
    # One process waits behind the fourth backward pass, maybe not the first: then that one is in
    # the fifth step already.
    last = torch.load(run / "checkpoints/last.ckpt", weights_only=True)
    assert last["global_step"] in (4, 5)
