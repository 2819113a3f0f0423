"""Ctrl-C, SIGTERM and a closed terminal, at every moment of a run."""

import errno
import io
import os
import shutil
import signal
import threading

import pytest
import torch
import yaml

from ltr.__main__ import main
from ltr.data.whole_files import write_whole
from ltr.errors import ENDING_SIGNALS
from ltr.run import checkpoints
from ltr.run.signals import Signals, _write_to_terminal
from tests.child_processes import until
from tests.run.interrupted import (
    _finished,
    _slow,
    _whole,
    _written,
)
from tests.run.kills import Child, start, torn, waiting
from tests.run.resumes import (
    AVERAGE,
    differences,
    outcome,
)

CODES = {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGHUP: 129}
CASES = [
    (by, code, workers, within)
    for by, code in CODES.items()
    for workers, within in ((2, "step"), (0, "validation"))
]


@pytest.mark.parametrize(
    ("by", "code", "workers", "within"), [*CASES, (signal.SIGUSR1, 138, 2, "step")]
)
def test_a_signal_in_a_step_or_a_validation(world, tmp_path, by, code, workers, within):
    """To the whole group, as terminals and clusters send it: data workers get it too."""
    changes = {"data.init_args.loading.num_workers": workers, "last.every_n_steps": 2}
    file = _slow(world, tmp_path / "stopped", within, **changes)
    child = Child(start(file.parent / "run", file), file.with_name("output"))
    child.until(file.with_name("waits"))
    child.send(by)
    came = child.end()
    output = file.with_name("output").read_text()
    assert came == code, output
    run = file.parent / "run"
    last = torch.load(run / "checkpoints/last.ckpt", weights_only=True)
    # Killed, it has what was there: after the third step comes a validation. Asked, it finishes the
    # fourth step, or leaves that validation to the resumed run.
    killed = by == signal.SIGKILL
    assert (
        last["global_step"]
        == {"step": 3 if killed else 4, "validation": 2 if killed else 3}[within]
    )
    if by != signal.SIGKILL:
        assert f"'ltr fit {run}' resumes" in output and "Traceback" not in output
    assert torn(run) == []
    # It was asked to resume by the same command, without the callback that waits.
    resumed = Child(
        start(
            run, _written(world, tmp_path / "again", **changes | {"trainer.val_check_interval": 3})
        ),
        tmp_path / "output",
    )
    assert resumed.end() == 0
    whole = _whole(world, **changes | {"trainer.val_check_interval": 3})
    assert list(differences(outcome(whole), outcome(run))) == []


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once(world, tmp_path, first):
    file = _slow(
        world, tmp_path / "stopped", "step", **{"last.every_n_steps": 2, "trainer.max_epochs": 1000}
    )
    output = file.with_name("output")
    child = Child(start(file.parent / "run", file), output)
    child.until(file.with_name("waits"))
    child.send(first)
    # Python handles signals that wait together by their numbers, so the first is heard first.
    until(lambda: "to stop at once" in output.read_text(), child.exit_code)
    child.send(signal.SIGINT)
    assert child.end() == 130
    # That of the validation, not of the step that was under way.
    assert (
        torch.load(file.parent / "run/checkpoints/last.ckpt", weights_only=True)["global_step"] == 3
    )


@pytest.mark.parametrize(("seconds", "step"), [(5.0, 5), (0.0, 4)])
def test_a_sigterm_that_is_repeated_soon_is_one_signal(
    world, tmp_path, ctrl_c, monkeypatch, seconds, step
):
    """As SLURM sends it. It comes in the fifth step, which is saved; the second ends the run with
    what the fourth step has saved where it comes later than a repeat does.
    """
    monkeypatch.setattr("ltr.run.signals.REPEAT_SECONDS", seconds)
    run = tmp_path / "stopped/run"
    assert main(start(run, _written(world, run.parent, **_signalled(step=4, times=2)))) == 143
    assert torch.load(run / "checkpoints/last.ckpt", weights_only=True)["global_step"] == step
    assert main(start(run, _written(world, tmp_path / "again"))) == 0
    whole = _whole(world)
    assert list(differences(outcome(whole), outcome(run))) == []


