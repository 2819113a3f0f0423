"""How a collection is evaluated: the option ``evaluation`` of a data module."""

from dataclasses import dataclass, replace
from typing import Literal, get_args

from ltr.data.bm25 import DEPTH
from ltr.data.collection import Collection
from ltr.data.cross_validation import Fold
from ltr.errors import InputError, at_least, one_of

Candidates = Literal["auto", "candidates", "bm25", "corpus"]


@dataclass(frozen=True)
class Evaluation:
    """Which documents are ranked for a query of ``dev`` and ``test``, and how many queries in a
    step.

    Args:
        candidates: the source's own pools (``candidates``), or BM25's best of the whole corpus
            (``bm25``); ``auto``: for each split of each source its pools where it has some, else
            BM25's best. Or ``corpus``: a dual encoder searches all of it; or None: nothing is
            evaluated.
        depth: documents of a query at most, best first; None takes all of a pool, and 100 of BM25
            (``corpus`` needs a number).
        index: a faiss factory string for ``corpus``; ``Flat`` is exact, ``IVF4096,Flat`` or
            ``HNSW32`` are faster on millions of documents. See
            :class:`ltr.search.index.DenseIndex`.
        batch_size: queries per step and process.
        fold: part of a cross-validation that takes the place of the splits, see
            :class:`ltr.data.cross_validation.Fold`; None: the splits of the data.

    Raises:
        InputError: for a value that is none of these, or a size below 1.

    Example:
        >>> bm25 = Evaluation(candidates="bm25", depth=100)
        >>> corpus = Evaluation(candidates="corpus", depth=1000)  # a dual encoder searches all of it
    """

    candidates: Candidates | None = "auto"
    depth: int | None = None
    index: str = "Flat"
    batch_size: int = 16
    fold: Fold | None = None

    def __post_init__(self) -> None:
        # Errors name the option by its path below ``data``, which is no Python name.
        if self.candidates is not None:
            one_of(get_args(Candidates), **{"evaluation.candidates": self.candidates})
        at_least(1, **{"evaluation.depth": self.depth, "evaluation.batch_size": self.batch_size})
        if self.candidates == "corpus" and self.depth is None:
            raise InputError(
                "candidates 'corpus' need a depth, the number of documents per query",
                option="evaluation.depth",
            )

    @property
    def needed_depth(self) -> int:
        """The depth of a search, by BM25 or of the whole corpus."""
        return DEPTH if self.depth is None else self.depth

    def of_split(self, collection: Collection, split: str) -> "Evaluation":
        """The same, with what ``auto`` takes for a split of a collection in its place."""
        candidates = self.candidates
        if candidates == "auto":
            candidates = collection.taken_by_auto(split)
        depth = self.needed_depth if candidates == "bm25" else self.depth
        return replace(self, candidates=candidates, depth=depth)
