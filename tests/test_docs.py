"""docs/losses.md and its figures say what the docstrings and the losses say; other pages name tests
and files that exist.
"""

import importlib
import inspect
import re
from pathlib import Path

import numpy as np
import pytest

from ltr.losses import LOSSES

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def build():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS)
        yield importlib.import_module("build_losses")


@pytest.fixture(scope="module")
def figures(build):
    return importlib.import_module("loss_figures")


def test_the_page_is_what_the_docstrings_say(build):
    stored = (DOCS / "losses.md").read_text(encoding="utf-8")
    assert stored == build.page(), "a docstring has changed: run `make docs`"


@pytest.mark.parametrize("cls", LOSSES.values(), ids=lambda cls: cls.__name__)
def test_every_loss_has_a_row_a_section_and_a_figure(build, cls):
    parts = build.described(cls)
    page = (DOCS / "losses.md").read_text(encoding="utf-8")
    for part in ("Use", "Cost", "References"):
        assert parts[part].strip(), f"{cls.__name__} has no {part}:"
    row = rf"^\| \[{cls.__name__}\]\(#{cls.__name__.lower()}\) \|"
    assert len(re.findall(row, page, re.MULTILINE)) == 1
    heading = rf"^### {cls.__name__}\n(.*?)(?=^##|\Z)"
    (section,) = re.findall(heading, page, re.MULTILINE | re.DOTALL)
    assert "```math\n" in section or "$`" in section
    assert f"(figures/{cls.__name__}.svg)" in section
    assert "<svg" in (DOCS / f"figures/{cls.__name__}.svg").read_text(encoding="utf-8")
    for option in inspect.signature(cls).parameters:
        assert f"\n* `{option}` (" in section, f"{cls.__name__} does not say what {option} is"


def test_every_link_leads_somewhere_and_no_mark_of_a_docstring_is_left():
    page = (DOCS / "losses.md").read_text(encoding="utf-8")
    headings = {heading.lower() for heading in re.findall(r"^#+ (\w+)$", page, re.MULTILINE)}
    for target in re.findall(r"\]\(([^)]*)\)", page):
        there = target[1:] in headings if target.startswith("#") else (DOCS / target).exists()
        assert there, target
    assert not re.search(r":\w+:`|\.\. math|(?<!`)``(?!`)", page)


def test_there_are_no_figures_of_losses_that_are_no_more(figures):
    assert figures.FIGURES.keys() <= LOSSES.keys()
    assert {path.stem for path in (DOCS / "figures").iterdir()} == LOSSES.keys()


# Tables whose last column names tests: their first row, their number, and the rooms of the tests.
SHOWN = {
    "run_cases.md": (r"\| case \| what happens .*", 6, ("run", "cli", "data")),
    "cluster.md": (r"\| .* shown by .*", 1, ("run",)),
    "failures.md": (r"\| .* shown by .*", 1, ("run",)),
}


@pytest.mark.parametrize("name", SHOWN)
def test_every_row_names_tests_that_exist(name):
    """Those that no file stands before are in test_failures.py."""
    head, n_tables, rooms = SHOWN[name]
    texts = {}
    for room in rooms:
        for file in (DOCS.parent / "tests" / room).rglob("test_*.py"):
            texts[file.name] = file.read_text()
    page = (DOCS / name).read_text(encoding="utf-8")
    tables = re.findall(rf"^{head}\n\| --- .*\n((?:\|.*\n)+)", page, re.MULTILINE)
    assert len(tables) == n_tables
    for row in "".join(tables).splitlines():
        named = re.findall(r"`(?:(test_\w+\.py)::)?(test_\w+)`", row.rpartition(" | ")[2])
        assert named, f"nothing shows it: {row}"
        for file, test in named:
            assert f"\ndef {test}(" in texts[file or "test_failures.py"], (file, test)


# Value and gradient of the moving document at gap x, the other's score being 0.
def hinge(margin):
    return lambda x: np.maximum(0, margin - x), lambda x: -1.0 * (x < margin)


def logistic(sigma):
    return lambda x: np.log(1 + np.exp(-sigma * x)), lambda x: -sigma / (1 + np.exp(sigma * x))


BY_HAND = {
    ("RankNetLoss", "sigma = 2"): logistic(2),
    ("RankNetLoss", "sigma = 0.5"): logistic(0.5),
    ("MarginRankingLoss", "margin = 2"): hinge(2),
    ("AdaptiveMarginRankingLoss", "k = 2"): hinge(3),
    ("MSELoss", "y = (2, 0)"): (lambda x: (x - 2) ** 2 / 2, lambda x: x - 2),
    ("MarginMSELoss", "y = (2, 0)"): (lambda x: (x - 2) ** 2, lambda x: 2 * (x - 2)),
    # Three negatives at -2, 0 and 2.
    ("SoftmaxLoss", "temperature = 1"): (
        lambda x: np.log(1 + np.exp(-x) * (np.exp(-2) + 1 + np.exp(2))),
        lambda x: -1 / (1 + np.exp(x) / (np.exp(-2) + 1 + np.exp(2))),
    ),
    ("BatchHardTripletLoss", "margin = 1"): hinge(3),
}


