"""The site that ``make site`` builds of these pages and of the docstrings of ``ltr``.

Every page is plain Markdown, as a forge shows it. What Sphinx needs besides stands in ``site/``.
"""

import inspect
import logging
import re
import sys
from configparser import ConfigParser
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.domains.python import PyObject

import ltr

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS / "site"))

_setup = ConfigParser()
_setup.read(DOCS.parent / "setup.cfg", encoding="utf-8")

logging.getLogger("faiss.loader").setLevel(logging.WARNING)  # it tells what it has loaded

project = "ltr"
author = _setup["metadata"]["author"]
version = ltr.__version__
description = _setup["metadata"]["description"]
# Where files outside docs/ can be read; without it their links are left out.
source_address = _setup["metadata"].get("url", "").rstrip("/")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    # in site/
    "formulas",
    "links",
    "pages",
]
root_doc = "index"
exclude_patterns = ["site"]
nitpicky = False

# Markdown as forges read it: anchors of headings, and formulas in ```math and $`…`$.
myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath"]
myst_fence_as_directive = ["math"]

autodoc_default_options = {"members": True}
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autosummary_generate = False
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = ["Use", "Cost"]
python_use_unqualified_type_names = True
add_module_names = False

html_theme = "furo"
html_title = f"ltr {version}"
html_static_path = ["site/static"]
html_css_files = ["ltr.css"]
html_show_copyright = False
html_show_sphinx = False
html_math_renderer = "mathml"
html_theme_options = {"navigation_with_keys": True}


def prepare_docstring(
    app: Sphinx, what: str, name: str, documented: Any, options: Any, lines: list[str]
) -> None:
    """What napoleon does not read as it is meant, rewritten."""
    if what == "module" and hasattr(documented, "__all__"):
        names = [name for name in documented.__all__ if callable(getattr(documented, name))]
        del lines[lines.index("") :]  # the rest is for readers of the code
        lines += ["", ".. autosummary::", "   :nosignatures:", ""]
        lines += [f"   {name}" for name in names]
    else:
        # A section that begins on the line of its name is a paragraph.
        sections = re.compile(r"^(Use|Cost|References): (?=\S)", re.MULTILINE)
        text = sections.sub(r"\n**\1.** ", "\n".join(lines))
        lines[:] = text.split("\n")
        figure = f"figures/{name.rpartition('.')[2]}.svg"
        if what == "class" and (DOCS / figure).exists():
            lines += ["", f".. image:: /{figure}", "   :alt: value and gradient"]


def restore_property(
    app: Sphinx, what: str, name: str, documented: Any, options: Any, lines: list[str]
) -> None:
    """Napoleon takes what stands before a colon for the type of a property."""
    if what == "property":
        lines[:] = [*inspect.cleandoc(documented.__doc__ or "").splitlines(), ""]


def name_public_bases(
    app: Sphinx, name: str, documented: type, options: Any, bases: list[type]
) -> None:
    """A base whose name is private is no link: its own bases stand for it."""
    public = []
    for base in bases:
        public += base.__bases__ if base.__name__.startswith("_") else [base]
    bases[:] = public


def skip_fields(app: Sphinx, what: str, name: str, member: Any, skip: bool, options: Any) -> bool:
    """The fields of a NamedTuple stand under its attributes already."""
    return skip or type(member).__name__ == "_tuplegetter"


def shorten_types(app: Sphinx, document: nodes.document) -> None:
    """``~ltr.pairs.choices.PairChoice`` beside a choice of words is left as it is by autodoc."""
    for text in list(document.findall(nodes.Text)):
        if "~" in text and isinstance(text.parent, nodes.emphasis):
            text.parent.replace(text, nodes.Text(re.sub(r"~(?:\w+\.)+", "", text)))


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", prepare_docstring, priority=400)  # before napoleon
    app.connect("autodoc-process-docstring", restore_property, priority=600)  # after it
    app.connect("autodoc-process-bases", name_public_bases)
    app.connect("autodoc-skip-member", skip_fields)
    app.connect("doctree-read", shorten_types)
    for field in PyObject.doc_field_types:
        if field.name == "variable":
            field.label = "Attributes"
