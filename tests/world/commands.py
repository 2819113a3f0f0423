"""Commands as they are typed, in this process."""

import shlex

import pytest

from ltr.__main__ import main


def run_ltr(line: str, *more: str) -> int:
    """The exit code of ``ltr LINE``; what follows the line is taken as it stands."""
    return main([*shlex.split(line), *more])


def refusal(capsys: pytest.CaptureFixture[str], line: str, *more: str) -> str:
    """The one line by which a command ends with code 2."""
    capsys.readouterr()
    assert run_ltr(line, *more) == 2
    (told,) = capsys.readouterr().err.splitlines()
    return told