@pytest.mark.parametrize("name, legend", BY_HAND, ids=lambda word: word.replace(" ", ""))
def test_a_figure_shows_value_and_gradient(figures, name, legend):
    ((value, gradient),) = [both for words, *both in figures.curves(name) if words == legend]
    expected_value, expected_gradient = BY_HAND[name, legend]
    np.testing.assert_allclose(value, expected_value(figures.GAPS), atol=1e-12)
    kink = np.isclose(expected_value(figures.GAPS), 0)  # at a kink either side's gradient will do
    np.testing.assert_allclose(gradient[~kink], expected_gradient(figures.GAPS)[~kink], atol=1e-12)


def test_building_a_figure_again_gives_the_same_bytes(figures):
    assert figures.svg("RankNetLoss") == figures.svg("RankNetLoss")


@pytest.mark.long
def test_the_figures_show_the_losses_as_they_are_now(figures):
    """The curves of each file, in points, lie where the losses of today draw them."""

    def drawn(text: str) -> list[np.ndarray]:
        paths = re.findall(r'<path d="([^"]*)"[^>]*stroke-width: 1\.8', text)
        return [np.array(re.findall(r"-?\d+\.?\d*", path), dtype=float) for path in paths]

    for name in LOSSES:
        old = drawn((DOCS / f"figures/{name}.svg").read_text(encoding="utf-8"))
        new = drawn(figures.svg(name))
        assert len(old) == len(new) >= 2 * len(figures.shown_of(name))
        changed = f"{name} has changed: run `make docs`"
        for before, after in zip(old, new, strict=True):
            np.testing.assert_allclose(before, after, atol=0.05, err_msg=changed)


def seconds_of(text: str) -> float:
    """Of ``1.5 s`` or ``145 ms``."""
    number, unit = text.split()
    return float(number) * {"s": 1.0, "ms": 1e-3}[unit]


def test_the_costs_of_a_step_follow_from_their_formulas():
    """Of docs/network.md: 8 P bytes are sent, 6 p operations a token computed at 0.4 · 989 · 10¹² a
    second, and sending hides behind two thirds of the computing.
    """
    page = (DOCS / "network.md").read_text(encoding="utf-8")
    rates = [0.125e9, 1.25e9, 12.5e9, 50e9, 450e9]  # bytes a second, as the columns
    columns = r"\(([\d.]+), ([\d.]+)(?: million)?\) \| ([\d.]+) GB \| ([^|]+) \| (.*) \|"
    rows = re.findall(rf"^\| [^|]*{columns}$", page, re.MULTILINE)
    assert len(rows) == 6
    for all_weights, of_layers, gigabytes, computing, cells in rows:
        unit = 1e9 if float(all_weights) in (4.0, 8.0) else 1e6
        sent = 8 * float(all_weights) * unit
        assert float(gigabytes) * 1e9 == pytest.approx(sent, rel=0.02)
        computed = 6 * float(of_layers) * unit * 16_384 / (0.4 * 989e12)
        assert seconds_of(computing) == pytest.approx(computed, rel=0.03)
        for cell, rate in zip(cells.split(" | "), rates, strict=True):
            time, share = re.fullmatch(r"(.*) \((\d+)(?: %)?\)", cell).groups()
            assert seconds_of(time) == pytest.approx(sent / rate, rel=0.06)
            lost = max(0.0, sent / rate - 2 / 3 * computed)
            assert float(share) == pytest.approx(100 * lost / (computed + lost), abs=1)


@pytest.mark.parametrize("name", ["resume.md", "encoder.md"])
def test_the_files_of_a_walk_are_there_and_hold_what_to_look_for(name):
    page = (DOCS / name).read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| \[`([\w/.]+)`\]\(([\w/.]+)\) \| (.*) \|$", page, re.MULTILINE)
    assert [int(number) for number, *_ in rows] == list(range(1, len(rows) + 1))
    for _, file, target, text in rows:
        assert target == f"../{file}"
        source = (DOCS / target).read_text(encoding="utf-8")
        for named in re.findall(r"`([A-Za-z_.]+)(?:\([\w, ]*\))?`", text):
            assert named.rpartition(".")[2] in source, f"{file} has no {named}"
    for target in re.findall(r"\]\((\.\./[\w/.]+)\)", page):
        assert (DOCS / target).is_file(), target


def test_an_encoder_is_added_by_reading_few_files():
    page = (DOCS / "encoder.md").read_text(encoding="utf-8")
    assert 1 < len(re.findall(r"^\| \d+ \| \[", page, re.MULTILINE)) <= 8
    assert len(page.splitlines()) <= 120
