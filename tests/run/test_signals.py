"""Ctrl-C, SIGTERM and a closed terminal, at every moment of a run."""

import errno
import io
import os
import shutil
import signal
import threading

import pytest
import yaml

from ltr.__main__ import main
from ltr.data.whole_files import write_whole
from ltr.errors import ENDING_SIGNALS
from ltr.run import checkpoints
from ltr.run.signals import Signals, _write_to_terminal
from tests.child_processes import until
from tests.run.interrupted import (
    VALIDATED,
    check_is_whole,
    check_resume,
    fit,
    last_of,
    slow,
    step_of,
    uninterrupted,
    written,
)
from tests.run.kills import Child, start, torn, waiting
from tests.run.resumes import AVERAGE, differences


@pytest.fixture(autouse=True)
def handlers_from_before():
    """Lightning leaves Ctrl-C ignored behind an interrupted run."""
    before = {known: signal.getsignal(known) for known in ENDING_SIGNALS}
    yield
    for known, handler in before.items():
        signal.signal(known, handler)


def signalled(**options) -> dict:
    return {"trainer.callbacks": [{"class_path": "tests.faults.SignalAt", "init_args": options}]}


# Each signal at one moment, SIGUSR1 further below; those with workers start two processes more.
LONG = pytest.mark.long


@pytest.mark.parametrize(
    ("by", "code", "workers", "within"),
    [
        pytest.param(signal.SIGKILL, -9, 2, "step", marks=LONG),
        (signal.SIGKILL, -9, 0, "validation"),
        (signal.SIGTERM, 143, 2, "step"),
        pytest.param(signal.SIGTERM, 143, 0, "validation", marks=LONG),
        pytest.param(signal.SIGINT, 130, 2, "step", marks=LONG),
        (signal.SIGINT, 130, 0, "validation"),
        pytest.param(signal.SIGHUP, 129, 2, "step", marks=LONG),
        (signal.SIGHUP, 129, 0, "validation"),
        pytest.param(signal.SIGUSR1, 138, 2, "step", marks=LONG),
    ],
)
def test_a_signal_in_a_step_or_a_validation(world, tmp_path, by, code, workers, within):
    """To the whole group, as terminals and clusters send it: data workers get it too."""
    changes = {"data.init_args.loading.num_workers": workers, "last.every_n_steps": 2}
    file = slow(world, tmp_path, within, changes)
    run = tmp_path / "run"
    child = Child(start(run, file), tmp_path / "output")
    child.until(tmp_path / "waits")
    child.send(by)
    came = child.end()
    output = (tmp_path / "output").read_text()
    assert came == code, output
    # Killed, it has what was there: after the third step comes a validation. Asked, it finishes the
    # fourth step, or leaves that validation to the resumed run.
    if by == signal.SIGKILL:
        assert step_of(run) == {"step": 3, "validation": 2}[within]
    else:
        assert step_of(run) == {"step": 4, "validation": 3}[within]
        assert f"'ltr fit {run}' resumes" in output and "Traceback" not in output
    assert torn(run) == []
    check_resume(world, run, changes | VALIDATED)


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once(world, tmp_path, first):
    changes = {"last.every_n_steps": 2, "trainer.max_epochs": 1000}
    run = tmp_path / "run"
    output = tmp_path / "output"
    child = Child(start(run, slow(world, tmp_path, "step", changes)), output)
    child.until(tmp_path / "waits")
    child.send(first)
    # Python handles signals that wait together by their numbers, so the first is heard first.
    until(lambda: "to stop at once" in output.read_text(), child.exit_code)
    child.send(signal.SIGINT)
    assert child.end() == 130
    # That of the validation, not of the step that was under way.
    assert step_of(run) == 3


