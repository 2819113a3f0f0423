"""The site of the documentation: every page is in its navigation, every public name on a page of the
API, and every link of the built site leads somewhere.
"""

import importlib
import pkgutil
import re
import subprocess
import sys
import zlib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import ltr
from ltr.cli.commands import COMMANDS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
ADDRESS = "https://forge.example/ltr"
DIRECTIVE = re.compile(r"^\.\. auto(module|class|function):: ([\w.]+)$", re.MULTILINE)


def documented() -> list[tuple[str, str]]:
    """What the pages of the API document, as kind and dotted name."""
    found = []
    for page in sorted((DOCS / "api").glob("*.rst")):
        found += DIRECTIVE.findall(page.read_text(encoding="utf-8"))
    return found


def rooms() -> dict[str, list[str]]:
    """The names that each package inside ``ltr`` exports."""
    exported = {}
    for package in pkgutil.walk_packages(ltr.__path__, "ltr."):
        if package.ispkg:
            names = getattr(importlib.import_module(package.name), "__all__", [])
            if names:
                exported[package.name] = names
    return exported


def test_every_page_has_a_row_in_the_list_of_pages():
    """The navigation of the site and llms.txt are made of these rows."""
    text = (DOCS / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[.+?\]\(([\w-]+\.md)\) \| .+ \|$", text, re.MULTILINE)
    pages = {page.name for page in DOCS.glob("*.md")} - {"README.md", "index.md"}
    assert sorted(listed) == sorted(pages)


def test_every_page_of_the_api_is_in_the_navigation():
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    listed = re.findall(r"^api/(\w+)$", text, re.MULTILINE)
    assert sorted(listed) == sorted(page.stem for page in (DOCS / "api").glob("*.rst"))


def test_every_room_with_public_names_is_on_a_page():
    exported = rooms()
    assert len(exported) >= 6
    assert exported.keys() <= {name for kind, name in documented() if kind == "module"}


@pytest.mark.parametrize(("kind", "name"), documented())
def test_what_a_page_documents_is_there_and_says_what_it_is(kind, name):
    if kind == "module":
        found = importlib.import_module(name)
    else:
        module, _, attribute = name.rpartition(".")
        found = getattr(importlib.import_module(module), attribute)
        assert isinstance(found, type) == (kind == "class")
    assert found.__doc__


# What others are made from, and a ranker whose weights no package brings.
WITHOUT_EXAMPLE = {"InBatch", "PoolDataModule", "RankingDataModule", "Ranker", "DecoderRanker"}


def test_every_public_class_has_an_example():
    """tests/test_doctests.py runs them."""
    missing = set()
    for room, names in rooms().items():
        for name in names:
            public = getattr(importlib.import_module(room), name)
            if isinstance(public, type) and ">>> " not in public.__doc__:
                missing.add(name)
    assert missing == WITHOUT_EXAMPLE


class Targets(HTMLParser):
    """What a page of HTML leads to, and the places in it that can be led to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called for each tag."""
        for name, value in attrs:
            if name == "id":
                self.ids.add(value or "")
            if name in ("href", "src"):
                self.links.append(value or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    pytest.importorskip("furo")
    folder = tmp_path_factory.mktemp("site")
    words = ["-q", "-W", "--keep-going", "-D", f"source_address={ADDRESS}"]
    words += ["-d", str(folder / "doctrees"), str(DOCS)]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *words, str(folder / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder / "site"


@pytest.mark.long
def test_every_link_of_the_site_leads_somewhere_and_nothing_is_fetched(site):
    """Links to other sites are not followed; pictures, styles and scripts come from none."""
    pages = {}
    for path in site.rglob("*.html"):
        pages[path] = Targets(path.read_text(encoding="utf-8"))
    assert len(pages) > 40
    lost = []
    for path, page in pages.items():
        for link in page.links:
            address = urlsplit(link)
            if address.scheme or address.netloc:
                continue
            target = path
            if address.path:
                target = (path.parent / unquote(address.path)).resolve()
            anchor = unquote(address.fragment)
            has_place = target not in pages or not anchor or anchor in pages[target].ids
            if not target.exists() or not has_place:
                lost.append((path.name, link))
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"""<(?:img|script|source)[^>]*\ssrc="(?:https?:)?//""", text)
        assert not re.search(r"""<link[^>]*\srel="stylesheet"[^>]*href="(?:https?:)?//""", text)
    assert lost == []


@pytest.mark.long
def test_files_outside_the_pages_are_read_where_the_source_is(site):
    """Without an address, as ``make site`` has none yet, their names stay without a link."""
    found = set()
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        found |= set(re.findall(rf'href="{ADDRESS}/(blob|tree)/HEAD/([^"#]+)', text))
    assert {("blob", "ltr/draws.py"), ("tree", "ltr/margins"), ("blob", "SECURITY.md")} <= found
    for kind, name in found:
        place = ROOT / name
        assert place.is_dir() if kind == "tree" else place.is_file(), name


@pytest.mark.long
def test_every_public_name_can_be_found_in_the_site(site):
    """In the index of objects that other projects and the search read."""
    inventory = (site / "objects.inv").read_bytes()
    listing = zlib.decompress(inventory.split(b"\n", 4)[4]).decode()
    names = {line.split(" ", 1)[0] for line in listing.splitlines()}
    assert "ltr.load" in names
    for room, exported in rooms().items():
        module = importlib.import_module(room)
        for name in exported:
            if isinstance(getattr(module, name), type):
                assert f"{room}.{name}" in names


@pytest.mark.long
def test_formulas_are_shown_without_scripts(site):
    """Each ``.. math::`` of a docstring is MathML, and none is left as text."""
    page = (site / "api/losses.html").read_text(encoding="utf-8")
    assert page.count('<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">') >= 20
    assert ":math:" not in page and ".. math" not in page and "mathjax" not in page.lower()


@pytest.mark.long
def test_the_list_for_programs_leads_to_every_page(site):
    text = (site / "llms.txt").read_text(encoding="utf-8")
    assert text.startswith("# ltr\n\n> ")
    listed = re.findall(r"^- \[.+?\]\((.+?)\): .+$", text, re.MULTILINE)
    assert len(listed) >= len(list(DOCS.glob("*.md"))) - 2
    for target in listed:
        assert (site / target).is_file(), target


def test_the_gallery_has_every_picture():
    text = (DOCS / "gallery.md").read_text(encoding="utf-8")
    pictures = [*DOCS.rglob("*.svg"), *DOCS.rglob("*.png")]
    names = [path.relative_to(DOCS).as_posix() for path in pictures]
    assert sorted(re.findall(r"\]\(([\w/]+\.(?:svg|png))\)", text)) == sorted(names)


def test_the_index_of_an_accented_letter_stands_behind_it(monkeypatch):
    r"""``\bar x_i`` is x with a bar, and an index; the limits of a sum stay where they are."""
    docutils = pytest.importorskip("docutils.utils.math.latex2mathml")
    monkeypatch.syspath_prepend(DOCS / "site")
    formulas = importlib.import_module("formulas")

    def shown(formula: str) -> str:
        mathml = formulas.with_indices_aside(docutils.tex2mathml(formula, as_block=True))
        return re.sub(r" [\w-]+=\"[^\"]*\"|\s", "", mathml)

    accented = "<mover><mi>x</mi><mo>ˉ</mo></mover>"
    assert f"<msub>{accented}<mi>i</mi></msub>" in shown(r"\bar x_i")
    assert f"<msub>{accented}<mrow><mi>s</mi><mi>k</mi></mrow></msub>" in shown(r"\bar x_{sk}")
    assert "<munderover><mo>∑</mo><mi>i</mi><mi>n</mi></munderover>" in shown(r"\sum_i^n \log x_i")


def test_the_page_for_programs_names_every_command():
    page = (DOCS / "agents.md").read_text(encoding="utf-8")
    for command in COMMANDS:
        assert f"`ltr {command.name}" in page, command.name


def test_the_examples_of_the_page_for_programs_run():
    page = (DOCS / "agents.md").read_text(encoding="utf-8")
    loss, load = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    exec(loss, {})
    # README's example of the same lines is run, with the run that it needs.
    assert load.splitlines()[2] in (ROOT / "README.md").read_text(encoding="utf-8")
