"""The one exception for what the user can mend: a file, an option, a shape of data."""


class InputError(ValueError):
    """Bad input. The message is one line: what must hold, what came, what to do; for files it begins with ``file:line``.

    The command line prints it without a traceback and exits with code 2.
    """
