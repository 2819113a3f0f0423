"""How a collection is evaluated: the option ``evaluation`` of a data module."""

from dataclasses import dataclass
from typing import Literal, get_args

from ltr.data.cross_validation import Fold
from ltr.errors import InputError, at_least, one_of

Candidates = Literal["candidates", "bm25", "corpus"]


@dataclass(frozen=True)
class Evaluation:
    """Which documents are ranked for a query of ``dev`` and ``test``, and how many queries in a
    step.

    Args:
        candidates: the source's own pools (``candidates``), or BM25's best of the whole corpus
            (``bm25``); or ``corpus``: a dual encoder searches all of it; or None: nothing is
            evaluated.
        depth: documents of a query at most, best first; None takes all (``bm25`` and ``corpus``
            need a number).
        index: a faiss factory string for ``corpus``; ``Flat`` is exact, ``IVF4096,Flat`` or
            ``HNSW32`` are faster on millions of documents. See
            :class:`ltr.search.index.DenseIndex`.
        batch_size: queries per step and process.
        fold: part of a cross-validation that takes the place of the splits, see
            :class:`ltr.data.cross_validation.Fold`; None: the splits of the data.

    Raises:
        InputError: for a value that is none of these, or a size below 1.
    """

    candidates: Candidates | None = "candidates"
    depth: int | None = None
    index: str = "Flat"
    batch_size: int = 16
    fold: Fold | None = None

    def __post_init__(self) -> None:
        # Errors name the option by its path below ``data``, which is no Python name.
        if self.candidates is not None:
            one_of(get_args(Candidates), **{"evaluation.candidates": self.candidates})
        at_least(1, **{"evaluation.depth": self.depth, "evaluation.batch_size": self.batch_size})
        if self.candidates in ("bm25", "corpus") and self.depth is None:
            raise InputError(
                f"candidates {self.candidates!r} need a depth, the number of documents per query",
                option="evaluation.depth",
            )

    @property
    def needed_depth(self) -> int:
        """The depth, where ``candidates`` need one."""
        assert self.depth is not None, "the constructor checks it"
        return self.depth
