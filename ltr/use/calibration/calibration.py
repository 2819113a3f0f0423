"""``calibration.json``: what the scores of a ranker promise, beside its weights.

It holds one number a query, from which the threshold of any promise follows.
"""

import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, TypedDict

import numpy as np
from numpy.typing import ArrayLike

from ltr.data.files import digest_of_json
from ltr.data.whole_files import write_whole
from ltr.entries import check_entries, read_json
from ltr.errors import InputError
from ltr.models import Ranker
from ltr.use.calibration.conformal import KINDS, Kept, check_promise, threshold
from ltr.use.calibration.score_maps import Isotonic, Logistic, ScoreMap

MEND = "calibrate the run again: ltr calibrate RUN"


class OfAnotherRanker(InputError):
    """A calibration lies beside a ranker whose scores it is not of."""


class MapKind(TypedDict):
    """Which of the two score maps an entry is."""

    kind: Literal["logistic", "isotonic"]


class Errors(TypedDict):
    """How far off probabilities are, on queries that the map has not seen."""

    calibration_error: float
    calibration_error_of_logits: float  # of the scores, if they were read as logits
    log_loss: float
    log_loss_of_constant: float  # where each document has the share of relevant ones


@dataclass(frozen=True)
class Provenance:
    """Where the scores of a calibration come from.

    Args:
        ranker: :func:`digest_of_ranker` of what gave them.
        relevant_elsewhere: how many relevant documents were not among the candidates.
        evaluated: digests of the data.
        made: with what it was made.
    """

    ranker: str
    relevant_elsewhere: int
    evaluated: dict[str, str]
    made: dict[str, Any]


@dataclass(frozen=True)
class Calibration(Provenance):
    """What the scores of a ranker promise, as its dev queries show it. These are the entries of the file.

    Args:
        score_map: from scores to probabilities of relevance.
        lowest_relevant: of each answerable query the lowest score of a relevant document, ascending.
        highest_relevant: and the highest.
        highest: and the highest score of any document.
        highest_of_unanswerable: the same of queries that have no relevant document.
        documents: how many candidates all these queries have.
        relevant: how many of these are relevant.
        errors: of the probabilities.
    """

    score_map: ScoreMap
    lowest_relevant: list[float]
    highest_relevant: list[float]
    highest: list[float]
    highest_of_unanswerable: list[float]
    documents: int
    relevant: int
    errors: Errors

    def probabilities(self, scores: ArrayLike) -> np.ndarray:
        """``[N]`` float64: how likely documents of these scores are relevant. They hold for
        candidates like those of dev: from another first stage more or fewer are relevant.
        """
        return self.score_map(np.asarray(scores, np.float32))

    def threshold(self, promise: float, kept: Kept = "all") -> float:
        """The lowest score that is kept, see :func:`ltr.use.calibration.conformal.threshold`.

        Args:
            promise: the share of queries that keep their relevant documents; between 0 and 1.
            kept: of these ``all``, or ``one`` at least.

        Raises:
            InputError: for a promise that dev is too small for.
        """
        check_kept(kept)
        return threshold(self.lowest_relevant if kept == "all" else self.highest_relevant, promise)

    def keeps(self, scores: ArrayLike, promise: float, kept: Kept = "all") -> np.ndarray:
        """``[N]`` bool: which documents of these scores are kept; none where nothing fits. The
        arguments are those of :meth:`threshold`.

        Raises:
            InputError: as :meth:`threshold`, and for a score that is NaN, which is no sign that a
                document does not fit.
        """
        lowest = np.float32(self.threshold(promise, kept))
        given = np.asarray(scores, np.float32)
        n_unknown = int(np.isnan(given).sum())
        if n_unknown:
            raise InputError(
                f"scores must be numbers to be compared with a threshold, and {n_unknown:,} of {given.size:,} are NaN; the precision of the ranker may be too narrow for them: take 32-true"
            )
        is_kept: np.ndarray = given >= lowest
        return is_kept

    def error_rates(self, promise: float, kept: Kept = "all") -> tuple[float, float | None]:
        """On dev: the share of answerable queries that get an empty list, and that of unanswerable ones
        that get another; None where dev has no such query. The arguments are those of
        :meth:`threshold`.
        """
        falsely_empty, falsely_filled = error_rates(
            self.highest, self.highest_of_unanswerable, self.threshold(promise, kept)
        )
        assert falsely_empty is not None, "there is no threshold without an answerable query"
        return falsely_empty, falsely_filled

    def of_scaled(self, factor: float) -> "Calibration":
        """That of scores that are multiplied by a factor above 0."""

        def scaled(scores: list[float]) -> list[float]:
            return [score * factor for score in scores]

        return replace(
            self,
            score_map=self.score_map.of_scaled(factor),
            lowest_relevant=scaled(self.lowest_relevant),
            highest_relevant=scaled(self.highest_relevant),
            highest=scaled(self.highest),
            highest_of_unanswerable=scaled(self.highest_of_unanswerable),
        )

    def write(self, file: Path) -> None:
        """Write the file, whole or not at all."""
        write_whole(file, [json.dumps(asdict(self), ensure_ascii=False), "\n"])


