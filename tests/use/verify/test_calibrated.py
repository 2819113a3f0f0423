"""``ltr verify`` says whether the calibration of a folder can be used on what a server returns."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ltr.use.calibration.calibration import Calibration, read_calibration
from ltr.use.calibration.fitting import fit_isotonic, fit_logistic
from ltr.use.calibration.score_maps import Isotonic, Logistic
from ltr.use.export import export
from ltr.use.load import load
from tests.use.calibration.test_calibration import DOCUMENTS, QUERY, lists_of, with_calibration
from tests.use.verify.served import Serving, served
from tests.use.verify.test_verify_library import planted, verify

NOT_FOR_THESE = (
    "the thresholds and probabilities of calibration.json are for the right scores, not for these"
)
ITS_PROBABILITIES = (
    "activation: the probabilities of calibration.json stand in the place of the scores"
)
OTHER_FUNCTION = "activation: another function stands behind the score, which keeps every order"


@pytest.fixture(scope="module")
def calibrated(proofs, tmp_path_factory) -> dict[str, Path]:
    """A cross-encoder exported with a calibration of each score map."""
    folder = tmp_path_factory.mktemp("calibrated")
    own = Path(shutil.copytree(proofs["cross"].parent / "own-cross", folder / "own"))
    made = with_calibration(own)
    lists = lists_of(load(own, "32-true").score([(QUERY, document) for document in DOCUMENTS]))
    for name, fit in (("isotonic", fit_isotonic), ("logistic", fit_logistic)):
        score_map = fit(lists.scores, lists.is_relevant)
        replace(made, score_map=score_map).write(own / "calibration.json")
        export(own, folder / name)
    return {name: folder / name for name in ("isotonic", "logistic")}


class Mapping(Serving):
    """A server that makes something of its scores."""

    def __init__(self, folder: Path, function: Callable[[np.ndarray], np.ndarray]) -> None:
        super().__init__(folder)
        self.function = function

    def rerank(self, query: str, documents: list[str]) -> list[float]:
        scores = np.array(super().rerank(query, documents), np.float32)
        return self.function(scores).tolist()


def test_right_scores_may_be_used(calibrated, proofs, capsys):
    with served(Serving(calibrated["logistic"])) as url:
        code, said = verify(calibrated["logistic"], url, capsys)
    passes, holds = said.splitlines()
    assert passes.startswith("pass: ") and code == 0
    assert holds.strip() == (
        "calibration.json holds: keep what scores at or above its thresholds; the code on the card makes probabilities of the scores"
    )
    code, said = verify(calibrated["isotonic"], "sentence-transformers", capsys)
    assert "  calibration.json holds: " in said and code == 0
    _, said = verify(proofs["cross"], "sentence-transformers", capsys)
    assert "calibration" not in said, "it has none"


@pytest.mark.parametrize(
    ("faults", "layer", "line"),
    [
        ({"sigmoid": True}, "activation: a sigmoid stands behind the score", NOT_FOR_THESE),
        ({"lower": True}, "tokens: texts are lower-cased", NOT_FOR_THESE),
        (
            {"served_in": torch.bfloat16},
            "dtype: numbers are rounded",
            "calibration.json is for scores in float32: of these, documents near a threshold may be lost",
        ),
    ],
)
def test_scores_that_depart_may_not(calibrated, capsys, faults, layer, line):
    with served(Serving(calibrated["isotonic"], **faults)) as url:
        code, said = verify(calibrated["isotonic"], url, capsys)
    assert said.startswith(layer) and code == 1
    assert said.splitlines()[2] == f"  {line}"


@pytest.mark.parametrize("name", ["isotonic", "logistic"])
def test_probabilities_in_the_place_of_scores_are_named(calibrated, capsys, name):
    """Rounded to six digits, as a server may."""
    own = read_calibration(calibrated[name] / "calibration.json")
    server = Mapping(calibrated[name], lambda scores: own.probabilities(scores).round(6))
    with served(server) as url:
        code, said = verify(calibrated[name], url, capsys)
    assert said.startswith(ITS_PROBABILITIES) and code == 1
    assert (
        said.splitlines()[2]
        == "  the thresholds of calibration.json are for raw scores, and these are its probabilities"
    )


def steps_of(calibration: Calibration) -> Isotonic:
    """Another map, in six steps over the range of the scores."""
    low, high = calibration.highest[0] - 4, calibration.highest[-1] + 4
    scores = np.repeat(np.linspace(low, high, 7), 2)[1:-1]
    scores[1::2] += 1e-3
    return Isotonic(sorted(scores.tolist()), np.repeat(np.linspace(0.1, 0.9, 6), 2).tolist())


def test_probabilities_of_another_calibration_are_those_of_another_function(calibrated, capsys):
    own = read_calibration(calibrated["logistic"] / "calibration.json")
    assert isinstance(own.score_map, Logistic)
    others = {
        OTHER_FUNCTION: replace(own.score_map, intercept=own.score_map.intercept + 0.5),
        f"{OTHER_FUNCTION} but for ties": steps_of(own),
    }
    for words, score_map in others.items():
        with served(Mapping(calibrated["logistic"], score_map)) as url:
            code, said = verify(calibrated["logistic"], url, capsys)
        fault, _, line = said.splitlines()
        assert fault == words and line == f"  {NOT_FOR_THESE}" and code == 1


def add_another(folder: Path) -> None:
    """A calibration that is of other scores."""
    (folder / "calibration.json").write_text('{"ranker": "0"}')


def remove(folder: Path) -> None:
    (folder / "calibration.json").unlink()


@pytest.mark.parametrize(
    ("is_calibrated", "change"), [(True, add_another), (True, remove), (False, add_another)]
)
def test_a_calibration_that_is_not_that_of_the_export_does_not_pass(
    calibrated, proofs, tmp_path, capsys, is_calibrated, change
):
    source = calibrated["isotonic"] if is_calibrated else proofs["cross"]
    folder = planted(source, tmp_path / "planted", change)
    code, said = verify(folder, "sentence-transformers", capsys)
    assert code == 1 and said.startswith(
        "calibration: calibration.json is not that of the export, so nobody says that it is of these scores\n"
    )
    assert "holds" not in said
