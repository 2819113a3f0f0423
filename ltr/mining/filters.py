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

    Scores are similarities of the miner, without its temperature. A filter compares a candidate with the relevant document of its
    query: of several, with the one of the lowest score. Documents that are judged relevant are never negatives, nor are others
    of the same text.

    Args:
        depth: Documents found for each query.
        n: Negatives kept for each query.
        skip_top: Of those that are not relevant, leave out so many of the best.
        max_score: Leave out candidates that score higher.
        absolute: Leave out candidates that score more than the relevant document minus this.
        relative: Leave out candidates that score more than this share of the relevant document's score :math:`s^+`, that is,
            above :math:`s^+ - (1 - r)\,|s^+|`. None keeps them.
        judge_margin: Of those sampled, leave out what the judge, if there is one, scores above the relevant document minus this.
        sampling: What is kept of the candidates left: the best n (``top``), any n (``uniform``), or n drawn without replacement
            with probabilities of a softmax over their scores (``softmax``).
        temperature: Of that softmax.
        index: How documents are searched: ``Flat`` is exact, others are faiss's, see :class:`ltr.search.index.DenseIndex`.

    Raises:
        InputError: for an option out of its bounds.

    References:
        Moreira et al. (2024), NV-Retriever: improving text embedding models with effective hard-negative mining (``relative``
        is their TopK-PercPos, ``absolute`` their TopK-MarginPos).
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
        for name, least in (("depth", 1), ("n", 1), ("skip_top", 0)):
            if getattr(self, name) < least:
                raise InputError(f"{name} must be at least {least}, got {getattr(self, name)}", option=f"recipe.{name}")
        if self.relative is not None and not 0 < self.relative <= 1:
            raise InputError(f"relative must be above 0 and at most 1, got {self.relative}", option="recipe.relative")
        if self.sampling not in get_args(Sampling):
            known = ", ".join(get_args(Sampling))
            raise InputError(f"sampling must be one of {known}, got {self.sampling!r}", option="recipe.sampling")
        if not self.temperature > 0:
            raise InputError(f"temperature must be above 0, got {self.temperature}", option="recipe.temperature")


class Candidates(NamedTuple):
    """What a search has found for Q queries.

    Attributes:
        doc_rows: ``[Q, D]`` int64; −1 where fewer than D were found.
        scores: ``[Q, D]`` float32.
        relevant: ``[Q, D]`` bool, whether a candidate is judged relevant for its query, or has the text of such a document.
        relevant_score: ``[Q]`` float32, of the query's relevant document with the lowest score.
    """

    doc_rows: np.ndarray
    scores: np.ndarray
    relevant: np.ndarray
    relevant_score: np.ndarray


def filtered(found: Candidates, recipe: Recipe) -> tuple[np.ndarray, dict[str, int]]:
    """Which candidates may be negatives, ``[Q, D]`` bool, and how many fell to each filter, in the order they are applied.

    Example:
        The relevant document scores 0.8: candidates above 0.76 are too close.

        >>> found = Candidates(
        ...     doc_rows=np.array([[4, 7, 2, 9]]),
        ...     scores=np.array([[0.80, 0.78, 0.70, 0.60]]),
        ...     relevant=np.array([[True, False, False, False]]),
        ...     relevant_score=np.array([0.80]),
        ... )
        >>> left, fell = filtered(found, Recipe(relative=0.95))
        >>> left.tolist(), fell
        ([[False, False, True, True]], {'relevant': 1, 'relative': 1})
    """
    positive = found.relevant_score[:, None]
    left, fell = found.doc_rows >= 0, {}

    def leave_out(name: str, out: np.ndarray) -> None:
        fell[name] = int((left & out).sum())
        left[out] = False

    leave_out("relevant", found.relevant)
    if recipe.skip_top:
        leave_out("skip_top", left.cumsum(axis=1) <= recipe.skip_top)
    if recipe.max_score is not None:
        leave_out("max_score", found.scores > recipe.max_score)
    if recipe.absolute is not None:
        leave_out("absolute", found.scores > positive - recipe.absolute)
    if recipe.relative is not None:
        leave_out("relative", found.scores > positive - (1 - recipe.relative) * np.abs(positive))
    return left, fell


def sampled(found: Candidates, left: np.ndarray, recipe: Recipe, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """At most n of the candidates left: their rows and scores, ``[Q, n]`` each, best first; −1 and −inf where there are fewer.

    Example:
        >>> found = Candidates(np.array([[4, 7, 2]]), np.array([[0.8, 0.7, 0.6]]), np.zeros((1, 3), bool), np.array([0.9]))
        >>> sampled(found, np.array([[True, False, True]]), Recipe(n=2), np.random.default_rng(0))[0]
        array([[4, 2]])
    """
    if recipe.sampling == "top":
        weight = found.scores.astype(np.float64)
    elif recipe.sampling == "uniform":
        weight = rng.random(left.shape)
    else:  # the n largest of log-probability plus Gumbel noise are n draws without replacement
        weight = found.scores / recipe.temperature + rng.gumbel(size=left.shape)
    weight = np.where(left, weight, -np.inf)
    n = min(recipe.n, left.shape[1])
    chosen = np.sort(np.argsort(-weight, axis=1, kind="stable")[:, :n], axis=1)  # candidates stand best first
    real = np.take_along_axis(left, chosen, axis=1)
    order = np.argsort(~real, axis=1, kind="stable")
    chosen, real = np.take_along_axis(chosen, order, axis=1), np.take_along_axis(real, order, axis=1)
    rows = np.where(real, np.take_along_axis(found.doc_rows, chosen, axis=1), -1)
    return rows, np.where(real, np.take_along_axis(found.scores, chosen, axis=1), -np.inf)