@pytest.mark.parametrize(("seconds", "step"), [(5.0, 5), (0.0, 4)])
def test_a_sigterm_that_is_repeated_soon_is_one_signal(world, tmp_path, monkeypatch, seconds, step):
    """As SLURM sends it. It comes in the fifth step, which is saved; the second ends the run with
    what the fourth step has saved where it comes later than a repeat does.
    """
    monkeypatch.setattr("ltr.run.signals.REPEAT_SECONDS", seconds)
    run = tmp_path / "run"
    assert fit(world, run, signalled(step=4, times=2)) == 143
    assert step_of(run) == step
    check_resume(world, run)


SLURM = {
    "SLURM_NTASKS": "1",
    "SLURM_NTASKS_PER_NODE": "1",
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NAME": "train",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
}


def test_a_job_of_slurm_that_is_warned_by_sigusr1_saves_as_by_sigterm(world, tmp_path, monkeypatch):
    """Lightning would write a checkpoint of its own, requeue the job and train on. Such a file is
    loaded unasked when the job starts again, so a folder with one is refused.
    """
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    run = tmp_path / "run"
    assert fit(world, run, signalled(step=4, by="SIGUSR1", times=2)) == 138
    assert step_of(run) == 5
    assert list(run.glob("hpc_ckpt*")) == []
    check_resume(world, run)


@pytest.mark.parametrize("command", ["fit", "test"])
def test_a_folder_with_a_checkpoint_of_lightning_is_refused(world, tmp_path, capsys, command):
    run = tmp_path / "run"
    run.mkdir()
    (run / "hpc_ckpt_3.ckpt").touch()
    file = written(world, tmp_path / "c")
    options = ["--config", str(file), "--trainer.default_root_dir", str(run)]
    assert main([command, *options]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"ltr: {run}/hpc_ckpt_3.ckpt is a checkpoint of Lightning and not of")
    assert told.count("\n") == 1
    assert [file.name for file in run.iterdir()] == ["hpc_ckpt_3.ckpt"]


def test_a_run_in_a_thread_trains_and_says_that_it_handles_no_signal(world, tmp_path, capsys):
    uninterrupted(world)
    assert "trains in a thread" not in capsys.readouterr().err
    run = tmp_path / "run"
    codes = []
    thread = threading.Thread(target=lambda: codes.append(fit(world, run)))
    thread.start()
    thread.join()
    assert codes == [0]
    told = capsys.readouterr().err
    assert told.count("this run trains in a thread, where Python lets no signal be handled") == 1
    check_is_whole(world, run)


def test_a_sigterm_that_is_repeated_behind_the_save_is_ignored():
    """Behind a step that is done and saved within milliseconds."""
    came = []
    of_ctrl_c = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
    signals = Signals()
    signals.listen(is_rank_0=True, on_signal=lambda: None)
    signal.raise_signal(signal.SIGTERM)
    signals.release()
    signal.raise_signal(signal.SIGTERM)
    assert signals.pending is not None and came == []
    assert signal.getsignal(signal.SIGINT) == of_ctrl_c


