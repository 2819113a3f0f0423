"""The one exception for what the user can mend: a file, an option, a shape of data."""


class InputError(ValueError):
    """Bad input. The message is one line: what must hold, what came, what to do; for files it begins with ``file:line``.

    The command line prints it without a traceback and exits with code 2.

    Args:
        message: the line.
        option: the option at fault, by its name in the constructor, such as ``depth``. Only the command line knows its path in a
            configuration, and prints ``data.depth``.
    """

    def __init__(self, message: str, *, option: str | None = None) -> None:
        super().__init__(message)
        self.message, self.option = message, option

    def __str__(self) -> str:
        return self.message if self.option is None else f"{self.message} (option {self.option})"


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP ended the program. Lightning cleans up after it as after Ctrl-C.

    Args:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
