"""``ltr check``: is this experiment worth running, and may its numbers be believed?"""

import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from ltr.check import page
from ltr.check.judgements import judgements_section
from ltr.check.section import Section
from ltr.data.collection import Collection, lists_of_run, open_collection
from ltr.data.files import write_whole
from ltr.data.outputs import check_file
from ltr.errors import InputError

WIDTH = 160  # letters of a line where no terminal says it


def check(
    folder: str | None = None,
    *,
    config: str | None = None,
    data: str | None = None,
    run: str | None = None,
    json: str | None = None,
    html: str | None = None,
) -> None:
    """Check an experiment before it is run: may its numbers be believed?

    Args:
        folder: A run folder, whose configuration is checked.
        config: A configuration that ltr fit takes.
        data: A collection; beside a run or a configuration, it takes the place of its data.path.
        run: A run file in TREC format: what of its rankings is judged.
        json: Also write all numbers to this file.
        html: Also write the page to this file.
    """
    check_file(json, "--json")
    check_file(html, "--html")
    source = _source(folder, config, data)
    collection = open_collection(source)
    sections = list(_sections(collection, run))
    if json is not None:
        write_whole(Path(json), [page.as_json(source, sections)])
    if html is not None:
        write_whole(Path(html), [page.page(source, sections)])
    console = Console(width=None if sys.stdout.isatty() else WIDTH, soft_wrap=False)
    page.terminal(sections, console)
    for file in (json, html):
        if file is not None:
            console.print(f"written to {file}", markup=False, highlight=False)


def _source(folder: str | None, config: str | None, data: str | None) -> str:
    """What is checked, in words."""
    if folder is not None and config is not None:
        raise InputError(
            f"ltr check takes a run folder or --config, got both, {folder} and {config}; leave one out"
        )
    source = folder or config or data
    if source is None:
        raise InputError(
            "ltr check must be told what to check: --config FILE, a run folder, or --data PATH; see ltr check --help"
        )
    return source


def _sections(collection: Collection, run: str | None) -> Iterator[Section]:
    """The sections of the page, one after the other."""
    ranked = None
    if run is not None:
        ranked = lists_of_run(Path(run), collection.queries, collection.corpus)
    yield judgements_section(collection, ranked)
