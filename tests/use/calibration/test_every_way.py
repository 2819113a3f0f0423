"""A calibration says the same by every way to it: ``ltr rank --keep``, Python, a folder that was
exported, and the code on its card, which needs NumPy and ``calibration.json`` alone.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ltr import load
from ltr.data.template import Template
from ltr.models import DecoderRanker
from ltr.use.calibration.calibrated import Provenance, calibrate_lists
from ltr.use.calibration.calibration import digest_of_ranker
from ltr.use.calibration.card_section import calibration_section
from ltr.use.calibration.fitting import fit_isotonic, fit_logistic
from ltr.use.calibration.score_maps import Logistic
from ltr.use.export import export
from tests.use.calibration.test_calibration import DOCUMENTS, MADE, QUERY, lists_of
from tests.use.exported import classifier
from tests.world.commands import refusal, run_ltr
from tests.world.decoders import save_decoder

TEMPLATE = Template(
    query="Query: {query}",
    document="Document: {document}",
    pair="<|im_start|>user\n{query}\n{document}<|im_end|>\n<|im_start|>assistant\n",
)
VECTORS = np.random.default_rng(0).normal(size=(29, 5)).astype(np.float32)
KEPT = 12  # documents
LONG = pytest.mark.long
# A ranker; the form that it is exported in, or None for one that can't be; the score map.
CASES = [
    ("cross", "sentence-transformers", fit_isotonic),
    pytest.param("cross", "sentence-transformers", fit_logistic, marks=LONG),
    pytest.param("cross", "onnx", fit_isotonic, marks=LONG),
    ("classifier", "transformers", fit_logistic),
    ("decoder", "transformers", fit_isotonic),
    pytest.param("decoder", "onnx", fit_logistic, marks=LONG),
    ("dual", "sentence-transformers", fit_isotonic),
    pytest.param("dual", "sentence-transformers", fit_logistic, marks=LONG),
    pytest.param("dual", "onnx", fit_isotonic, marks=LONG),
    pytest.param("dual", "onnx", fit_logistic, marks=LONG),
    ("features", None, fit_isotonic),
    ("features", None, fit_logistic),
]


@pytest.mark.parametrize(("kind", "to", "fit"), CASES)
def test_every_way_keeps_the_same_with_equal_probabilities(
    copied_run, tmp_path, capsys, kind, to, fit
):
    """Of 29 documents the best twelve are kept, and of the others none: an empty list. The expected
    probabilities are those of the formula of the map.
    """
    source = source_of(kind, copied_run, tmp_path)
    documents = VECTORS if kind == "features" else DOCUMENTS
    ranker = load(source, "32-true")
    pairs = documents if kind == "features" else [(QUERY, document) for document in documents]
    scores = ranker.score(pairs)
    best_first = np.argsort(-scores)
    # Between two scores: in another library the sums of a score are rounded otherwise.
    lowest = float(scores[best_first[KEPT - 1 : KEPT + 1]].mean())
    lists = lists_of(scores)
    made, _ = calibrate_lists(lists, Provenance(digest_of_ranker(ranker.model), 0, {}, MADE))
    score_map = fit(lists.scores, lists.is_relevant)
    n = len(made.lowest_relevant)
    made = replace(made, score_map=score_map, lowest_relevant=[lowest] * n)
    made.write(source / "calibration.json")
    folder = tmp_path / "exported"
    if to is not None:
        export(source, folder, to)
    if isinstance(score_map, Logistic):
        expected = 1 / (1 + np.exp(-score_map.slope * scores - score_map.intercept))
    else:
        expected = np.interp(scores, score_map.scores, score_map.probabilities)
    probabilities = {int(place): expected[place] for place in best_first[:KEPT]}
    assert np.ptp(list(probabilities.values())) > 0.01
    for way, found in by_every_way(kind, source, folder, documents, capsys):
        assert found == pytest.approx(probabilities, abs=1e-5), way
    others = [documents[place] for place in best_first[KEPT:]]
    for way, found in by_every_way(kind, source, folder, others, capsys):
        assert found == {}, way


def source_of(kind: str, copied_run: Any, folder: Path) -> Path:
    """A run, or a ranker in a folder."""
    if kind == "classifier":
        return classifier(folder / kind)
    if kind == "decoder":
        backbone = save_decoder(folder / "backbone")
        DecoderRanker(backbone, TEMPLATE, max_length=64).save_plain(folder / kind)
        return folder / kind
    run: Path = copied_run(folder, kind)
    return run


def by_every_way(
    kind: str, source: Path, folder: Path, documents: Any, capsys: pytest.CaptureFixture[str]
) -> Iterator[tuple[str, dict[int, float]]]:
    """The ways with the places of the documents that are kept, and their probabilities."""
    if kind == "features":  # its lists are in Python, and no folder has it
        texts = source.parent / "texts.txt"
        texts.write_text("w1\n")
        line = f"rank {source} --query w1 --documents {texts} --keep 0.9"
        assert "use it in Python: ltr.load" in refusal(capsys, line)
        scorer = load(source)
        scores = scorer.score(documents)
        is_kept = scorer.calibration.keeps(scores, 0.9)
        yield "Python", kept_at(is_kept, scorer.calibration.probabilities(scores))
        code = code_of(calibration_section(scorer.calibration))[-1]
        yield "NumPy", by_code([code], source, {"scores": scores})
        return
    yield "ltr rank", by_command(source, documents, capsys)
    ranking = load(source, "32-true").rank(QUERY, documents, keep=0.9)
    yield "Python", {one.place: one.probability for one in ranking}
    blocks = code_of((folder / "README.md").read_text())
    yield "card", by_code([for_documents(code) for code in blocks], folder, {"given": documents})
    if not (folder / "ltr.json").is_file():  # which says how graphs are read: ltr loads none
        yield "ltr rank FOLDER", by_command(folder, documents, capsys)
        ranking = load(folder, "32-true").rank(QUERY, documents, keep=0.9)
        yield "Python, exported", {one.place: one.probability for one in ranking}


def by_command(
    ranker: Path, documents: list[str], capsys: pytest.CaptureFixture[str]
) -> dict[int, float]:
    file = ranker.parent / "documents.txt"
    file.write_text("".join(f"{document}\n" for document in documents))
    capsys.readouterr()
    line = f"rank {ranker} --query '{QUERY}' --documents {file} --keep 0.9 --precision 32-true"
    assert run_ltr(line) == 0
    rows = [row.split("\t") for row in capsys.readouterr().out.splitlines()]
    return {documents.index(text): float(probability) for _, _, probability, _, text in rows}


def code_of(card: str) -> list[str]:
    """The blocks of Python of a card."""
    return re.findall(r"```python\n(.*?)```", card, re.DOTALL)


def for_documents(code: str) -> str:
    """The code for these texts, in place of the two of the card."""
    pairs = '[("a question", "a document"), ("a question", "another document")]'
    code = code.replace(pairs, f"[({QUERY!r}, document) for document in given]")
    code = code.replace('["a question"] * 2', f"[{QUERY!r}] * len(given)")
    code = code.replace('["a question"]', f"[{QUERY!r}]")
    return code.replace('["a document", "another document"]', "given")


def by_code(blocks: list[str], folder: Path, names: dict[str, Any]) -> dict[int, float]:
    for code in blocks:
        exec(code.replace("FOLDER", str(folder)), names)
    return kept_at(names["is_kept"], names["probabilities"])


def kept_at(is_kept: np.ndarray, probabilities: np.ndarray) -> dict[int, float]:
    return {int(place): float(probabilities[place]) for place in np.flatnonzero(is_kept)}
