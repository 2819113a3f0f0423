"""Formulas as MathML, which browsers show without scripts and without a network."""

from html import escape
from xml.etree.ElementTree import Element, fromstring, register_namespace, tostring

from docutils import nodes
from docutils.utils.math import MathError, latex2mathml
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

MATHML = "http://www.w3.org/1998/Math/MathML"
register_namespace("", MATHML)
logger = logging.getLogger(__name__)


class InlineMath(SphinxTransform):
    r"""Forges write a formula in a line as $`\sigma`$; the backticks are not part of it."""

    default_priority = 200

    def apply(self) -> None:
        for formula in self.document.findall(nodes.math):
            text = formula.astext()
            if text.startswith("`") and text.endswith("`"):
                formula.clear()
                formula += nodes.Text(text[1:-1])


def with_indices_aside(formula: str) -> str:
    r"""The MathML of docutils with the index of an accented letter behind it: in ``\bar x_i``
    docutils sets the i under the x.
    """
    tree = fromstring(formula.replace("&ApplyFunction;", "\N{FUNCTION APPLICATION}"))
    for tag in tree.iter(f"{{{MATHML}}}munderover"):
        letter, index, accent = tag
        if accent.get("stretchy") != "false":
            continue  # a sum with its limits
        tag.tag = f"{{{MATHML}}}msub"
        tag.remove(letter)
        tag.remove(accent)
        accented = Element(f"{{{MATHML}}}mover", {"accent": "true"})
        accented.extend([letter, accent])
        tag.insert(0, accented)
    return tostring(tree, encoding="unicode")


def mathml(node: nodes.math | nodes.math_block, as_block: bool = False) -> str:
    """The formula of a node. One that can't be read is a warning, and is shown as it is written."""
    formula = node.astext()
    try:
        return with_indices_aside(latex2mathml.tex2mathml(formula, as_block=as_block))
    except MathError as error:
        logger.warning("%s: %s", error, formula, location=node)
        return f"<code>{escape(formula)}</code>"


def visit_math(translator: HTML5Translator, node: nodes.math) -> None:
    """A formula in a line."""
    translator.body.append(mathml(node))
    raise nodes.SkipNode


def visit_math_block(translator: HTML5Translator, node: nodes.math_block) -> None:
    """A formula on lines of its own."""
    translator.body.append(f'<div class="formula">{mathml(node, as_block=True)}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_transform(InlineMath)
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
