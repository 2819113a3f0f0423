"""A progress bar for what takes a while before training."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


def track(sequence: Sequence, verb: str, noun: str) -> Iterator:
    """Iterate under a progress bar that vanishes at the end; a sequence of one gets no bar.

    With the verb ``encoding`` and the noun ``batches`` it reads ``encoding ━━━━ 12/40 batches
    0:00:03``.
    """
    if len(sequence) < 2:
        yield from sequence
        return
    columns = (
        TextColumn(verb),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(noun),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield from progress.track(sequence)
