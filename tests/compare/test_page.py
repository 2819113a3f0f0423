"""The page of a comparison: what it says, that texts are escaped, and how it looks and works in a
real browser.
"""

import json
import re
import shutil

import numpy as np
import pytest
import yaml

from ltr.__main__ import main
from ltr.checkpoint import FORMAT
from ltr.data.collection import open_collection
from tests.compare.browser import CHROMIUM, Browser
from tests.world.collections import write_collection
from tests.world.tested_runs import TRAINED_WITH, refuses_to_compare, report_of

EVIL = "<script>document.title='taken'</script> & <img src=http://elsewhere.example/x.png> "
CURVE = [
    {"epoch": 0, "step": 10, "seconds": 2.5, "RR": 0.7},
    {"epoch": 1, "step": 20, "seconds": 5.0, "RR": 0.8},
]
CONFIG = """
model: {ranker: {class_path: x}}
data: {class_path: ltr.datamodules.TripletDataModule, init_args: {path: c}}
trainer: {accumulate_grad_batches: 1, overfit_batches: 0.0, callbacks: null}
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Two experiments of two seeds over the tiny world; the worse one puts relevant documents at
    the first three ranks.
    """
    folder = tmp_path_factory.mktemp("page")
    collection = write_collection(folder / "c")
    lines = (collection / "corpus.jsonl").read_text().splitlines()
    docs = [json.loads(line) for line in lines]
    for doc in docs:
        doc["text"] = EVIL + doc["text"]
    (collection / "corpus.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in docs))
    opened = open_collection(str(collection))
    content = {"queries": opened.queries.key, "documents": opened.corpus.key}
    content |= {"judgements": "j", "candidates": "c"}
    rng = np.random.default_rng(0)
    for name, best in (("base <b>", 3), ("good", 1)):
        for seed in (0, 1):
            run = folder / f"runs/{name}/seed={seed}"
            run.mkdir(parents=True)
            ranks = rng.integers(1, best + 1, 30)
            rows = []
            ranked = []
            for query, rank in enumerate(ranks):
                order = [f"test-q{query}-d{d}" for d in range(1, 8)]
                order.insert(rank - 1, f"test-q{query}-d0")
                for at, doc in enumerate(order, start=1):
                    ranked.append(f"test-q{query} Q0 {doc} {at} {9 - at} x\n")
                rows.append(f"test-q{query}\t{1 / rank:.6f}\n")
            (run / "test.run").write_text("".join(ranked))
            (run / "per_query.tsv").write_text("query\tRR\n" + "".join(rows))
            config = yaml.safe_load(CONFIG)
            config["seed_everything"] = seed
            config["model"]["loss"] = name
            (run / "config.yaml").write_text(yaml.safe_dump(config))
            results = {
                "format": FORMAT,
                "directory": str(folder),
                "test": report_of("RR", float((1 / ranks).mean()), evaluated=content),
                "trained_with": TRAINED_WITH,
                "start": {"RR": 0.5},
                "validations": CURVE,
            }
            (run / "metrics.json").write_text(json.dumps(results))
    file = folder / "page.html"
    assert main(["compare", *runs_of(file), "--html", str(file)]) == 0
    return file


def runs_of(page) -> list[str]:
    return [str(page.parent / "runs" / name) for name in ("base <b>", "good")]


def explored(page) -> dict:
    """What the explorer of a page has."""
    found = re.search(
        r'<script type="application/json" id="explored">(.*?)</script>', page.read_text()
    )
    return json.loads(found[1])


def values_of(page, name) -> dict[str, list[float]]:
    """By query, the values of both seeds."""
    values: dict[str, list[float]] = {}
    for seed in (0, 1):
        file = page.parent / f"runs/{name}/seed={seed}/per_query.tsv"
        for line in file.read_text().splitlines()[1:]:
            query, value = line.split("\t")
            values.setdefault(query, []).append(float(value))
    return values


def test_the_page_is_whole_and_asks_for_nothing(page):
    text = page.read_text()
    assert "base &lt;b&gt;" in text and "base <b>" not in text
    assert EVIL.strip() not in text and "<img" not in text
    assert text.count(r"\u003cscript>document.title") == len(explored(page)["documents"])
    assert text.count("<script>") == 2, "the explorer's and that of the tables"
    assert not re.findall(r"""(?:src|href)\s*=\s*["'](?!#|data:,)""", text)
    assert "@import" not in text and "url(http" not in text


def test_the_page_shows_tables_figures_and_the_queries_that_differ_most(page):
    text = page.read_text()
    assert "RR against base &lt;b&gt;; level 0.05" in text and '<td class="verdict">better' in text
    assert text.count("<figure") == 4 and "step 0 is before training" in text
    assert "RR on dev by seconds of training" in text and "Precision at each rank" in text


def test_the_explorer_has_both_rankings_of_each_query_that_differs(page):
    """The first seeds: the relevant document, d0, is at rank 1 for good, and at rank 1 to 3 for the
    base, whose scores are 9 less the rank.
    """
    found = explored(page)
    (compared,) = found["comparisons"]
    assert compared["sides"] == ["good", "base <b>"] and compared["metric"] == "RR"
    assert compared["compared"] == 30 and not compared["lower_is_better"]
    assert len(compared["rows"]) == compared["differing"] < 30, "some do not differ"
    differences = [row[1] for row in compared["rows"]]
    assert differences == sorted(differences, reverse=True) and min(differences) > 0
    ids = [query for query, _ in found["queries"]]
    docs = [doc for doc, _ in found["documents"]]
    assert len(set(docs)) == len(docs), "each text is there once"
    values = {name: values_of(page, name) for name in compared["sides"]}
    n_moved = 0
    for place, difference, good, base in compared["rows"]:
        query = ids[place]
        assert good == pytest.approx(np.mean(values["good"][query]), abs=1e-6) == 1.0
        assert base == pytest.approx(np.mean(values["base <b>"][query]), abs=1e-6)
        assert difference == pytest.approx(good - base, abs=2e-6)
        grades = {docs[doc]: grade for doc, grade in found["grades"][place]}
        assert grades[f"{query}-d0"] == 1 and grades[f"{query}-d1"] == 0
        assert f"{query}-d2" not in grades, "nobody has judged it"
        for name in compared["sides"]:
            rank = round(1 / values[name][query][0])
            top = found["rankings"][name][place]["top"]
            assert len(top) == 5
            assert [docs[doc] for doc, _ in top][rank - 1] == f"{query}-d0"
            assert top[rank - 1][1] == 9 - rank
            n_moved += rank > 1
    assert n_moved > 0


def test_the_explorer_says_where_a_document_is_that_one_of_both_has_on_top(page, tmp_path):
    """d7 is first for one, and eighth for the other, which shows five."""
    runs = page.parent / "runs"
    shutil.copytree(runs / "good", tmp_path / "other")
    file = tmp_path / "other/seed=0/test.run"
    lines = file.read_text().splitlines()
    for number, line in enumerate(lines):
        query, _, doc, *_ = line.split()
        if doc == f"{query}-d7":  # the last of eight
            lines[number] = f"{query} Q0 {doc} 1 99 x"
    file.write_text("\n".join(lines) + "\n")
    html = tmp_path / "page.html"
    assert (
        main(["compare", str(runs / "base <b>"), str(tmp_path / "other"), "--html", str(html)]) == 0
    )
    found = explored(html)
    docs = [doc for doc, _ in found["documents"]]
    other, base = found["comparisons"][0]["sides"]
    for place, (query, _) in enumerate(found["queries"]):
        assert docs[found["rankings"][other][place]["top"][0][0]] == f"{query}-d7"
        there = {docs[doc]: rank for doc, rank in found["rankings"][base][place]["others"]}
        assert there == {f"{query}-d7": 8}


def test_the_explorer_keeps_the_queries_that_differ_most(page, tmp_path, monkeypatch):
    """Three of them, and says how many there are."""
    (whole,) = explored(page)["comparisons"]
    monkeypatch.setattr("ltr.compare.explorer.QUERIES", 3)
    file = tmp_path / "page.html"
    assert main(["compare", *runs_of(page), "--html", str(file)]) == 0
    (compared,) = explored(file)["comparisons"]
    assert compared["differing"] == whole["differing"] > 3
    assert [row[1:] for row in compared["rows"]] == [row[1:] for row in whole["rows"][:3]]
    assert len(explored(file)["queries"]) == 3


def test_the_explorer_has_small_differences_and_small_scores(page, tmp_path):
    """A difference of 1e-7 is of a query that was won; probabilities of 2e-5 and 3e-5 differ."""
    runs = tmp_path / "runs"
    shutil.copytree(page.parent / "runs", runs)
    for seed in (0, 1):
        base = runs / f"base <b>/seed={seed}"
        shutil.copy(base / "metrics.json", runs / f"good/seed={seed}")
        file = runs / f"good/seed={seed}/per_query.tsv"
        lines = (base / "per_query.tsv").read_text().splitlines()
        query, value = lines[1].split("\t")
        lines[1] = f"{query}\t{float(value) - 1e-7:.9f}"
        file.write_text("\n".join(lines) + "\n")
    file = runs / "good/seed=0/test.run"
    scored = []
    for line in file.read_text().splitlines():
        *words, score, name = line.split()
        scored.append(" ".join([*words, f"{float(score) / 1e5:.7f}", name]))
    file.write_text("\n".join(scored) + "\n")
    html = tmp_path / "page.html"
    words = [str(runs / "base <b>"), str(runs / "good")]
    assert main(["compare", *words, "--html", str(html)]) == 0
    found = explored(html)
    ((_, difference, good, base),) = found["comparisons"][0]["rows"]
    assert difference == pytest.approx(-1e-7, rel=1e-3) and good < base
    scores = [score for _, score in found["rankings"]["good"][0]["top"]]
    assert scores == pytest.approx([8e-5, 7e-5, 6e-5, 5e-5, 4e-5], rel=1e-6)


def test_two_that_rank_alike_have_no_heading_of_what_differs(page, tmp_path):
    """Nothing would stand below it."""
    runs = page.parent / "runs"
    shutil.copytree(runs / "good", tmp_path / "same")
    file = tmp_path / "page.html"
    assert main(["compare", str(runs / "good"), str(tmp_path / "same"), "--html", str(file)]) == 0
    text = file.read_text()
    assert "Query by query" not in text and "Precision at each rank" in text
    assert not re.search(r"<h(\d)>[^<]*</h\1>\s*(<h|</body|<script)", text)


def test_documents_that_are_gone_or_changed_are_not_shown(page, tmp_path, caplog):
    """The rest of the page is there, and a warning says why."""
    collection = page.parent / "c"
    collection.rename(page.parent / "away")
    try:
        assert main(["compare", *runs_of(page), "--html", str(tmp_path / "page.html")]) == 0
    finally:
        (page.parent / "away").rename(collection)
    text = (tmp_path / "page.html").read_text()
    assert 'id="explored"' not in text and text.count("<figure") == 3
    assert "documents are not shown" in caplog.text


def test_an_empty_ranking_is_refused(page, tmp_path, capsys):
    """Its precision would be a mean over no query, which is no number."""
    ranking = page.parent / "runs/good/seed=0/test.run"
    text = ranking.read_text()
    ranking.write_text("")
    said = f"{ranking}: the split is empty; at least one line is needed"
    html = ["--html", str(tmp_path / "page.html")]
    try:
        told = refuses_to_compare(capsys, [*runs_of(page), *html], said)
    finally:
        ranking.write_text(text)
    assert told == f"ltr: {said}\n"
    assert not (tmp_path / "page.html").exists()


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_the_page_works_in_a_browser(page, tmp_path):
    browser = Browser(CHROMIUM)
    try:
        shots = {}
        for width in (1280, 390):
            for dark in (False, True):
                browser.open(page, width, dark)
                # No text of a document has run, and only tables scroll sideways.
                assert browser.run("document.title") == "2 experiments by RR"
                assert browser.run("document.documentElement.scrollWidth") <= width
                colour = browser.run("getComputedStyle(document.body).backgroundColor")
                assert colour == ("rgb(20, 23, 26)" if dark else "rgb(255, 255, 255)")
                # The verdict comes first, and whole.
                verdict = "document.querySelector('td.verdict').getBoundingClientRect()"
                assert browser.run(f"{verdict}.right") <= width
                assert browser.run(f"{verdict}.top") < 400
                if width == 1280:
                    table = "document.querySelector('.wide')"
                    assert browser.run(f"{table}.scrollWidth <= {table}.clientWidth")
                shots[width, dark] = browser.screenshot(tmp_path / "shot.png")
        assert len(set(shots.values())) == 4
        names = "[...document.querySelectorAll('table')[1].tBodies[0].rows].map(row => row.cells[0].textContent)"
        assert browser.run(names) == ["base <b>", "good"]
        # by the metric
        click = "document.querySelectorAll('table')[1].querySelectorAll('th button')[2].click()"
        browser.run(click)
        assert browser.run(names) == ["good", "base <b>"]
        assert browser.run("document.querySelector('th[aria-sort]').ariaSort") == "descending"
        browser.run(click)
        assert browser.run(names) == ["base <b>", "good"]
        n_queries = "document.querySelectorAll('.explorer details').length"
        differing = explored(page)["comparisons"][0]["differing"]
        assert browser.run(n_queries) == differing
        opened = "document.querySelector('.explorer details')"
        assert "grade 1" not in browser.run(f"{opened}.innerText")
        browser.run(f"{opened}.open = true")
        while browser.run(f"{opened}.querySelector('.sides') === null"):
            pass
        told = browser.run(f"{opened}.innerText")
        assert "grade 1" in told and "not judged" in told and EVIL.strip() in told
        # What is first for one was second or third for the other.
        assert re.search(r"grade 1 · ↑ [12], there [23] · test-q\d+-d0 · 8.000", told)
        assert re.search(r"grade 1 · ↓ [12], there 1 · test-q\d+-d0 · [67].000", told)
        browser.screenshot(tmp_path / "explorer.png")
        buttons = "[...document.querySelectorAll('.explorer nav button')]"
        names = browser.run(f"{buttons}.map(each => each.textContent)")
        assert names == [f"all {differing}", f"won {differing}", "lost 0"]
        browser.run(f"{buttons}[2].click()")
        assert browser.run(n_queries) == 0
        assert browser.run("document.querySelector('.explorer').innerText").endswith("no query")
        browser.run(f"{buttons}[1].click()")
        assert browser.run(n_queries) == differing
        query = explored(page)["queries"][3][0]
        browser.run(
            f"(search => {{ search.value = '{query}:'; search.dispatchEvent(new Event('input')) }})(document.querySelector('.explorer input'))"
        )
        assert browser.run(n_queries) == 1
        assert query in browser.run(f"{opened}.innerText")
        assert browser.requests
        assert all(one.startswith(("file://", "data:")) for one in browser.requests)
    finally:
        browser.close()


def test_documents_that_cannot_be_shown_are_said(page, tmp_path, caplog):
    """A run without test.run, as the folds of a cross-validation are together."""
    runs = page.parent / "runs"
    shutil.copytree(runs / "good", tmp_path / "other")
    (tmp_path / "other/seed=0/test.run").unlink()
    file = tmp_path / "page.html"
    assert main(["compare", str(runs / "good"), str(tmp_path / "other"), "--html", str(file)]) == 0
    assert "Precision at each rank" not in file.read_text()
    missing = tmp_path / "other/seed=0/test.run"
    assert f"documents are not shown: there is no {missing};" in caplog.text
