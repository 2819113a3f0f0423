"""The sections of a check in the terminal, as JSON, as one self-contained HTML file."""

import json
from collections.abc import Sequence

from ltr import __version__
from ltr.check.section import Section
from ltr.compare.html import rendered
from ltr.compare.table_formats import print_tables
from ltr.data.console import Console


def print_sections(sections: Sequence[Section], console: Console) -> None:
    """Print the sections; what is severe stands first in each, in red."""
    for section in sections:
        console.print(section.title, style="bold underline", markup=False, highlight=False)
        for line in section.severe:
            console.print(f"! {line}", style="bold red", markup=False, highlight=False)
        for line in section.lines:
            console.print(line, markup=False, highlight=False)
        console.print()
        print_tables(section.tables, [], console)


def as_json(source: str, sections: Sequence[Section]) -> str:
    """The numbers of all sections of a check with their names."""
    parts = []
    for section in sections:
        parts.append(
            {
                "title": section.title,
                "severe": section.severe,
                "lines": section.lines,
                "entries": section.entries,
            }
        )
    content = {"checked": source, "ltr": __version__, "sections": parts}
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def as_html(source: str, sections: Sequence[Section]) -> str:
    """One HTML file that asks for nothing from elsewhere, in the form of the comparison's page. All
    texts are escaped.
    """
    return rendered(
        "ltr.check", "page_of_check.html", title=f"Check of {source}", sections=sections
    )
