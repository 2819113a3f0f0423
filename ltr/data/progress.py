"""A progress bar for what takes a while before training."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


def track(sequence: Sequence, doing: str, what: str) -> Iterator:
    """Iterate under a bar that vanishes at the end: ``doing ━━━━ 12/40 what 0:00:03``. A single
    step gets none.
    """
    if len(sequence) < 2:
        yield from sequence
        return
    columns = (
        TextColumn(doing),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(what),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield from progress.track(sequence)
