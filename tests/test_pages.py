"""The pages as they are read: every link leads somewhere, and the rows of a table have the cells of
its head.
"""

import re
from functools import cache
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / f"{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "README", "SECURITY")]
for folder in ("docs", "experiments", "examples"):
    PAGES += (ROOT / folder).rglob("*.md")
NAMES = sorted(str(page.relative_to(ROOT)) for page in PAGES)
CODE = re.compile(r"^ *```.*?^ *```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
BETWEEN_CELLS = re.compile(r"(?<!\\)\|")


def without_blocks(page: Path) -> str:
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of the headings of a page, as GitHub makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", without_blocks(page), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")
        number = sum(re.fullmatch(rf"{re.escape(anchor)}(-\d+)?", one) is not None for one in found)
        found.add(f"{anchor}-{number}" if number else anchor)
    return found


def dead_links(page: Path) -> list[str]:
    """The links of a page to files or headings that are not there."""
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", CODE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            dead.append(target)
    return dead


def n_tables(page: Path) -> tuple[int, int]:
    """How many blocks of rows a page has, and how many tables are shown."""
    blocks = re.findall(r"^ *\|.*\n(?: *\|.*\n)*", without_blocks(page) + "\n", re.MULTILINE)
    tokens = MarkdownIt("commonmark").enable("table").parse(page.read_text())
    return len(blocks), sum(token.type == "table_open" for token in tokens)


def uneven_rows(page: Path) -> list[str]:
    """The rows of tables that have more or fewer cells than the head above them, which are shown with
    empty cells, or without their last ones.
    """
    uneven = []
    n_cells = 0
    for line in without_blocks(page).splitlines():
        row = line.strip()
        if not row.startswith("|"):
            n_cells = 0
            continue
        count = len(BETWEEN_CELLS.findall(row))
        n_cells = n_cells or count
        if count != n_cells:
            uneven.append(row)
    return uneven


@pytest.mark.parametrize("name", NAMES)
def test_every_link_leads_to_a_file_and_a_heading(name):
    assert dead_links(ROOT / name) == []


@pytest.mark.parametrize("name", NAMES)
def test_the_rows_of_a_table_have_the_cells_of_its_head(name):
    assert uneven_rows(ROOT / name) == []
    written, shown = n_tables(ROOT / name)
    assert written == shown


def test_code_names_pages_that_there_are():
    """In errors, helps and docstrings."""
    for folder in ("ltr", "tests", "benchmarks", "experiments", "examples"):
        for file in (ROOT / folder).rglob("*.py"):
            for page in re.findall(r"\bdocs/[\w-]+\.md", file.read_text(encoding="utf-8")):
                assert (ROOT / page).is_file(), f"{file} names {page}"


def test_a_dead_link_and_an_uneven_row_are_found(tmp_path):
    """A pipe within code separates cells, too, unless a backslash stands before it."""
    page = tmp_path / "page.md"
    page.write_text(
        "# On `ltr import`: a, b\n## Twice\n## Twice\n"
        "[a](#on-ltr-import-a-b) [b](#twice-1) [c](page.md#twice) [d](https://x.y/z#w)\n"
        "[e](#twice-2) [f](other.md) `[g](none.md)`\n"
        "| a | b |\n| --- | --- |\n| `x \\| y` | 1 |\n| `x | y` | 1 |\n| 1 |\n"
    )
    assert dead_links(page) == ["#twice-2", "other.md"]
    assert uneven_rows(page) == ["| `x | y` | 1 |", "| 1 |"]
    page.write_text("| a | b |\n| --- |\n| 1 | 2 |\n")
    assert uneven_rows(page) == ["| --- |"] and n_tables(page) == (1, 0)
    page.write_text("  | a | b\n  | | --- | --- | | 1 |\n  2 |\n")  # as text that was wrapped
    assert n_tables(page) == (1, 0)
