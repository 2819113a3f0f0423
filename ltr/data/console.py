"""Lines and tables that the program prints. Control characters in them are made visible: names,
paths, cards and answers of servers must not steer the terminal. Rankings for other programs are
printed as they are.
"""

import sys
import unicodedata
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from typing import Any, TextIO

import rich.console
from rich.text import Text

BIDIRECTIONAL = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def without_controls(text: str) -> str:
    """A text with � for each character that would steer a terminal: escape sequences could set its
    title or hide what follows, and bidirectional overrides show another order. So are bytes of a
    path that are no text, which can't be printed. Line ends and tabs stay.
    """
    if text.isprintable():
        return text
    shown = []
    for character in text:
        is_control = unicodedata.category(character) in ("Cc", "Cs") and character not in "\n\t"
        shown.append("�" if is_control or character in BIDIRECTIONAL else character)
    return "".join(shown)


def counted(n: int, noun: str) -> str:
    """A number of things.

    >>> counted(1204, "document"), counted(1, "query"), counted(2, "query")
    ('1,204 documents', '1 query', '2 queries')
    """
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{n:,} {noun if n == 1 else plural}"


def say(*words: object, to: TextIO | None = None, sep: str = " ") -> None:
    """Print a line, at once.

    Args:
        words: of the line.
        to: where it goes; None: stdout.
        sep: stands between the words.
    """
    line = without_controls(sep.join(map(str, words)))
    print(line, file=to or sys.stdout, flush=True)


def speech_on_stderr() -> AbstractContextManager[object]:
    """What is printed within goes to stderr. Some packages speak when they are imported, and stdout
    is for results.
    """
    return redirect_stdout(sys.stderr)


class Console(rich.console.Console):
    """The console of rich, which styles texts and hands them on as they are."""

    def render_str(self, text: str, **options: Any) -> Text:
        """See :meth:`rich.console.Console.render_str`. All strings come here, the cells of tables
        before their widths are computed.
        """
        return super().render_str(without_controls(text), **options)


def table_console(width: int) -> Console:
    """The console for tables: as wide as the terminal, and ``width`` letters where stdout is none."""
    return Console(width=None if sys.stdout.isatty() else width, soft_wrap=False)


@contextmanager
def printable_warnings() -> Iterator[None]:
    """Inside the block, what a library warns of is printed like all else."""
    line_of_warning = warnings.formatwarning

    def shown(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        line: str | None = None,
    ) -> str:
        return without_controls(line_of_warning(message, category, filename, lineno, line))

    warnings.formatwarning = shown
    try:
        yield
    finally:
        warnings.formatwarning = line_of_warning
