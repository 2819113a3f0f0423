"""The list of pages stands once, in ``docs/README.md``; the navigation and ``llms.txt`` follow."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.directives.other import TocTree

LIST = Path(__file__).parents[1] / "README.md"


class Page(NamedTuple):
    """A row of a table of ``docs/README.md``."""

    title: str
    name: str
    question: str


def sections() -> Iterator[tuple[str, list[Page]]]:
    """Heading and pages of each section that lists pages."""
    for section in LIST.read_text(encoding="utf-8").split("\n## ")[1:]:
        heading = section.partition("\n")[0]
        rows = re.findall(r"^\| \[(.+?)\]\(([\w-]+)\.md\) \| (.+) \|$", section, re.MULTILINE)
        if rows:
            yield heading, [Page(*row) for row in rows]


class Pages(TocTree):
    """The navigation: a part for each section of ``docs/README.md``."""

    has_content = False

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(LIST))
        navigation = []
        for heading, pages in sections():
            self.options = {"caption": heading, "hidden": True}
            entries = [f"{page.title} <{page.name}>" for page in pages]
            self.content = StringList(entries, source=str(LIST))
            navigation += super().run()
        return navigation


def write_llms(app: Sphinx, error: Exception | None) -> None:
    """``llms.txt``: what there is to read, for programs. Its links are the pages as Markdown."""
    if error is not None or app.builder.name != "html":
        return
    lines = ["# ltr", "", f"> {app.config.description}.", ""]
    for heading, pages in sections():
        lines += [f"## {heading}", ""]
        for page in pages:
            lines.append(f"- [{page.title}](_sources/{page.name}.md.txt): {page.question}")
        lines.append("")
    lines += ["## Python API", ""]
    for name in sorted(app.env.found_docs):
        if name.startswith("api/"):
            title = app.env.titles[name].astext()
            lines.append(
                f"- [{title}]({name}.html): classes and functions, with options and examples"
            )
    text = "\n".join(lines) + "\n"
    (Path(app.outdir) / "llms.txt").write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_config_value("description", "", "html")
    app.add_directive("pages", Pages)
    app.connect("build-finished", write_llms)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