def read_calibration(file: Path) -> Calibration:
    """The calibration of a file.

    Raises:
        InputError: if the file is damaged.
    """
    entries = read_json(file, MEND)
    entries["score_map"] = _score_map(entries.get("score_map"), file)
    check_entries(entries, Calibration, file, MEND)
    return Calibration(**{field.name: entries[field.name] for field in fields(Calibration)})


def _score_map(entry: Any, file: Path) -> ScoreMap:
    check_entries(entry, MapKind, file, MEND, path="score_map")
    kind = Logistic if entry["kind"] == "logistic" else Isotonic
    check_entries(entry, kind, file, MEND, path="score_map")
    score_map: ScoreMap = kind(**{field.name: entry[field.name] for field in fields(kind)})
    if isinstance(score_map, Isotonic) and not _rises(score_map):
        raise InputError(
            f"{file}: the file is damaged, the scores and the probabilities of score_map must rise, and be as many; {MEND}"
        )
    return score_map


def _rises(score_map: Isotonic) -> bool:
    scores = score_map.scores
    probabilities = score_map.probabilities
    is_one_each = len(scores) == len(probabilities) > 0
    return is_one_each and sorted(scores) == scores and sorted(probabilities) == probabilities


def error_rates(
    highest: ArrayLike, highest_of_unanswerable: ArrayLike, threshold: float
) -> tuple[float | None, float | None]:
    """The share of answerable queries that get an empty list, and that of unanswerable ones that get
    another; None where there is no such query.

    Args:
        highest: ``[A]``, the best scores of answerable queries.
        highest_of_unanswerable: of the others.
        threshold: the lowest score that is kept.
    """
    lowest = np.float32(threshold)
    is_empty = np.asarray(highest, np.float32) < lowest
    is_filled = np.asarray(highest_of_unanswerable, np.float32) >= lowest
    falsely_empty, falsely_filled = (
        float(rates.mean()) if len(rates) else None for rates in (is_empty, is_filled)
    )
    return falsely_empty, falsely_filled


def calibration_of(file: Path | None, model: Ranker, name: str | Path) -> Calibration:
    """The calibration of a ranker that was loaded.

    Args:
        file: where it may lie; None for a ranker that has no folder of its own.
        model: the ranker.
        name: of the ranker, for errors.

    Raises:
        OfAnotherRanker: if it is of other weights, or of scores on another scale.
        InputError: if there is none, or it is damaged.
    """
    calibration = read_calibration(check_has_calibration(file, name))
    if calibration.ranker != digest_of_ranker(model):
        raise OfAnotherRanker(
            f"{file} is of other weights than those of {name}, or of scores on another scale, so its thresholds promise nothing; {MEND}"
        )
    return calibration


def digest_of_ranker(model: Ranker) -> str:
    """A digest of all that decides its scores: the weights, and such as the temperature, the similarity,
    the template and the longest text; 32 hex digits.
    """
    return digest_of_json(model.key)[:32]


def check_has_calibration(file: Path | None, name: str | Path) -> Path:
    """The file of a calibration; an InputError where there is none. The arguments are those of
    :func:`calibration_of`.
    """
    if file is None or not file.is_file():
        raise InputError(
            f"{name} has no calibration, by which scores have a threshold; make one on the dev split of a run: ltr calibrate RUN, which ltr export hands on"
        )
    return file


def check_kept(kept: str) -> None:
    """Raise an InputError for what is neither ``all`` nor ``one``."""
    if kept not in KINDS:
        raise InputError(
            f"kept must be 'all' or 'one' of the relevant documents, got {kept!r}", option="kept"
        )


def check_keep(keep: float | None, kept: str) -> None:
    """Raise an InputError for what is no promise, and for ``kept`` without one."""
    check_kept(kept)
    if keep is not None:
        check_promise(keep)
    elif kept != "all":
        raise InputError(
            f"kept says what a promise keeps, got {kept!r} and no promise; add keep, such as 0.9, or leave it out",
            option="kept",
        )
