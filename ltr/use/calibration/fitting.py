"""Score maps fitted to labelled scores, and chosen by cross-validation over queries."""

from typing import NamedTuple

import numpy as np
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from ltr.errors import InputError
from ltr.use.calibration.conformal import PROMISES, queries_needed
from ltr.use.calibration.labelled_scores import LabelledScores
from ltr.use.calibration.score_maps import Isotonic, Logistic, ScoreMap

FOLDS = 5
SEED = 0  # of the deal of queries to folds
NORMAL_95 = 1.645  # one-sided
LEAST_GAIN = 0.01  # of the log loss of a constant: less is of no use, however surely it is there


class FittedMap(NamedTuple):
    """The better of the two maps, and what cross-validation says of it.

    Attributes:
        score_map: fitted to all queries.
        held_out: ``[D]`` the probability of each document by a map that has not seen its query.
        log_loss: of these, the mean over the documents.
        constant_log_loss: the same where each document has the share of relevant ones.
    """

    score_map: ScoreMap
    held_out: np.ndarray
    log_loss: float
    constant_log_loss: float


def fit_logistic(scores: np.ndarray, is_relevant: np.ndarray) -> Logistic | None:
    """Platt's map of greatest likelihood; None where it would fall, or there is one score alone.
    Both relevant and irrelevant documents are needed.
    """
    given = scores.astype(np.float64)
    centre = given.mean()
    spread = given.std()
    if spread == 0:
        return None
    model = LogisticRegression(C=np.inf, max_iter=1000)
    model.fit(((given - centre) / spread)[:, None], is_relevant)
    slope = float(model.coef_[0, 0]) / spread
    if slope <= 0:
        return None
    return Logistic(float(slope), float(model.intercept_[0] - slope * centre))


def fit_isotonic(scores: np.ndarray, is_relevant: np.ndarray) -> Isotonic | None:
    """The isotonic map of least squares; None where it is flat. No probability is nearer to 0 or 1
    than D documents show: by the rule of succession ``1 / (D + 2)``.
    """
    nearest = 1 / (len(scores) + 2)
    model = IsotonicRegression(y_min=nearest, y_max=1 - nearest, out_of_bounds="clip")
    model.fit(scores.astype(np.float64), is_relevant.astype(np.float64))
    if model.y_thresholds_[0] == model.y_thresholds_[-1]:
        return None
    return Isotonic(model.X_thresholds_.tolist(), model.y_thresholds_.tolist())


MAPS = (fit_logistic, fit_isotonic)


def fit_map(lists: LabelledScores) -> FittedMap:
    """The map of least log loss in cross-validation over queries, fitted to all of them.

    Args:
        lists: of dev.

    Raises:
        InputError: for scores that can't be thresholded, with the reason: scores that are no finite
            numbers, too few queries, nothing relevant or nothing else, equal scores, or scores that
            don't say more of relevance, in documents of queries that were held out, than the share
            of relevant documents does.
    """
    _check_enough(lists)
    y = lists.is_relevant
    query_of_doc = lists.query_of_doc
    folds = _folds(lists.has_relevant)
    constant = np.empty(len(y))
    held_out = {fit: np.empty(len(y)) for fit in MAPS}
    failed = set()
    for fold in range(int(folds.max()) + 1):
        is_out = folds[query_of_doc] == fold
        if y[~is_out].all():
            raise InputError(
                "its scores can't be thresholded: nearly all candidates of dev are relevant, and the others are of so few queries that they don't show which score is too low"
            )
        share = np.clip(y[~is_out].mean(), 1e-6, 1 - 1e-6)
        constant[is_out] = share
        for fit in MAPS:
            score_map = fit(lists.scores[~is_out], y[~is_out])
            if score_map is None:
                failed.add(fit)
                continue
            held_out[fit][is_out] = score_map(lists.scores[is_out])
    known = [fit for fit in MAPS if fit not in failed]
    losses = {fit: _log_losses(held_out[fit], y) for fit in known}
    known.sort(key=lambda fit: float(losses[fit].mean()))
    constant_losses = _log_losses(constant, y)
    if not known or not _is_less(losses[known[0]], constant_losses, lists):
        raise InputError(
            "its scores can't be thresholded: on dev queries that were held out, they don't tell relevant documents from others across queries better than chance (their log loss is not 1 % below that of a constant, or not significantly so at 0.05); train it longer, or with a loss whose scores have one scale for all queries"
        )
    best = known[0]
    score_map = best(lists.scores, y)
    assert score_map is not None, "its parts rise, and so does the whole"
    return FittedMap(
        score_map, held_out[best], float(losses[best].mean()), float(constant_losses.mean())
    )


def _check_enough(lists: LabelledScores) -> None:
    n_infinite = int((~np.isfinite(lists.scores)).sum())
    if n_infinite:
        raise InputError(
            f"its scores can't be thresholded: all must be finite, and {n_infinite:,} of {len(lists.scores):,} are NaN or infinite; the model has diverged, or its precision is too narrow for them: take 32-true"
        )
    n_answerable = int(lists.has_relevant.sum())
    if lists.is_relevant.all() and n_answerable:
        raise InputError(
            "its scores can't be thresholded: all candidates of dev are relevant, so nothing shows which score is too low"
        )
    if n_answerable < queries_needed(PROMISES[0]):
        needed = ", ".join(f"{queries_needed(p)} for a promise of {p:g}" for p in PROMISES)
        raise InputError(
            f"its scores can't be thresholded: dev must have queries with a relevant document among their candidates, {needed}, got {n_answerable}; judge more queries"
        )
    if lists.scores.min() == lists.scores.max():
        raise InputError(
            f"its scores can't be thresholded: all are {lists.scores[0]:.6g}; train it longer"
        )


def _folds(has_relevant: np.ndarray) -> np.ndarray:
    """``[Q]``: the fold of each query. Answerable queries are dealt evenly, and so are the others."""
    rng = np.random.default_rng(SEED)
    folds = np.empty(len(has_relevant), np.int64)
    n_folds = min(FOLDS, int(has_relevant.sum()))
    for places in (np.flatnonzero(has_relevant), np.flatnonzero(~has_relevant)):
        folds[rng.permutation(places)] = np.arange(len(places)) % n_folds
    return folds


def _log_losses(probabilities: np.ndarray, is_relevant: np.ndarray) -> np.ndarray:
    p = np.where(is_relevant, probabilities, 1 - probabilities)
    return -np.log(np.maximum(p, 1e-12))


def _is_less(losses: np.ndarray, constant_losses: np.ndarray, lists: LabelledScores) -> bool:
    """Whether the mean over documents is less by 1 %, and by more than drawing other queries would
    explain: a one-sided test over queries, at 5 %.
    """
    gains = np.add.reduceat(constant_losses - losses, lists.offsets[:-1])
    # The mean over documents is a ratio of sums over queries: its error is that of the residuals.
    counts = np.diff(lists.offsets)
    mean = gains.sum() / counts.sum()
    n = len(gains)
    residuals = gains - mean * counts
    error = np.sqrt((residuals**2).sum() * n / (n - 1)) / counts.sum()
    return bool(mean > NORMAL_95 * error and mean >= LEAST_GAIN * constant_losses.mean())
