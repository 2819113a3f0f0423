"""How failures end: whatever ends one of two processes ends both, soon, with one line that says what
began it, and the last checkpoint is whole.
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.child_processes import until
from tests.run.interrupted import fit, step_of, written
from tests.run.kills import start, torn
from tests.run.nodes import TWO, Starts

# The limit counts for the meeting, too, so new programs need a longer one.
FORKED = "0:00:10"
NEW = "0:01:30"


def waiting_at_most(limit: str) -> dict:
    strategy = "lightning.pytorch.strategies.DDPStrategy"
    return {"trainer.strategy": {"class_path": strategy, "init_args": {"timeout": limit}}}


def failing(**options) -> dict:
    return {
        "trainer.callbacks": [{"class_path": "tests.faults.FailsAlone", "init_args": options}],
        "last.every_n_steps": 2,
    }


def check_resume_of_one(world: Path, run: Path) -> None:
    """In one process, to the end: three epochs of six steps."""
    assert torn(run) == []
    assert fit(world, run) == 0
    assert step_of(run) == 18


def own_lines(told: list[str]) -> list[str]:
    """What a process says of its end."""
    return [line for line in told if line.startswith("ltr") or "Traceback" in line]


def test_a_process_that_fails_is_named_by_the_other(world, tmp_path, ends):
    """In the fourth step; the checkpoint is that of the second."""
    run = tmp_path / "run"
    (code, told), (code_of_failed, told_by_failed) = ends(failing(by="memory"))
    assert (code, code_of_failed) == (2, 2), (told, told_by_failed)
    (line,) = own_lines(told_by_failed)
    assert line.startswith("ltr [rank 1]: no memory is left (")
    (line,) = own_lines(told)
    assert line.startswith("ltr: process 1 of 2 has ended: no memory is left (")
    assert line.endswith(f"; 'ltr fit {run}' resumes the run")
    assert step_of(run) == 2
    check_resume_of_one(world, run)


@pytest.mark.long
def test_a_process_that_hangs_is_named_and_ended(world, tmp_path, ends):
    """The other waits for it ten seconds, in the sum of gradients or for the scores of its lists."""
    run = tmp_path / "run"
    (code, told), (code_of_hung, told_by_hung) = ends(waiting_at_most(FORKED) | failing(by="hang"))
    assert (code, code_of_hung) == (2, 2), (told, told_by_hung)
    (line,) = own_lines(told)
    sentence = "process 1 of 2 did not come within 0:00:10 to where process 0 of 2 waited: "
    assert line.startswith(f"ltr: {sentence}")
    assert "in step 4 of training" in line and f"'ltr fit {run}' resumes the run" in line
    (line,) = own_lines(told_by_hung)
    assert line.startswith(f"ltr [rank 1]: {sentence}")
    assert "process 1 was in _fail (" in line and "tests/faults.py:" in line
    assert step_of(run) == 2
    check_resume_of_one(world, run)


def test_a_signal_to_one_process_alone_saves_and_ends_all(world, tmp_path, ends):
    """As where one machine of several is taken away: that is not the first one, which saves."""
    run = tmp_path / "run"
    ended = ends(failing(by="SIGTERM") | {"trainer.max_epochs": 400})
    assert [code for code, _ in ended] == [143, 143], ended
    (_, told), (_, told_by_other) = ended
    assert f"ended by SIGTERM; 'ltr fit {run}' resumes from" in told[-1]
    assert told_by_other == []
    assert step_of(run) >= 4 and torn(run) == []


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_to_one_process_before_training_ends_all(world, tmp_path, ends, rank):
    """Lightning's handler would begin a collective operation there, and wait for the other."""
    fault = failing(by="SIGTERM", rank=rank, within="sanity check")
    run = tmp_path / "run"
    ended = ends(fault)
    assert [code for code, _ in ended] == [143, 143], ended
    assert [own_lines(told) for _, told in ended] == [[], []]
    assert not run.exists()


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 1])
def test_a_mistake_in_one_process_is_told_with_its_traceback_once(world, tmp_path, ends, rank):
    run = tmp_path / "run"
    ended = ends(failing(by="error", rank=rank))
    assert ended[rank][0] == 1 and "RuntimeError: a mistake of my own" in ended[rank][1][-1]
    code, told = ended[1 - rank]
    assert code == 2
    (line,) = own_lines(told)
    assert f"process {rank} of 2 has ended: RuntimeError: a mistake of my own; 'ltr fit" in line
    check_resume_of_one(world, run)


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_was_killed_is_named(world, tmp_path, ends, rank):
    run = tmp_path / "run"
    ended = ends(failing(by="SIGKILL", rank=rank))
    assert ended[rank] == (-signal.SIGKILL, ended[rank][1])
    code, told = ended[1 - rank]
    assert code == 2
    (line,) = own_lines(told)
    assert f"process {1 - rank} of 2 lost the connection to process {rank} (" in line
    assert f"'ltr fit {run}' resumes the run" in line
    assert step_of(run) == 2
    check_resume_of_one(world, run)