SLURM = {
    "SLURM_NTASKS": "1",
    "SLURM_NTASKS_PER_NODE": "1",
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NAME": "train",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
}


def test_a_job_of_slurm_that_is_warned_by_sigusr1_saves_as_by_sigterm(
    world, tmp_path, ctrl_c, monkeypatch
):
    """Lightning would write a checkpoint of its own, requeue the job and train on. Such a file is
    loaded unasked when the job starts again, so a folder with one is refused.
    """
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    run = tmp_path / "stopped/run"
    warned = _signalled(step=4, by="SIGUSR1", times=2)
    assert main(start(run, _written(world, run.parent, **warned))) == 138
    assert torch.load(run / "checkpoints/last.ckpt", weights_only=True)["global_step"] == 5
    assert list(run.glob("hpc_ckpt*")) == []
    assert main(start(run, _written(world, tmp_path / "again"))) == 0
    whole = _whole(world)
    assert list(differences(outcome(whole), outcome(run))) == []


@pytest.mark.parametrize("command", ["fit", "test"])
def test_a_folder_with_a_checkpoint_of_lightning_is_refused(world, tmp_path, capsys, command):
    run = tmp_path / "a/run"
    run.mkdir(parents=True)
    (run / "hpc_ckpt_3.ckpt").touch()
    (tmp_path / "b").mkdir()
    file = _written(world, tmp_path / "b/c")
    options = ["--config", str(file), "--trainer.default_root_dir", str(run)]
    assert main([command, *options]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"ltr: {run}/hpc_ckpt_3.ckpt is a checkpoint of Lightning and not of")
    assert told.count("\n") == 1
    assert [file.name for file in run.iterdir()] == ["hpc_ckpt_3.ckpt"]


def test_a_sigterm_that_is_repeated_behind_the_save_is_ignored():
    """Behind a step that is done and saved within milliseconds."""
    before = {known: signal.getsignal(known) for known in ENDING_SIGNALS}
    came = []
    try:
        signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
        signals = Signals()
        signals.listen(is_rank_0=True, on_signal=lambda: None)
        signal.raise_signal(signal.SIGTERM)
        signals.release()
        signal.raise_signal(signal.SIGTERM)
        assert signals.pending is not None and came == []
        assert signal.getsignal(signal.SIGINT) == before[signal.SIGINT]
    finally:
        for known, handler in before.items():
            signal.signal(known, handler)


def test_a_run_in_a_thread_trains_and_says_that_it_handles_no_signal(world, tmp_path, capsys):
    expected = outcome(_whole(world))
    assert "trains in a thread" not in capsys.readouterr().err
    codes = []
    args = start(tmp_path / "in-thread/run", _written(world, tmp_path / "in-thread"))
    thread = threading.Thread(target=lambda: codes.append(main(args)))
    thread.start()
    thread.join()
    assert codes == [0]
    told = capsys.readouterr().err
    assert told.count("this run trains in a thread, where Python lets no signal be handled") == 1
    assert list(differences(expected, outcome(tmp_path / "in-thread/run"))) == []


def test_another_process_than_the_first_hears_a_signal_and_goes_on():
    """Rank 0 needs it until it has saved. The first signal is the reason where it ends."""
    before = {known: signal.getsignal(known) for known in ENDING_SIGNALS}
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signals = Signals()
        signals.listen(is_rank_0=False, on_signal=lambda: pytest.fail("it is not its business"))
        for known in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.raise_signal(known)
        assert signals.pending is None and signals.heard_on_other_rank.number == signal.SIGUSR1
        signals.release()
        signal.raise_signal(signal.SIGTERM)  # the launcher ends what is left, which ends by itself
    finally:
        for known, handler in before.items():
            signal.signal(known, handler)


def test_a_sigterm_that_is_repeated_while_the_program_ends_is_ignored(monkeypatch):
    """The first finds the program before training, the second what it still closes."""
    closed = []

    def ends(args):
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)
            closed.append("all")

    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        monkeypatch.setattr("ltr.cli.program.run", ends)
        assert main(["fit"]) == 143
        assert closed == ["all"] and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("step", [3, 6])
