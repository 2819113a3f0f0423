"""Which of the documents found for a query become its negatives.

Letters of shapes: Q queries, D candidates of each, best first.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from ltr.errors import InputError

Sampling = Literal["top", "uniform", "softmax"]
# Those of a recipe, in the order in which they are applied; "judge" comes after sampling.
FILTERS = ("skip_top", "max_score", "absolute", "relative", "judge")


@dataclass(frozen=True)
class Recipe:
    r"""How hard negatives are chosen: found by search, filtered, and sampled from what is left.

    Scores are similarities of the dual encoder that searches, without its temperature. A filter
    compares a candidate with the relevant document of its query, and where there are several, with
    the one of the lowest score. Documents that are judged relevant are never negatives, nor are
    others of the same text.

    Args:
        depth: Documents found for each query.
        n: Negatives kept for each query.
        skip_top: Of those that are not relevant, leave out so many of the best.
        max_score: Leave out candidates that score higher.
        absolute: Leave out candidates that score more than the relevant document minus this.
        relative: Leave out candidates that score more than this share of the relevant document's
            score :math:`s^+`, that is, above :math:`s^+ - (1 - r)\,|s^+|`. None keeps them.
        judge_margin: Where a second model judges the negatives: leave out those that it scores more
            than the relevant document minus this. It judges what is sampled, so fewer than n stay.
        sampling: What is kept of the candidates left: the best n (``top``), any n (``uniform``), or
            n drawn without replacement with probabilities of a softmax over their scores
            (``softmax``).
        temperature: Of that softmax.
        index: How documents are searched: ``Flat`` is exact, others are faiss's, see
            :class:`ltr.search.index.DenseIndex`.

    Raises:
        InputError: for an option out of its bounds.

    References:
        Moreira et al. (2024), NV-Retriever: improving text embedding models with effective
        hard-negative mining (``relative`` is their TopK-PercPos, ``absolute`` their
        TopK-MarginPos).

    Example:
        >>> Recipe(depth=100, n=7, skip_top=5).relative  # of the relevant document's score
        0.95
    """

    depth: int = 100
    n: int = 30
    skip_top: int = 0
    max_score: float | None = None
    absolute: float | None = None
    relative: float | None = 0.95
    judge_margin: float = 0.0
    sampling: Sampling = "top"
    temperature: float = 0.05
    index: str = "Flat"

    def __post_init__(self) -> None:
        for name, lowest in (("depth", 1), ("n", 1), ("skip_top", 0)):
            value = getattr(self, name)
            if value < lowest:
                raise InputError(
                    f"{name} must be at least {lowest}, got {value}", option=f"recipe.{name}"
                )
        if self.relative is not None and not 0 < self.relative <= 1:
            raise InputError(
                f"relative must be above 0 and at most 1, got {self.relative}",
                option="recipe.relative",
            )
        if self.sampling not in get_args(Sampling):
            raise InputError(
                f"sampling must be one of {', '.join(get_args(Sampling))}, got {self.sampling!r}",
                option="recipe.sampling",
            )
        if not self.temperature > 0:
            raise InputError(
                f"temperature must be above 0, got {self.temperature}", option="recipe.temperature"
            )


def apply_filters(
    doc_rows: np.ndarray,
    scores: np.ndarray,
    is_excluded: np.ndarray,
    lowest_relevant: np.ndarray,
    recipe: Recipe,
) -> tuple[np.ndarray, dict[str, int]]:
    """Leave out what a recipe does not want of what a search has found.

    Args:
        doc_rows: ``[Q, D]`` int64; −1 where fewer than D were found.
        scores: ``[Q, D]`` float32.
        is_excluded: ``[Q, D]`` bool, whether a candidate is judged relevant for its query, or has
            the text of such a document or of the query. It counts as ``relevant``.
        lowest_relevant: ``[Q]`` float32, of the query's relevant document with the lowest score.
        recipe: says what it wants.

    Returns:
        ``[Q, D]`` int64, the candidates that may be negatives, in their places, and −1 in the places
        of others; and how many each filter has left out, in the order they are applied.

    Example:
        The relevant document scores 0.8: candidates above 0.76 are too close.

        >>> left, counts = apply_filters(
        ...     np.array([[4, 7, 2, 9]]),
        ...     np.array([[0.80, 0.78, 0.70, 0.60]]),
        ...     is_excluded=np.array([[True, False, False, False]]),
        ...     lowest_relevant=np.array([0.80]),
        ...     recipe=Recipe(relative=0.95),
        ... )
        >>> left, counts
        (array([[-1, -1,  2,  9]]), {'relevant': 1, 'relative': 1})
    """
    lowest = lowest_relevant[:, None]
    remaining = doc_rows >= 0
    left_out = {}

    def leave_out(name: str, is_unwanted: np.ndarray) -> None:
        left_out[name] = int((remaining & is_unwanted).sum())
        remaining[is_unwanted] = False

    # The order matters: skip_top counts what is not relevant, and a candidate that several filters
    # refuse counts for the first of them.
    leave_out("relevant", is_excluded)
    if recipe.skip_top:
        # Candidates stand best first, so this is the rank of each among those that remain.
        rank = remaining.cumsum(axis=1)
        leave_out("skip_top", rank <= recipe.skip_top)
    if recipe.max_score is not None:
        leave_out("max_score", scores > recipe.max_score)
    if recipe.absolute is not None:
        leave_out("absolute", scores > lowest - recipe.absolute)
    if recipe.relative is not None:
        allowed_gap = (1 - recipe.relative) * np.abs(lowest)
        leave_out("relative", scores > lowest - allowed_gap)
    return np.where(remaining, doc_rows, -1), left_out


def sample_negatives(
    doc_rows: np.ndarray, scores: np.ndarray, recipe: Recipe, rng: np.random.Generator
) -> np.ndarray:
    """Take at most n of the candidates that may be negatives.

    Args:
        doc_rows: ``[Q, D]``, best first; −1 for what is left out, as :func:`apply_filters` gives them.
        scores: ``[Q, D]``.
        recipe: how many, and which.
        rng: draws them.

    Returns:
        Their rows, ``[Q, n]``, best first; −1 where there are fewer.

    Example:
        >>> doc_rows, scores = np.array([[4, -1, 2]]), np.array([[0.8, 0.7, 0.6]])
        >>> sample_negatives(doc_rows, scores, Recipe(n=2), np.random.default_rng(0))
        array([[4, 2]])
    """
    is_candidate = doc_rows >= 0
    if recipe.sampling == "top":
        weight = scores.astype(np.float64)
    elif recipe.sampling == "uniform":
        weight = rng.random(is_candidate.shape)
    else:
        # The n largest of log-probability plus Gumbel noise are n draws without replacement.
        weight = scores / recipe.temperature + rng.gumbel(size=is_candidate.shape)
    weight = np.where(is_candidate, weight, -np.inf)
    n = min(recipe.n, is_candidate.shape[1])
    columns = np.argsort(-weight, axis=1, kind="stable")[:, :n]
    # The columns of candidates stand best first, so sorted columns are best first again.
    columns = np.sort(columns, axis=1)
    # Where there are fewer than n candidates, others were taken too: they go to the end.
    is_negative = np.take_along_axis(is_candidate, columns, axis=1)
    order = np.argsort(~is_negative, axis=1, kind="stable")
    columns = np.take_along_axis(columns, order, axis=1)
    return np.take_along_axis(doc_rows, columns, axis=1)