@pytest.mark.long
def test_a_first_process_that_was_killed_is_named_before_a_launcher_ends_the_others(
    world, tmp_path, nodes: Starts
):
    """As ``srun --kill-on-bad-exit`` does, by SIGTERM: one line, and no addresses of functions."""
    run = tmp_path / "run"
    changes = TWO | waiting_at_most(NEW) | failing(by="SIGKILL", rank=0)
    file = written(world, tmp_path, changes)
    first, second = nodes(file, run, run, forked=False)
    until(lambda: first.code() is not None)
    os.kill(second.pid, signal.SIGTERM)
    code, told = second.end()
    # The last one: it was leaving already, and heard no signal any more.
    assert code in (2, 143, -signal.SIGTERM), told
    (line,) = own_lines(told)
    assert line.startswith("ltr [rank 1]: process 1 of 2 lost the connection to ")
    assert not any("frame #" in one for one in told)


@pytest.mark.long
@pytest.mark.parametrize(
    "moment",
    [
        "lightning.pytorch.Trainer._teardown",
        "ltr.cli.training.lost_connection",
        "ltr.run.together.EndWatch.find_and_tell_ending",
        "ltr.run.together.EndWatch.finish",
        "ltr.cli.program._interrupt_behind",
        "ltr.cli.program._line_for_user",
        "ltr.cli.program._tell",
    ],
)
def test_a_launcher_takes_no_process_its_line(world, tmp_path, ends, moment):
    """Whenever its SIGTERM comes to one that leaves because the first one was killed."""
    (_, (code, told)) = ends(failing(by="SIGKILL", rank=0, signalled_in=moment))
    assert code in (2, 143), told
    (line,) = own_lines(told)
    assert line.startswith("ltr [rank 1]: process 1 of 2 lost the connection to ")


@pytest.mark.long
def test_a_first_process_that_hangs_is_ended_too(world, tmp_path, ends):
    """It holds the store by which the processes know of each other, and that answers."""
    run = tmp_path / "run"
    ended = ends(waiting_at_most(FORKED) | failing(by="hang", rank=0))
    assert [code for code, _ in ended] == [2, 2], ended
    for _, told in ended:
        (line,) = own_lines(told)
        assert "process 0 of 2 did not come within 0:00:10 to where process 1 of 2 waited" in line
    check_resume_of_one(world, run)


@pytest.mark.long
@pytest.mark.parametrize(
    ("devices", "by", "hanging"),
    [
        (2, "SIGKILL", [0]),
        (3, "SIGKILL", [2]),
        (2, "hang", []),
    ],
)
def test_processes_that_lightning_has_started_end_alike(world, tmp_path, devices, by, hanging):
    """In one group, started by the first; each of them is gone afterwards."""
    several = {"trainer.devices": devices} | waiting_at_most(NEW)
    run = tmp_path / "run"
    file = written(world, tmp_path, several | failing(by=by, hanging=hanging))
    output = tmp_path / "output"
    environment = {name: value for name, value in os.environ.items() if name != "LTR_DEBUG"}
    with open(output, "w") as told:
        job = subprocess.Popen(
            [sys.executable, "-m", "ltr", *start(run, file)],
            stdout=told,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    try:
        assert job.wait() == 2, output.read_text()
        lines = own_lines(output.read_text().splitlines())
        named = {
            "SIGKILL": f"process 1 of {devices} was ended by SIGKILL; its own output or the log ",
            "hang": f"process 1 of 2 did not come within {NEW} to where process 0 of 2 waited",
        }[by]
        speaker = "ltr [rank 0]" if 0 in hanging else "ltr"
        assert sum(line.startswith(f"{speaker}: {named}") for line in lines) == 1, lines
        assert not any("lost the connection" in line for line in lines)
        assert not any("Traceback" in line for line in lines)
        until(lambda: not _is_there(job.pid))
        check_resume_of_one(world, run)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)


@pytest.mark.long
def test_a_started_process_that_crashes_behind_its_end_ends_nothing(world, tmp_path):
    crashed = tmp_path / "crashed"
    fault = {"class_path": "tests.faults.CrashesAtExit", "init_args": {"file": str(crashed)}}
    two = {"trainer.devices": 2, "trainer.callbacks": [fault]}
    run = tmp_path / "run"
    file = written(world, tmp_path, two)
    job = subprocess.run([sys.executable, "-m", "ltr", *start(run, file)])
    assert job.returncode == 0 and crashed.exists() and step_of(run) == 18


def _is_there(group: int) -> bool:
    """Whether a process of a group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A folder on a disk of a megabyte, which only root can make."""
    folder = tmp_path / "disk"
    folder.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, b"size=1m") != 0:
        pytest.skip("no disk can be mounted here")
    yield folder
    libc.umount2(os.fsencode(folder), 2)  # MNT_DETACH


@pytest.mark.long
def test_a_full_disk_ends_all_and_leaves_the_checkpoint(world, tmp_path, ends, small_disk):
    """It is full from the fourth step on: the checkpoint of that step is not written, and that of the
    second stays.
    """
    filler = small_disk / "filler"
    full = {"class_path": "tests.faults.FillsDisk", "init_args": {"file": str(filler), "step": 3}}
    changes = {"trainer.callbacks": [full], "last.every_n_steps": 2}
    run = small_disk / "run"
    (code, told), (code_of_other, told_by_other) = ends(changes, runs=(run, run))
    assert (code, code_of_other) == (2, 2), (told, told_by_other)
    line = own_lines(told)[-1]
    assert line.startswith("ltr: ") and "is full (No space left on device)" in line
    (line,) = own_lines(told_by_other)
    assert line.startswith("ltr [rank 1]: process 0 of 2 has ended: the disk of ")
    assert step_of(run) == 2
    filler.unlink()
    check_resume_of_one(world, run)
