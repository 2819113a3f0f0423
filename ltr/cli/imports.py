"""What packages print when they are imported, which is no result."""

import sys
from contextlib import AbstractContextManager, redirect_stdout
from typing import TextIO


def imports_on_stderr() -> AbstractContextManager[TextIO]:
    """Inside the block, what is printed goes to stderr: some packages speak when they are imported,
    and stdout is for results.

    It stands around what imports them alone: around a whole command it would take the results, too.
    """
    return redirect_stdout(sys.stderr)
