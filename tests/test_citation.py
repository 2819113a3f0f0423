"""CITATION.cff is valid, and its references are those that the docstrings name."""

import ast
import re
from pathlib import Path

import pytest

from ltr import __version__
from ltr.losses import LOSSES
from ltr.run.yaml_files import read_yaml

ROOT = Path(__file__).parents[1]
FILE = ROOT / "CITATION.cff"
CITATION = read_yaml(FILE)
REFERENCES = CITATION["references"]
# Of the keys of the format those that are used here, by the kind of reference.
COMMON = {"type", "title", "authors", "year", "url"}
KEYS = {
    "article": COMMON | {"journal"},
    "blog": COMMON,
    "conference-paper": COMMON | {"collection-title"},
    "generic": COMMON | {"collection-title"},
    "report": COMMON | {"institution", "number"},
    "unpublished": COMMON,
}
# What losses name besides: a blog post, and for a sum of losses those of its losses.
NOT_CITED = ("infgrad (2020)", "those of the losses")


def plain(text: str) -> str:
    """Lower case, on one line, without hyphens."""
    return " ".join(text.lower().replace("-", " ").split())


def docstrings() -> str:
    found = []
    for file in (ROOT / "ltr").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                found.append(ast.get_docstring(node) or "")
    return plain(" ".join(found))


def test_its_keys_are_those_of_the_format():
    assert CITATION["cff-version"] == "1.2.0"
    assert CITATION["version"] == __version__
    assert CITATION["license"] == "Apache-2.0"
    required = {"cff-version", "message", "title", "authors"}
    assert required <= CITATION.keys() <= required | {"type", "version", "license", "references"}
    for reference in REFERENCES:
        assert {"type", "title", "authors", "year"} <= reference.keys() <= KEYS[reference["type"]]
        assert reference["authors"]
        for author in reference["authors"]:
            assert author.keys() == {"family-names", "given-names"}
        assert isinstance(reference["year"], int)
    titles = [reference["title"] for reference in REFERENCES]
    assert len(set(titles)) == len(titles)


def test_it_is_valid_by_its_schema():
    """cffconvert is in no extra: it wants an old jsonschema."""
    convert = pytest.importorskip("cffconvert")
    convert.Citation(FILE.read_text(encoding="utf-8")).validate()


@pytest.mark.long
def test_every_reference_is_named_by_a_docstring():
    """As ``Burges et al. (2005), Learning to rank using gradient descent``."""
    text = docstrings()
    missing = []
    for reference in REFERENCES:
        author = re.escape(plain(reference["authors"][0]["family-names"]))
        title = re.escape(plain(reference["title"]))
        if not re.search(rf"\b{author}\b[^()]*\({reference['year']}\), {title}", text):
            missing.append(reference["title"])
    assert missing == []


def test_every_work_that_a_loss_names_is_a_reference():
    cited = [(plain(one["authors"][0]["family-names"]), f"({one['year']})") for one in REFERENCES]
    for cls in LOSSES.values():
        (named,) = re.findall(r"References:(.*?)(?:\n\n|$)", cls.__doc__, re.DOTALL)
        for work in plain(named).split("; "):
            is_cited = any(author in work and year in work for author, year in cited)
            assert is_cited or work.startswith(NOT_CITED), f"{cls.__name__}: {work}"
