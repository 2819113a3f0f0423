"""The program: its exit codes, and when a traceback is shown."""

import errno
import signal
import threading
from pathlib import Path

import pytest

from ltr.__main__ import main
from ltr.data.disk import new_array
from ltr.errors import InputError, Terminated
from tests.world.commands import refusal, run_ltr


def test_a_mistake_of_ours_keeps_its_traceback(config, monkeypatch):
    monkeypatch.setattr("ltr.losses.SoftmaxLoss.forward", lambda *a: [][1])
    with pytest.raises(IndexError):
        run_ltr(f"fit --config {config}")


INTERRUPTS = [
    (KeyboardInterrupt(), 130),
    (Terminated(signal.SIGHUP), 129),
    (Terminated(signal.SIGTERM), 143),
]


@pytest.mark.parametrize(("interrupt", "code"), INTERRUPTS)
def test_a_signal_that_a_library_makes_an_error_of_ends_the_command(
    interrupt, code, monkeypatch, capsys
):
    """As torch does, whose mode of a default device raises an error at its end."""

    def loaded(args):
        try:
            try:
                raise interrupt
            finally:
                [].pop()  # the stack of modes
        except Exception as error:
            raise InputError(f"backbone 'a' can't be loaded: {error}") from None

    monkeypatch.setattr("ltr.cli.program.run", loaded)
    assert run_ltr("rank") == code
    assert capsys.readouterr().err == ""


FULL = Path("/dev/full")  # Linux: every write to it finds a full disk


@pytest.mark.skipif(not FULL.exists(), reason="a device of Linux")
def test_a_full_disk_is_one_line(tmp_path, monkeypatch, capsys):
    """The system does not say which: a write knows no name. A file that is renamed has one."""
    monkeypatch.setenv("LTR_CACHE", "kept")
    monkeypatch.setattr("tempfile.tempdir", "passing")
    where = "of the output, of kept (LTR_CACHE) or of passing (TMPDIR)"

    def refused(work):
        monkeypatch.setattr("ltr.cli.program.run", work)
        return refusal(capsys, "fit")

    def written_in_part(args):
        raise OSError("630 requested and 496 written")

    def no_room(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    hint = "(No space left on device); make room and run the command again"
    told = f"ltr: the disk {where} is full {hint}"
    assert refused(lambda args: FULL.write_text("all of it")) == told
    assert refused(written_in_part) == told
    monkeypatch.setattr("os.posix_fallocate", no_room)
    line = refused(lambda args: new_array(tmp_path / "a.npy", "f4", (3,)))
    assert line == f"ltr: the disk of {tmp_path}/a.npy is full {hint}"


def test_a_working_directory_that_was_removed_is_one_line(
    backbone, collection_folder, tmp_path, monkeypatch, capsys
):
    """By another program, while this one runs there. Whole paths need none."""
    folder = tmp_path / "removed"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    of_corpus = f"--corpus {collection_folder} --query w1"
    assert run_ltr(f"search run {of_corpus}") == 2
    rule = "the working directory has been removed; change to another one"
    last_line = capsys.readouterr().err.splitlines()[-1]
    assert last_line == f"ltr: {rule}, and run the command again"
    assert run_ltr(f"search {backbone} {of_corpus}") == 0


@pytest.mark.skipif(not FULL.exists(), reason="a device of Linux")
def test_an_output_on_a_full_disk_is_one_line(monkeypatch, capsys):
    """What was printed may still be held, and find no room at the end. Of what is held then, the
    interpreter would complain once more, and change the exit code.
    """
    monkeypatch.setattr("ltr.cli.program.run", lambda args: print("a result"))
    for command in (["cache"], ["--version"], ["--help"]):
        with FULL.open("w") as stdout:
            monkeypatch.setattr("sys.stdout", stdout)
            assert main(command) == 2
            stdout.flush()
        line = capsys.readouterr().err
        assert line.startswith("ltr: the disk of the output, ") and line.count("\n") == 1


def test_debug_shows_the_traceback(config, monkeypatch):
    monkeypatch.setenv("LTR_DEBUG", "1")
    with pytest.raises(ValueError, match="no such file"):
        run_ltr(f"test --config {config} --ckpt_path nowhere.ckpt")


@pytest.mark.parametrize("local_rank", ["0", "1"])
def test_a_command_runs_in_a_thread(monkeypatch, local_rank):
    """As some launchers call it. Python lets a thread set no handlers of signals."""
    monkeypatch.setenv("LOCAL_RANK", local_rank)
    codes = []
    thread = threading.Thread(target=lambda: codes.append(run_ltr("cache")))
    thread.start()
    thread.join()
    assert codes == [0]
