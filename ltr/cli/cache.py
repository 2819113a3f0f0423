"""``ltr cache``: what lies in the folder of derived data, and which of it no run uses."""

import sys
import time

from rich.markup import escape
from rich.table import Table

from ltr.data.cache_contents import Cache, CacheEntry
from ltr.data.console import Console, counted, say
from ltr.data.files import cache_root
from ltr.errors import InputError

COLUMNS = ("kind", "data", "model", "size", "last used", "unused")


def cache(*, older_than: int | None = None, remove: bool = False) -> None:
    """Print what lies in the folder of derived data, the largest first, and what of it is unused.

    An entry is unused if the data or the model that it was made of is gone from its place: a data
    folder, a backbone, a run. With --older_than, one that no command has opened for so many days
    is unused, too. Whatever is removed, a command that needs it makes it again.

    Args:
        older_than: Days without a use after which an entry counts as unused, too.
        remove: Remove what is unused. What a running command has open is kept.
    """
    if older_than is not None and older_than < 0:
        raise InputError(f"--older_than must be a number of days of at least 0, got {older_than}")
    cached = Cache()
    reasons = {entry: cached.why_unused(entry, older_than) for entry in cached.entries}
    unused = [entry for entry in cached.entries if reasons[entry] is not None]
    _show([_row(cached, entry, reasons[entry]) for entry in cached.entries])
    say(f"{cache_root()}: {_count_and_size(cached.entries)}; unused: {_count_and_size(unused)}")
    if not remove:
        if unused:
            say("to remove what is unused: the same command with --remove")
        return
    removed = [entry for entry in unused if entry.try_remove()]
    say(f"removed: {_count_and_size(removed)}")
    if len(removed) < len(unused):
        n_kept = len(unused) - len(removed)
        say(f"kept: {n_kept} that a running command has open, or that another user owns")


def _row(cached: Cache, entry: CacheEntry, reason: str | None) -> list[str]:
    data: list[str] = []
    models: list[str] = []
    for origin in cached.first_origins(entry):
        data += origin.data
        models += [] if origin.model is None else [origin.model]
    day = ""
    if entry.last_used is not None:
        day = time.strftime("%Y-%m-%d", time.localtime(entry.last_used))
    return [
        entry.kind,
        "\n".join(dict.fromkeys(data)),
        "\n".join(dict.fromkeys(models)),
        size_in_words(entry.size),
        day,
        reason or "",
    ]


def _count_and_size(entries: list[CacheEntry]) -> str:
    total = sum(entry.size for entry in entries)
    return f"{counted(len(entries), 'entry')}, {size_in_words(total)}"


def size_in_words(count: int) -> str:
    """Bytes, as ``91.2 MB``."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def _show(rows: list[list[str]]) -> None:
    """A table on a terminal; elsewhere lines with tabs between."""
    if not rows:
        return
    if not sys.stdout.isatty():
        for row in rows:
            say(*[" | ".join(cell.splitlines()) for cell in row], sep="\t")
        return
    table = Table(box=None, pad_edge=False)
    for name in COLUMNS:
        is_path = name in ("data", "model", "unused")
        table.add_column(name, overflow="fold", no_wrap=not is_path)
    for row in rows:
        table.add_row(*[escape(cell) for cell in row])
    Console().print(table)
