"""The program: its exit codes, and when a traceback is shown."""

import errno
from pathlib import Path

import pytest

from ltr.__main__ import main
from ltr.data.files import new_array
from tests.cli.configured import config, losses  # noqa: F401


def test_a_mistake_of_ours_keeps_its_traceback(config, monkeypatch):
    monkeypatch.delenv("LTR_DEBUG", raising=False)
    monkeypatch.setattr("ltr.losses.SoftmaxLoss.forward", lambda *a: [][1])
    with pytest.raises(IndexError):
        main(["fit", "--config", str(config)])


FULL = Path("/dev/full")  # Linux: every write to it finds a full disk


@pytest.mark.skipif(not FULL.exists(), reason="a device of Linux")
def test_a_full_disk_is_one_line(tmp_path, monkeypatch, capsys):
    """The system does not say which: a write knows no name. A file that is renamed has one."""
    monkeypatch.delenv("LTR_DEBUG", raising=False)
    monkeypatch.setenv("LTR_CACHE", "kept")
    monkeypatch.setattr("tempfile.tempdir", "passing")
    monkeypatch.setattr("ltr.cli.run", lambda args: FULL.write_text("all of it"))
    assert main(["fit"]) == 2
    where = "of the output, of kept (LTR_CACHE) or of passing (TMPDIR)"
    hint = "(No space left on device); make room and run the command again"
    assert capsys.readouterr().err == f"ltr: the disk {where} is full {hint}\n"

    def no_room(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", no_room)
    monkeypatch.setattr("ltr.cli.run", lambda args: new_array(tmp_path / "a.npy", "f4", (3,)))
    assert main(["fit"]) == 2
    assert capsys.readouterr().err == f"ltr: the disk of {tmp_path}/a.npy is full {hint}\n"


def test_debug_shows_the_traceback(config, monkeypatch):
    monkeypatch.setenv("LTR_DEBUG", "1")
    with pytest.raises(ValueError, match="no such file"):
        main(["test", "--config", str(config), "--ckpt_path", "nowhere.ckpt"])
