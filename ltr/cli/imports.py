"""What packages print when they are imported, which is no result."""

import sys
from contextlib import AbstractContextManager, redirect_stdout
from typing import TextIO


def imports_on_stderr() -> AbstractContextManager[TextIO]:
    """Inside the block, what is printed goes to stderr: some packages speak when they are imported,
    and stdout is for results.

    It stands around what imports them alone. A command prints its results to stdout, so it can't be
    opened around a whole command, as the lines of progress are sent to stderr.
    """
    return redirect_stdout(sys.stderr)
