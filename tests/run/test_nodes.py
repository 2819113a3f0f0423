"""A run on two nodes: real processes that a launcher has started, by the variables of SLURM."""

import os
import signal

import pytest

from tests.run.interrupted import fit, slow, step_of
from tests.run.kills import torn
from tests.run.nodes import TWO, until_written


@pytest.mark.long
def test_a_resume_on_nodes_without_a_common_folder_is_refused_on_all(world, tmp_path, ends):
    """The first would go on at step 6, the second begin: both with wrong weights."""
    one = tmp_path / "one/run"
    other = tmp_path / "other/run"
    assert fit(world, one, {"trainer.max_epochs": 1}) == 0
    before = (one / "checkpoints/last.ckpt").read_bytes()
    ended = ends({}, runs=(one, other))
    for number, (code, told) in enumerate(ended):
        assert code == 2, told
        assert "must be one folder that all processes of a run see" in told[-1]
        assert f"process {number} of 2 does not see" in told[-1]
    assert len(ended[1][1]) == 1 and ended[1][1][0].startswith("ltr [rank 1]: ")
    assert not other.parent.exists()
    assert (one / "checkpoints/last.ckpt").read_bytes() == before


@pytest.mark.long
def test_a_finished_run_on_nodes_without_a_common_folder_ends_on_all(world, tmp_path, ends):
    """And so does a start that is refused: the second would wait for the first."""
    one = tmp_path / "one/run"
    assert fit(world, one) == 0
    ended = ends({}, runs=(one, tmp_path / "other/run"))
    assert [code for code, _ in ended] == [0, 0], ended
    assert "nothing to do, nothing changed" in ended[0][1][-1]


def waiting_nodes(world, tmp_path, nodes, every_n_steps: int) -> list:
    """Two processes in the fourth step."""
    file = slow(world, tmp_path, "step", TWO | {"last.every_n_steps": every_n_steps})
    both = nodes(file, tmp_path / "run", tmp_path / "run")
    until_written(tmp_path / "waits", both)
    return both


@pytest.mark.long
@pytest.mark.parametrize("killed", [0, 1])
def test_a_process_whose_peer_was_killed_ends_with_one_line(world, tmp_path, nodes, killed):
    run = tmp_path / "run"
    both = waiting_nodes(world, tmp_path, nodes, 2)
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
    run = tmp_path / "run"
    both = waiting_nodes(world, tmp_path, nodes, 500)
    for node in both:
        os.kill(node.pid, signal.Signals[by])
    ended = [node.end() for node in both]
    assert [came for came, _ in ended] == [code, code], ended
    assert f"'ltr fit {run}' resumes" in ended[0][1][-1] and ended[1][1] == []
    # One process waits behind the fourth backward pass, maybe not the first: then that one is in
    # the fifth step already.
    assert step_of(run) in (4, 5)
