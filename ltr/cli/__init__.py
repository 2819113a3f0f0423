"""The command line: arguments, the run that they ask for, and what is told of an error."""

from ltr.cli.command import run
from ltr.cli.messages import one_line

__all__ = ["one_line", "run"]