def test_a_signal_in_a_validation_of_averaged_weights(world, tmp_path, step):
    """The weights at hand are not those that are trained on: the run ends after that validation. 6
    steps are an epoch.
    """
    changes = {"trainer.val_check_interval": 3, "trainer.callbacks": [AVERAGE]}
    asked = {"class_path": "tests.faults.AskedInValidation", "init_args": {"step": step}}
    run = tmp_path / "stopped/run"
    file = _written(world, run.parent, **changes | {"trainer.callbacks": [AVERAGE, asked]})
    assert main(start(run, file)) == 143
    assert torch.load(run / "checkpoints/last.ckpt", weights_only=True)["global_step"] == step
    assert yaml.safe_load((run / "metrics.json").read_text())["validations"][-1]["step"] == step
    assert main(start(run, _written(world, tmp_path / "again", **changes))) == 0
    whole = _whole(world, **changes)
    assert list(differences(outcome(whole), outcome(run))) == []
    trained = [
        torch.load(one / "checkpoints/last.ckpt", weights_only=True)["current_model_state"]
        for one in (whole, run)
    ]
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
    run = tmp_path / "a/run"
    before = os.dup(1)
    if reader == "gone":
        ours, others = os.pipe()
        os.dup2(others, 1)
        os.close(ours)
        os.close(others)
    try:
        assert main(start(run, _written(world, run.parent))) == 143
    finally:
        os.dup2(before, 1)
        os.close(before)
    assert torch.load(run / "checkpoints/last.ckpt", weights_only=True)["global_step"] == 3
    told = capfd.readouterr()
    assert f"'ltr fit {run}' resumes" in told.err
    assert ("SIGTERM: finishing this step" in told.out) == (reader == "there")


