"""The exception for what the user can mend: a file, an option, a shape of data.

Beside it the checks of options, named after what must hold: ``positive``, ``at_least``, … Each
raises that exception otherwise.
"""

import os
import re
import signal
from collections.abc import Collection
from pathlib import Path

# The signals by which a user or a cluster asks a run to end. They may come to all of its processes,
# and the run decides when these end: what serves it must outlive them.
ENDING_SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGHUP,
)
# The signal by which a run ends a process beside it. No cluster and no terminal sends it.
ENDED_BY_RUN = signal.SIGALRM
# The beginning of an address; a Path has one slash of it left.
SCHEME = re.compile("[A-Za-z][A-Za-z0-9+.-]+:/")

LONGEST_NAME = 255  # bytes, on all disks of Linux
LONGEST_PATH = 4095


class InputError(ValueError):
    """Bad input. The message is one line: what must hold, what came, what to do; for files it
    begins with ``file:line``.

    The command line prints it without a traceback and exits with code 2.

    Args:
        message: the line.
        option: the option at fault, by its name in the constructor, such as ``batch_size``. Only
            the command line knows its path in a configuration, and prints ``data.batch_size``.

    Example:
        >>> str(InputError("batch_size must be at least 1, got 0", option="batch_size"))
        'batch_size must be at least 1, got 0 (option batch_size)'
    """

    def __init__(self, message: str, *, option: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.option = option

    def __str__(self) -> str:
        if self.option is None:
            return self.message
        return f"{self.message} (option {self.option})"


class Terminated(KeyboardInterrupt):
    """A signal other than Ctrl-C ended the program. Lightning cleans up as after Ctrl-C.

    Args:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def at_least(minimum: int, **options: int | None) -> None:
    """Raise an InputError for an option below the minimum, or too large for the integers of arrays;
    None is allowed.
    """
    for name, value in options.items():
        if value is not None and value < minimum:
            raise InputError(f"{name} must be at least {minimum}, got {value}", option=name)
        if value is not None and value >= 2**63:
            raise InputError(f"{name} must be below 2^63, got {value}", option=name)


def one_of(known: Collection[object], **options: object) -> None:
    """Raise an InputError for an option whose value is not a known one."""
    for name, value in options.items():
        if value not in known:
            choices = ", ".join(map(str, known))
            raise InputError(f"{name} must be one of {choices}, got {value!r}", option=name)


def local_path(option: str, path: str | Path) -> None:
    """Raise an InputError for an address, such as ``s3://bucket/run``, which would be taken for a
    local folder ``s3:``, and for a name that is longer than any disk takes.
    """
    address = str(path)
    longest = max((len(os.fsencode(name)) for name in address.split("/")), default=0)
    if longest > LONGEST_NAME or len(address) > LONGEST_PATH:
        raise InputError(
            f"{option}: a name must have at most {LONGEST_NAME} bytes, and a path {LONGEST_PATH}, got {longest} and {len(address)} in {address[:40]!r}…; take a shorter one"
        )
    scheme = SCHEME.match(address)
    if scheme is None:
        return
    if "://" not in address:
        address = f"{scheme[0]}/{address[scheme.end() :]}"
    raise InputError(
        f"{option}: must be a local path, got {address!r}; copy it to a local folder, or mount it"
    )


def positive(option: str, value: float) -> float:
    """The value, refused unless it is finite and above 0."""
    if not 0 < value < float("inf"):
        raise InputError(f"{option} must be finite and above 0, got {value}", option=option)
    return value


def not_negative(option: str, value: float) -> float:
    """The value, refused unless it is finite and at least 0."""
    if not 0 <= value < float("inf"):
        raise InputError(f"{option} must be finite and at least 0, got {value}", option=option)
    return value
