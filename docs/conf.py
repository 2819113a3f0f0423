"""The site that ``make site`` builds of these pages and of the docstrings of ``ltr``.

Every page is plain Markdown, as a forge shows it. What Sphinx needs besides stands in ``site/``.
"""

import logging
import sys
from configparser import ConfigParser
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

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
source_address = _setup["metadata"].get("url", "")

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

autodoc_default_options = {"members": True, "show-inheritance": True}
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


def add_summary(
    app: Sphinx, what: str, name: str, module: Any, options: Any, lines: list[str]
) -> None:
    """The first paragraph of a room, and a table of what it exports."""
    if what == "module" and hasattr(module, "__all__"):
        names = [name for name in module.__all__ if callable(getattr(module, name))]
        del lines[lines.index("") :]  # the rest is for readers of the code
        lines += ["", ".. autosummary::", "   :nosignatures:", ""]
        lines += [f"   {name}" for name in names]


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", add_summary)
