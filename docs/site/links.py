"""Links to files outside ``docs/``: to where the source can be read, if that is known."""

from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

DOCS = Path(__file__).resolve().parents[1]
ROOT = DOCS.parent


class LinksOutOfDocs(SphinxTransform):
    """``../ltr/draws.py`` is no page: its link leads to ``source_address``, or is left out."""

    default_priority = 200

    def apply(self) -> None:
        for kind in (addnodes.pending_xref, addnodes.download_reference):
            for link in list(self.document.findall(kind)):
                if link.get("reftype") == "myst":
                    self._replace(link)

    def _replace(self, link: nodes.Element) -> None:
        name, _, anchor = link["reftarget"].partition("#")
        folder = (DOCS / self.env.docname).parent
        if link.get("refdomain") == "doc":
            if name in self.env.found_docs:
                return
            folder = DOCS
            name = f"{name}.md"
        elif self.env.docname == self.config.root_doc:
            folder = ROOT  # it shows the README of the project
        file = (folder / name).resolve()
        if not file.exists() or not file.is_relative_to(ROOT):
            return  # Sphinx warns of it
        inside = file.relative_to(ROOT).as_posix()
        if inside == "README.md":
            self._to_start(link, anchor)
        elif self.config.source_address:
            form = "tree" if file.is_dir() else "blob"
            address = f"{self.config.source_address}/{form}/HEAD/{inside}"
            if anchor:
                address += f"#{anchor}"
            link.replace_self(nodes.reference("", "", *link.children, refuri=address))
        else:
            link.replace_self(nodes.inline("", "", *link.children))

    def _to_start(self, link: nodes.Element, anchor: str) -> None:
        """The README of the project is the first page."""
        link["refdomain"] = "doc"
        link["reftarget"] = self.config.root_doc
        link["reftargetid"] = anchor or None


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_config_value("source_address", "", "env")
    app.add_transform(LinksOutOfDocs)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
