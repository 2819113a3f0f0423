"""The one exception for what the user can mend: a file, an option, a shape of data; and checks of
options.
"""

from collections.abc import Collection


class InputError(ValueError):
    """Bad input. The message is one line: what must hold, what came, what to do; for files it
    begins with ``file:line``.

    The command line prints it without a traceback and exits with code 2.

    Args:
        message: the line.
        option: the option at fault, by its name in the constructor, such as ``batch_size``. Only
            the command line knows its path in a configuration, and prints ``data.batch_size``.
    """

    def __init__(self, message: str, *, option: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.option = option

    def __str__(self) -> str:
        return self.message if self.option is None else f"{self.message} (option {self.option})"


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP, by its number, ended the program. Lightning cleans up after it as after
    Ctrl-C.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def at_least(least: int, **options: int | None) -> None:
    """Raise an InputError for an option that is smaller; None is allowed."""
    for name, value in options.items():
        if value is not None and value < least:
            raise InputError(f"{name} must be at least {least}, got {value}", option=name)


def one_of(known: Collection[object], **options: object) -> None:
    """Raise an InputError for an option that has another value."""
    for name, value in options.items():
        if value not in known:
            raise InputError(
                f"{name} must be one of {', '.join(map(str, known))}, got {value!r}", option=name
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
