"""Which of the documents found for a query become its negatives.

Letters of shapes: Q queries, D candidates of each, best first.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np

from ltr.errors import InputError

Sampling = Literal["top", "uniform", "softmax"]


@dataclass(frozen=True)
class Recipe:
    r"""How hard negatives are chosen: found by search, filtered, and sampled from what is left.

    Scores are similarities of the miner, without its temperature. A filter compares a candidate
    with the relevant document of its query: of several, with the one of the lowest score. Documents
    that are judged relevant are never negatives, nor are others of the same text.

    Args:
        depth: Documents found for each query.
        n: Negatives kept for each query.
        skip_top: Of those that are not relevant, leave out so many of the best.
        max_score: Leave out candidates that score higher.
        absolute: Leave out candidates that score more than the relevant document minus this.
        relative: Leave out candidates that score more than this share of the relevant document's
            score :math:`s^+`, that is, above :math:`s^+ - (1 - r)\,|s^+|`. None keeps them.
        judge_margin: Of those sampled, leave out what the judge, if there is one, scores above the
            relevant document minus this.
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


class Candidates(NamedTuple):
    """What a search has found for Q queries.

    Attributes:
        doc_rows: ``[Q, D]`` int64; −1 where fewer than D were found.
        scores: ``[Q, D]`` float32.
        relevant: ``[Q, D]`` bool, whether a candidate is judged relevant for its query, or has the
            text of such a document.
        relevant_score: ``[Q]`` float32, of the query's relevant document with the lowest score.
    """

    doc_rows: np.ndarray
    scores: np.ndarray
    relevant: np.ndarray
    relevant_score: np.ndarray


def apply_filters(candidates: Candidates, recipe: Recipe) -> tuple[np.ndarray, dict[str, int]]:
    """Leave out what a recipe does not want.

    Returns:
        ``[Q, D]`` bool, which candidates are left and may be negatives; and how many fell to each
        filter, in the order they are applied.

    Example:
        The relevant document scores 0.8: candidates above 0.76 are too close.

        >>> candidates = Candidates(
        ...     doc_rows=np.array([[4, 7, 2, 9]]),
        ...     scores=np.array([[0.80, 0.78, 0.70, 0.60]]),
        ...     relevant=np.array([[True, False, False, False]]),
        ...     relevant_score=np.array([0.80]),
        ... )
        >>> left, fell = apply_filters(candidates, Recipe(relative=0.95))
        >>> left.tolist(), fell
        ([[False, False, True, True]], {'relevant': 1, 'relative': 1})
    """
    scores = candidates.scores
    positive = candidates.relevant_score[:, None]
    left = candidates.doc_rows >= 0
    fell = {}

    def leave_out(name: str, unwanted: np.ndarray) -> None:
        fell[name] = int((left & unwanted).sum())
        left[unwanted] = False

    # The order matters: skip_top counts what is not relevant, and a candidate falls once.
    leave_out("relevant", candidates.relevant)
    if recipe.skip_top:
        leave_out("skip_top", left.cumsum(axis=1) <= recipe.skip_top)
    if recipe.max_score is not None:
        leave_out("max_score", scores > recipe.max_score)
    if recipe.absolute is not None:
        leave_out("absolute", scores > positive - recipe.absolute)
    if recipe.relative is not None:
        leave_out("relative", scores > positive - (1 - recipe.relative) * np.abs(positive))
    return left, fell


def sample_negatives(
    candidates: Candidates, left: np.ndarray, recipe: Recipe, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Take at most n of the candidates that are left.

    Returns:
        Their rows and scores, ``[Q, n]`` each, best first; −1 and −inf where there are fewer.

    Example:
        >>> candidates = Candidates(
        ...     doc_rows=np.array([[4, 7, 2]]),
        ...     scores=np.array([[0.8, 0.7, 0.6]]),
        ...     relevant=np.zeros((1, 3), bool),
        ...     relevant_score=np.array([0.9]),
        ... )
        >>> left = np.array([[True, False, True]])
        >>> sample_negatives(candidates, left, Recipe(n=2), np.random.default_rng(0))[0]
        array([[4, 2]])
    """
    if recipe.sampling == "top":
        weight = candidates.scores.astype(np.float64)
    elif recipe.sampling == "uniform":
        weight = rng.random(left.shape)
    else:
        # The n largest of log-probability plus Gumbel noise are n draws without replacement.
        weight = candidates.scores / recipe.temperature + rng.gumbel(size=left.shape)
    weight = np.where(left, weight, -np.inf)
    n = min(recipe.n, left.shape[1])
    # The columns of candidates stand best first, so sorted columns are best first again.
    columns = np.sort(np.argsort(-weight, axis=1, kind="stable")[:, :n], axis=1)
    real = np.take_along_axis(left, columns, axis=1)
    order = np.argsort(~real, axis=1, kind="stable")  # what was not left goes to the end
    columns = np.take_along_axis(columns, order, axis=1)
    real = np.take_along_axis(real, order, axis=1)
    doc_rows = np.where(real, np.take_along_axis(candidates.doc_rows, columns, axis=1), -1)
    scores = np.where(real, np.take_along_axis(candidates.scores, columns, axis=1), -np.inf)
    return doc_rows, scores