@pytest.fixture
def ctrl_c():
    """Lightning leaves Ctrl-C ignored behind an interrupted run."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def _signalled(**options) -> dict:
    return {"trainer.callbacks": [{"class_path": "tests.faults.SignalAt", "init_args": options}]}


def test_a_signal_between_accumulated_batches_waits_for_their_step(world, tmp_path, ctrl_c):
    """It comes in the third of six batches, the first one of the second step."""
    run = tmp_path / "stopped/run"
    changes = {"trainer.accumulate_grad_batches": 2}
    assert main(start(run, _written(world, run.parent, **changes | _signalled(step=1)))) == 143
    last = torch.load(run / "checkpoints/last.ckpt", weights_only=True)
    batches = last["loops"]["fit_loop"]["epoch_loop.batch_progress"]["current"]
    assert last["global_step"] == 2 and batches["completed"] == 4
    assert main(start(run, _written(world, tmp_path / "again", **changes))) == 0
    assert list(differences(outcome(_whole(world, **changes)), outcome(run))) == []


@pytest.mark.parametrize(
    "changes", [{"trainer.limit_val_batches": 0}, {"trainer.val_check_interval": 3}]
)
def test_a_signal_while_the_end_of_an_epoch_is_looked_at_waits_for_a_step(
    world, tmp_path, ctrl_c, monkeypatch, changes
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

    with monkeypatch.context() as patch:
        patch.setattr("ltr.run.checkpoints.MAX_SHARE_OF_TIME", 1e-9)
        patch.setattr("ltr.run.checkpoints._is_complete", ends_and_signals)
        run = tmp_path / "stopped/run"
        assert main(start(run, _written(world, run.parent, **changes))) == 143
    assert (
        torch.load(run / "checkpoints/last.ckpt", weights_only=True)["global_step"] == asked[0] + 1
    )
    assert main(["fit", str(run)]) == 0
    assert list(differences(outcome(_whole(world, **changes)), outcome(run))) == []


def test_a_signal_while_the_results_of_a_validation_are_written(
    world, tmp_path, ctrl_c, monkeypatch
):
    """The save writes the same file, whose lock this thread holds already."""
    asked = []

    def signalling(path, lines):
        def with_signal():
            yield from lines
            if '"step": 3,' in "".join(lines) and not asked:
                asked.append(path.name)
                signal.raise_signal(signal.SIGTERM)

        write_whole(path, with_signal())

    changes = {"trainer.val_check_interval": 3}
    with monkeypatch.context() as patch:
        patch.setattr("ltr.run.metrics_file.write_whole", signalling)
        run = tmp_path / "stopped/run"
        assert main(start(run, _written(world, run.parent, **changes))) == 143
    assert asked == ["metrics.json"]
    assert torch.load(run / "checkpoints/last.ckpt", weights_only=True)["global_step"] == 3
    assert main(["fit", str(run)]) == 0
    whole = _whole(world, **changes)
    assert list(differences(outcome(whole), outcome(run))) == []


def test_a_closed_terminal_that_is_told_twice_is_one_signal(world, tmp_path, ctrl_c):
    """By the terminal and by the shell. What is left to say goes nowhere."""
    run = tmp_path / "stopped/run"
    assert (
        main(start(run, _written(world, run.parent, **_signalled(step=4, by="SIGHUP", times=2))))
        == 129
    )
    assert torch.load(run / "checkpoints/last.ckpt", weights_only=True)["global_step"] == 5


def test_under_nohup_a_closed_terminal_ends_nothing(world, tmp_path, ctrl_c):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        _finished(world, tmp_path / "a", **_signalled(step=4, by="SIGHUP"))
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_is_told_only_where_somebody_reads(monkeypatch):
    def closed(*args):
        raise OSError(errno.EIO, "Input/output error")

    redirected = []
    with monkeypatch.context() as patch:
        patch.setattr("os.write", closed)
        patch.setattr("os.dup2", lambda source, target: redirected.append(target))
        _write_to_terminal("saving")
    assert redirected == [1, 2]


def test_a_signal_before_training_leaves_nothing(world, tmp_path, ctrl_c):
    for by, code in (("SIGTERM", 143), ("SIGUSR1", 138), ("SIGHUP", 129)):
        run = tmp_path / by / "run"
        assert (
            main(start(run, _written(world, run.parent, **_signalled(within="setup", by=by))))
            == code
        )
        assert not run.exists()


def test_sigterm_while_measuring(world, tmp_path):
    """It ends the program, which has nothing to save; earlier results stay."""
    run = shutil.copytree(_whole(world), tmp_path / "run")
    assert main(["test", str(run)]) == 0
    results = {
        name: (run / name).read_bytes() for name in ("metrics.json", "test.run", "per_query.tsv")
    }
    callback = waiting(tmp_path / "waits", within="test")
    layer = tmp_path / "layer.yaml"
    layer.write_text(yaml.safe_dump({"trainer": {"callbacks": [callback]}}))
    child = Child(["test", str(run), "--config", str(layer)], tmp_path / "output")
    child.until(tmp_path / "waits")
    child.send(signal.SIGTERM)
    assert child.end() == 143
    assert results == {name: (run / name).read_bytes() for name in results}
    assert "Traceback" not in (tmp_path / "output").read_text()


@pytest.mark.long
def test_two_requeues_by_sigterm(world, tmp_path):
    """As a cluster does it: the same command again and again."""
    variant = "a cross-encoder with dropout"
    run = tmp_path / "job/run"
    file = _written(world, tmp_path / "job", variant, **{"trainer.max_epochs": 4})
    codes = []
    seconds = 0.5
    while (len(codes) < 40) and codes[-1:] != [0]:
        codes.append(
            Child(start(run, file), tmp_path / "output").end_after(seconds, signal.SIGTERM)
        )
        seconds *= 1.15
    assert codes.count(143) >= 2 and codes[-1] == 0 and set(codes) <= {0, 143, -signal.SIGTERM}
    whole = _whole(world, variant, **{"trainer.max_epochs": 4})
    assert list(differences(outcome(whole), outcome(run))) == []


def test_of_several_processes_only_the_first_is_ended_by_a_signal(monkeypatch):
    """From the start on: it would wait for one that is gone, until Lightning kills it."""
    before = {known: signal.getsignal(known) for known in ENDING_SIGNALS}
    try:
        monkeypatch.setenv("LOCAL_RANK", "1")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "ltr.cli.program.run",
                lambda args: [signal.raise_signal(known) for known in ENDING_SIGNALS],
            )
            assert main(["fit"]) == 0
            monkeypatch.setenv("LOCAL_RANK", "0")
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            patch.setattr("ltr.cli.program.run", lambda args: signal.raise_signal(signal.SIGTERM))
            assert main(["fit"]) == 143
    finally:
        for known, handler in before.items():
            signal.signal(known, handler)
