"""Long texts in windows: a document is read piece by piece, and its pieces make one score.

Letters of shapes: D documents, S windows of all of them, end to end.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, Self, get_args

import numpy as np
import torch
from torch import Tensor

from ltr.batch import Texts
from ltr.data.rendering import Cutter
from ltr.data.tokens import Rendering, Tokens
from ltr.errors import InputError

WindowScore = Literal["best", "mean"]


@dataclass(frozen=True)
class Windows:
    r"""How a document is read in windows, and what its score is.

    .. math::
        s(q, d) = \max_w s(q, d_w) \quad\text{or}\quad \frac{1}{W} \sum_w s(q, d_w)

    Window w holds the tokens from :math:`w \cdot \text{stride}` up to :math:`w \cdot \text{stride}
    + \text{size}` of the document; the first one that reaches the document's end is the last, and
    ends there. A document of up to ``size`` tokens is one window.

    Args:
        size: Most tokens of the document in a window. What stands in front of a document, such as a
            prompt, is read with each of its windows, and is not counted.
        stride: Tokens from the begin of a window to that of the next one, at most ``size``: windows
            share ``size - stride`` tokens, and none is left out.
        score: ``best``: that of the window with the highest score, which alone gets a gradient; of
            equal ones the first. ``mean``: the mean over the windows.

    Raises:
        InputError: for a size or stride below 1, a stride above the size, or another score.

    Example:
        >>> Windows(size=256, stride=128, score="best")  # each token is read in two windows
        Windows(size=256, stride=128, score='best')
    """

    size: int
    stride: int
    score: WindowScore = "best"

    def __post_init__(self) -> None:
        if self.size < 1:
            raise InputError(
                f"windows.size must be at least 1, got {self.size}; say how many tokens of a document a window holds",
                option="windows",
            )
        if not 1 <= self.stride <= self.size:
            raise InputError(
                f"windows.stride must be from 1 to windows.size {self.size}, got {self.stride}; a longer step would leave out tokens",
                option="windows",
            )
        if self.score not in get_args(WindowScore):
            raise InputError(
                f"windows.score must be best or mean, got {self.score!r}", option="windows"
            )

    def counts(self, lengths: np.ndarray) -> np.ndarray:
        """Windows of each document.

        Args:
            lengths: ``[D]`` int64, tokens of the documents.

        >>> Windows(size=4, stride=3).counts(np.array([0, 4, 5, 7, 8]))
        array([1, 1, 2, 2, 3])
        """
        beyond_first = np.maximum(lengths - self.size, 0)
        return 1 + -(-beyond_first // self.stride)

    def n_tokens_read(
        self, lengths: np.ndarray, n_front: int, n_around: int | np.ndarray
    ) -> np.ndarray:
        """Tokens of all windows of each document together, ``[D]`` int64.

        Args:
            lengths: ``[D]`` int64, tokens of the documents with what stands in front of them.
            n_front: tokens in front of a document, as :meth:`cut` takes them.
            n_around: special tokens and those of a query that are read with each window; of all
                documents, or ``[D]`` of each.
        """
        n_of_front = np.minimum(lengths, n_front)
        counts = self.counts(lengths - n_of_front)
        n_more = counts - 1
        repeated = n_more * (self.size - self.stride + n_of_front)
        return lengths + repeated + counts * n_around

    def cut(self, tokens: Tokens, rows: np.ndarray, n_front: int = 0) -> tuple[Tokens, np.ndarray]:
        """The windows of documents, each as a text of its own.

        Args:
            tokens: of all documents.
            rows: ``[D]`` int64, which of them.
            n_front: the first tokens of every document that stand in front of it, and are read with
                each of its windows.

        Returns:
            The tokens of the S windows; and how many each document has, ``[D]`` int64.
        """
        n_tokens = tokens.lengths(rows)
        n_of_front = np.minimum(n_tokens, n_front)
        counts = self.counts(n_tokens - n_of_front)
        doc = np.repeat(np.arange(len(rows)), counts)  # of each window
        number = np.arange(len(doc)) - np.repeat(np.cumsum(counts) - counts, counts)
        first = n_of_front[doc] + number * self.stride
        n_of_window = np.minimum(first + self.size, n_tokens[doc]) - first
        buffers: Sequence[memoryview] = tokens.pieces(rows[doc], first, n_of_window)
        if n_front:
            fronts = tokens.views(rows[doc], n_of_front[doc])
            # The front and the window of the first, then of the second one, and so on.
            buffers = list(chain.from_iterable(zip(fronts, buffers, strict=True)))
            n_of_window = n_of_window + n_of_front[doc]
        ids = np.frombuffer(b"".join(buffers), dtype=tokens.dtype)
        offsets = np.concatenate([[0], np.cumsum(n_of_window)])
        return Tokens(ids, offsets, tokens.rendering_key), counts

    def document_values(
        self, values: Tensor, counts: Tensor, scores: Tensor | None = None
    ) -> Tensor:
        """What documents have, of what their windows have: the value of the best window, or the
        mean.

        Args:
            values: ``[S]`` or ``[S, H]``, of the windows, end to end.
            counts: ``[D]`` int64, windows of each document, at least one; they sum to S.
            scores: ``[S]``, by which the best window is chosen; None: ``values``.

        Returns:
            ``[D]`` or ``[D, H]``.

        >>> scores, counts = torch.tensor([1.0, 3.0, 2.0, 5.0]), torch.tensor([3, 1])
        >>> Windows(size=4, stride=3, score="best").document_values(scores, counts)
        tensor([3., 5.])
        >>> Windows(size=4, stride=3, score="mean").document_values(scores, counts)
        tensor([2., 5.])
        """
        if self.score == "mean":
            return mean_of_windows(values, counts)
        return values[best_windows(values if scores is None else scores, counts)]


class InWindows:
    """What forms of texts share that read documents in windows.

    Attributes:
        windows: in which a document is read; None: it is cut.
        n_front: tokens that stand in front of every document, and are read with each window; 0
            without windows.
    """

    windows: Windows | None
    n_front: int

    def _prepare_windows(
        self,
        windows: Windows | None,
        rendering: Rendering,
        cutter: Cutter,
        room: int,
        beside: str = "",
    ) -> None:
        """Read documents in windows from now on.

        Args:
            windows: in which.
            rendering: what is read of a document.
            cutter: counts tokens.
            room: tokens that max_length leaves for a window.
            beside: what else it leaves room for, in the error, as ``a query and``.

        Raises:
            InputError: if something stands behind the documents, or there is no room for a window.
        """
        self.windows = windows
        self.n_front = 0
        if windows is None:
            return
        if rendering.prompt is None:
            raise InputError(
                "windows are of a document that nothing stands behind, got a template.document with text behind {document}; put it in front, or leave out windows",
                option="windows",
            )
        if windows.size > room:
            others = f"{beside} " if beside else ""
            raise InputError(
                f"windows.size must be at most {max(room, 0)}, what max_length leaves beside {others}what stands around a document, got {windows.size}; raise max_length",
                option="windows",
            )
        # Without the space at the end, which a document's first word may take: "query: " and "tree"
        # may be the tokens query : Ġtree, of which the first two are the prompt's alone.
        self.n_front = cutter.n_tokens(rendering.around("").rstrip())

    def n_windows(self, lengths: np.ndarray) -> np.ndarray:
        """Windows of each document, ``[D]`` int64, of their tokens with what stands in front."""
        assert self.windows is not None, "the form has windows"
        return self.windows.counts(np.maximum(lengths - self.n_front, 0))

    def windows_of(self, tokens: Tokens, rows: np.ndarray) -> tuple[Tokens, np.ndarray]:
        """The windows of these documents as texts of their own, and how many each has; see
        :meth:`Windows.cut`.
        """
        assert self.windows is not None, "the form has windows"
        return self.windows.cut(tokens, rows, self.n_front)

    def without_windows(self) -> Self:
        """The same, but documents are cut. Also for texts that are windows already."""
        plain = copy.copy(self)
        plain.windows = None
        plain.n_front = 0
        return plain

    @property
    def has_many_embeddings(self) -> bool:
        """Whether a document that is read alone has an embedding for each window, and not one."""
        return self.windows is not None and self.windows.score == "best"

    def check_one_embedding(self, use: str) -> None:
        """An InputError where a document has an embedding for each window.

        Args:
            use: what would need one for all, as ``mining``.
        """
        if self.has_many_embeddings:
            raise InputError(
                f"{use} needs one embedding of each document, got windows.score best, by which it has one for each window; set windows.score to mean (of the similarity dot)",
                option="windows",
            )


def with_windows(texts: Texts, counts: np.ndarray | None) -> Texts:
    """Texts that are windows, with how many each document has, ``[D]`` int64; None: they are none."""
    return texts if counts is None else texts._replace(windows=torch.from_numpy(counts))


def best_windows(scores: Tensor, counts: Tensor) -> Tensor:
    """The place among all windows of each document's best one, ``[D]`` int64; of equal scores the
    first. A document with a NaN has that for its best.

    Args:
        scores: ``[S]`` of the windows, end to end.
        counts: ``[D]`` int64, windows of each document, at least one; they sum to S.

    >>> best_windows(torch.tensor([1.0, 3.0, 2.0, 5.0]), torch.tensor([3, 1]))
    tensor([1, 3])
    """
    first = counts.cumsum(0) - counts
    most = int(counts.max()) if len(counts) else 1
    number = torch.arange(most, device=counts.device)
    is_window = number < counts.unsqueeze(1)  # [D, most]
    padded = scores.new_full(is_window.shape, -torch.inf)
    padded = padded.masked_scatter(is_window, scores.detach())
    return first + padded.argmax(dim=1)


def texts_at(texts: Texts, places: Tensor) -> Texts:
    """Some of the texts, each a document of its own.

    Args:
        texts: S of them.
        places: ``[D]`` int64, which.

    >>> texts = Texts(torch.tensor([1, 2, 3, 4, 5, 6]), torch.tensor([2, 1, 3]))
    >>> texts_at(texts, torch.tensor([2, 0])).ids
    tensor([4, 5, 6, 1, 2])
    """
    lengths = texts.lengths[places]
    begins = (texts.lengths.cumsum(0) - texts.lengths)[places]
    first = lengths.cumsum(0) - lengths  # of each text, among the tokens that stay
    host_lengths = lengths.cpu().numpy()  # waits: which texts these are, the device has found out
    n_tokens = int(host_lengths.sum())
    shift = (begins - first).repeat_interleave(lengths, output_size=n_tokens)
    tokens = torch.arange(n_tokens, device=shift.device) + shift
    return Texts(
        ids=texts.ids[tokens],
        lengths=lengths,
        type_ids=None if texts.type_ids is None else texts.type_ids[tokens],
        keys=None if texts.keys is None else texts.keys[places],
        host_lengths=host_lengths,
    )


def mean_of_windows(values: Tensor, counts: Tensor) -> Tensor:
    """The mean over each document's windows.

    Args:
        values: ``[S]`` or ``[S, H]``, of the windows, end to end.
        counts: ``[D]`` int64, windows of each document, at least one; they sum to S.

    Returns:
        ``[D]`` or ``[D, H]``.

    >>> mean_of_windows(torch.tensor([1.0, 3.0, 2.0, 5.0]), torch.tensor([3, 1]))
    tensor([2., 5.])
    """
    # Unsafe: the counts are not checked, which a GPU would have to be waited for.
    return torch.segment_reduce(values, "mean", lengths=counts, unsafe=True)