def test_another_process_than_the_first_hears_a_signal_and_goes_on():
    """Rank 0 needs it until it has saved. The first signal is the reason where it ends."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signals = Signals()
    signals.listen(is_rank_0=False, on_signal=lambda: pytest.fail("it is not its business"))
    for known in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.raise_signal(known)
    assert signals.pending is None and signals.heard_on_other_rank.number == signal.SIGUSR1
    signals.release()
    signal.raise_signal(signal.SIGTERM)  # the launcher ends what is left, which ends by itself


def test_a_sigterm_that_is_repeated_while_the_program_ends_is_ignored(monkeypatch):
    """The first finds the program before training, the second what it still closes."""
    closed = []

    def ends(args):
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)
            closed.append("all")

    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    monkeypatch.setattr("ltr.cli.program.run", ends)
    assert main(["fit"]) == 143
    assert closed == ["all"] and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_of_several_processes_only_the_first_is_ended_by_a_signal(monkeypatch):
    """From the start on: it would wait for one that is gone, until Lightning kills it."""

    def comes(*signals: signal.Signals) -> None:
        monkeypatch.setattr(
            "ltr.cli.program.run", lambda args: [signal.raise_signal(one) for one in signals]
        )

    monkeypatch.setenv("LOCAL_RANK", "1")
    comes(*ENDING_SIGNALS)
    assert main(["fit"]) == 0
    monkeypatch.setenv("LOCAL_RANK", "0")
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    comes(signal.SIGTERM)
    assert main(["fit"]) == 143


@LONG
@pytest.mark.parametrize("step", [3, 6])
def test_a_signal_in_a_validation_of_averaged_weights(world, tmp_path, step):
    """The weights at hand are not those that are trained on: the run ends after that validation. 6
    steps are an epoch.
    """
    changes = VALIDATED | {"trainer.callbacks": [AVERAGE]}
    asked = {"class_path": "tests.faults.AskedInValidation", "init_args": {"step": step}}
    run = tmp_path / "run"
    assert fit(world, run, changes | {"trainer.callbacks": [AVERAGE, asked]}) == 143
    assert step_of(run) == step
    assert yaml.safe_load((run / "metrics.json").read_text())["validations"][-1]["step"] == step
    check_resume(world, run, changes)
    trained = [last_of(one)["current_model_state"] for one in (uninterrupted(world, changes), run)]
    assert list(differences(*trained)) == []


class _Asking(io.RawIOBase):
    """An output by which SIGTERM comes in the middle of a line, once."""

    asked = False

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:
        if b"step 3 of 18" in bytes(data) and not self.asked:
            self.asked = True
            signal.raise_signal(signal.SIGTERM)
        return len(data)


@pytest.mark.parametrize("reader", ["there", "gone"])
def test_a_signal_in_the_middle_of_a_print(world, tmp_path, monkeypatch, capfd, reader):
    """Python refuses to print within a print; and whoever reads the output may be gone, as
    ``| tee`` is after Ctrl-C.
    """
    monkeypatch.setattr("ltr.data.progress.EVERY", 0.0)
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BufferedWriter(_Asking())))
    run = tmp_path / "run"
    before = os.dup(1)
    if reader == "gone":
        ours, others = os.pipe()
        os.dup2(others, 1)
        os.close(ours)
        os.close(others)
    try:
        assert fit(world, run) == 143
    finally:
        os.dup2(before, 1)
        os.close(before)
    assert step_of(run) == 3
    told = capfd.readouterr()
    assert f"'ltr fit {run}' resumes" in told.err
    assert ("SIGTERM: finishing this step" in told.out) == (reader == "there")


def test_a_signal_between_accumulated_batches_waits_for_their_step(world, tmp_path):
    """It comes in the third of six batches, the first one of the second step."""
    run = tmp_path / "run"
    changes = {"trainer.accumulate_grad_batches": 2}
    assert fit(world, run, changes | signalled(step=1)) == 143
    batches = last_of(run)["loops"]["fit_loop"]["epoch_loop.batch_progress"]["current"]
    assert step_of(run) == 2 and batches["completed"] == 4
    check_resume(world, run, changes)


@pytest.mark.parametrize(
    "changes", [{"trainer.limit_val_batches": 0}, pytest.param(VALIDATED, marks=LONG)]
)
def test_a_signal_while_the_end_of_an_epoch_is_looked_at_waits_for_a_step(
    world, tmp_path, monkeypatch, changes
):
    """No write of last.ckpt pays after the first one, so this signal comes just after it was
    decided not to write.
    """
    changes = changes | {"trainer.max_epochs": 4, "last.every_n_steps": 500, "best.monitor": None}
    is_complete = checkpoints._is_complete
    asked = []

    def ends_and_signals(trainer):
        answer = is_complete(trainer)
        if trainer.global_step >= 9 and not asked:
            asked.append(trainer.global_step)
            os.kill(os.getpid(), signal.SIGTERM)
        return answer

    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("ltr.run.checkpoints.MAX_SHARE_OF_TIME", 1e-9)
        patch.setattr("ltr.run.checkpoints._is_complete", ends_and_signals)
        assert fit(world, run, changes) == 143
    assert step_of(run) == asked[0] + 1
    check_resume(world, run, changes)


@LONG
def test_a_signal_while_the_results_of_a_validation_are_written(world, tmp_path, monkeypatch):
    """The save writes the same file, whose lock this thread holds already."""
    asked = []

    def signalling(path, lines):
        def with_signal():
            yield from lines
            if '"step": 3,' in "".join(lines) and not asked:
                asked.append(path.name)
                signal.raise_signal(signal.SIGTERM)

        write_whole(path, with_signal())

    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("ltr.run.metrics_file.write_whole", signalling)
        assert fit(world, run, VALIDATED) == 143
    assert asked == ["metrics.json"] and step_of(run) == 3
    check_resume(world, run, VALIDATED)


def test_a_closed_terminal_that_is_told_twice_is_one_signal(world, tmp_path):
    """By the terminal and by the shell. What is left to say goes nowhere."""
    run = tmp_path / "run"
    assert fit(world, run, signalled(step=4, by="SIGHUP", times=2)) == 129
    assert step_of(run) == 5


def test_under_nohup_a_closed_terminal_ends_nothing(world, tmp_path):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert fit(world, tmp_path / "run", signalled(step=4, by="SIGHUP")) == 0


def test_a_signal_is_told_only_where_somebody_reads(monkeypatch):
    def closed(*args):
        raise OSError(errno.EIO, "Input/output error")

    redirected = []
    with monkeypatch.context() as patch:
        patch.setattr("os.write", closed)
        patch.setattr("os.dup2", lambda source, target: redirected.append(target))
        _write_to_terminal("saving")
    assert redirected == [1, 2]


def test_a_signal_before_training_leaves_nothing(world, tmp_path):
    for by, code in (("SIGTERM", 143), ("SIGUSR1", 138), ("SIGHUP", 129)):
        run = tmp_path / by / "run"
        assert fit(world, run, signalled(within="setup", by=by)) == code
        assert not run.exists()


def test_sigterm_while_measuring(world, tmp_path):
    """It ends the program, which has nothing to save; earlier results stay."""
    run = shutil.copytree(uninterrupted(world), tmp_path / "run")
    assert main(["test", str(run)]) == 0
    files = [run / name for name in ("metrics.json", "test.run", "per_query.tsv")]
    results = [file.read_bytes() for file in files]
    callback = waiting(tmp_path / "waits", within="test")
    layer = tmp_path / "layer.yaml"
    layer.write_text(yaml.safe_dump({"trainer": {"callbacks": [callback]}}))
    child = Child(["test", str(run), "--config", str(layer)], tmp_path / "output")
    child.until(tmp_path / "waits")
    child.send(signal.SIGTERM)
    assert child.end() == 143
    assert results == [file.read_bytes() for file in files]
    assert "Traceback" not in (tmp_path / "output").read_text()


@pytest.mark.long
def test_two_requeues_by_sigterm(world, tmp_path):
    """As a cluster does it: the same command again and again."""
    changes = {"trainer.max_epochs": 4}
    variant = "a cross-encoder with dropout"
    run = tmp_path / "run"
    command = start(run, written(world, tmp_path, changes, variant))
    codes = []
    seconds = 0.5
    while len(codes) < 40 and codes[-1:] != [0]:
        codes.append(Child(command, tmp_path / "output").end_after(seconds, signal.SIGTERM))
        seconds *= 1.15
    assert codes.count(143) >= 2 and codes[-1] == 0 and set(codes) <= {0, 143, -signal.SIGTERM}
    check_is_whole(world, run, changes, variant)
