"""What an earlier version has written opens as it did: docs/compatibility.md.

Each folder of tests/stored was written by tests/make_stored.py of the version that it is named after.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

import ltr
from ltr.__main__ import main
from ltr.data.collection import open_collection
from ltr.data.teacher_scores import TeacherScores
from ltr.mining.mined_negatives import MinedNegatives
from tests.make_stored import PAIRS, RANKERS, VECTORS

ROOT = Path(__file__).parents[1]
STORED = ROOT / "tests/stored"
VERSIONS = sorted(folder.name for folder in STORED.iterdir())
SAME = {"rtol": 1e-4, "atol": 1e-5}  # machines round differently


@pytest.fixture(params=VERSIONS)
def stored(request, tmp_path, monkeypatch):
    """A copy of what a version wrote, as the working directory; the numbers that it gave then."""
    folder = shutil.copytree(STORED / request.param, tmp_path / "stored")
    monkeypatch.chdir(folder)
    return json.loads(Path("expected.json").read_text())


@pytest.mark.parametrize("kind", RANKERS)
def test_a_run_and_its_checkpoint_score_as_before(stored, kind):
    texts = VECTORS if kind == "features" else PAIRS
    for source in (kind, f"{kind}/checkpoints/best.ckpt", f"{kind}/checkpoints/last.ckpt"):
        scores = ltr.load(source, device="cpu").score(texts)
        np.testing.assert_allclose(scores, stored["scores"][kind], **SAME)


@pytest.mark.parametrize("kind", RANKERS)
def test_a_run_is_tested_as_before(stored, kind):
    """Also by the test of another process: metrics.json may have more entries now."""
    results = Path(kind, "metrics.json")
    before = json.loads(results.read_text())
    assert main(["test", kind]) == 0
    after = json.loads(results.read_text())
    assert before.keys() <= after.keys() and before["test"].keys() <= after["test"].keys()
    measured = before["test"]["conventions"].keys()
    assert len(measured) == 4
    for name in measured:
        assert after["test"][name] == pytest.approx(before["test"][name], abs=1e-6)


@pytest.mark.parametrize("kind", RANKERS)
def test_a_run_is_trained_on(stored, kind):
    assert main(["fit", kind, "--trainer.max_steps", "12", "--trainer.max_epochs", "4"]) == 0
    steps = json.loads(Path(kind, "metrics.json").read_text())["fit"]["steps"]
    assert steps == (4 if kind == "features" else 12)


def test_runs_are_compared_and_start_others(stored, capsys):
    assert main(["compare", "cross", "dual"]) == 0
    assert "cross" in capsys.readouterr().out
    fit = ["fit", "--config", "cross.yaml", "--trainer.default_root_dir", "new"]
    assert main([*fit, "--init_from", "cross"]) == 0


def test_an_exported_folder_embeds_as_before(stored):
    """In sentence-transformers, and here."""
    model = SentenceTransformer("exported", device="cpu")
    retriever = ltr.load("exported", precision="32-true", device="cpu")
    (query, document) = PAIRS[0]
    for embedding in (model.encode_query(query), retriever.encode([query], "query")[0]):
        np.testing.assert_allclose(embedding, stored["query"], **SAME)
    for embedding in (model.encode_document(document), retriever.encode([document], "document")[0]):
        np.testing.assert_allclose(embedding, stored["document"], **SAME)


def test_negatives_and_scores_are_trained_on(stored):
    """Both name documents by their rows, so the rows of a collection must stay what they were."""
    collection = open_collection("texts")
    negatives = MinedNegatives.open(Path("negatives"), collection)
    assert negatives.doc_rows.shape[1] == 2
    scores = TeacherScores.open(Path("scores"), collection, "scores")
    cross = ltr.load("cross", device="cpu")
    for query_row in scores.lists.query_rows[:2]:
        doc_rows, values = scores.lists.of(query_row)
        query = collection.queries.texts[int(query_row)]
        pairs = [(query, collection.corpus.texts[int(row)]) for row in doc_rows]
        np.testing.assert_allclose(cross.score(pairs), values, **SAME)
    fit = ["fit", "--config", "dual.yaml", "--trainer.default_root_dir"]
    assert main([*fit, "mined", "--data.negatives", "negatives"]) == 0
    taught = ["--data.labels.scores", "scores", "--model.loss", "ltr.losses.MarginMSELoss"]
    assert main([*fit, "taught", *taught]) == 0


def test_the_page_names_tests_that_exist():
    page = (ROOT / "docs/compatibility.md").read_text(encoding="utf-8")
    here = Path(__file__).read_text(encoding="utf-8")
    named = re.findall(r"`test_stored\.py::(test_\w+)`", page)
    assert len(named) >= 5
    for name in named:
        assert f"\ndef {name}(" in here, f"{name} is no test"


@pytest.mark.long
def test_a_folder_can_be_made_again(tmp_path):
    """With the same files as the last one that was stored, and the same numbers but for rounding."""
    folder = tmp_path / "made"
    command = [sys.executable, str(ROOT / "tests/make_stored.py"), str(folder)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    last = STORED / VERSIONS[-1]
    # A proof is written since; the folder that was stored stays as it is.
    proof = {name for name in _files_in(folder) if name.startswith("exported/proof/")}
    assert len(proof) == 4 and _files_in(folder) - proof == _files_in(last)
    then = json.loads((last / "expected.json").read_text())
    now = json.loads((folder / "expected.json").read_text())
    np.testing.assert_allclose(now["query"], then["query"], rtol=0.01, atol=0.01)


def _files_in(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
