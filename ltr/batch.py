"""What travels from the data to the model: one row is a query, one column a document of its list.

All are ``NamedTuple``\\ s: Lightning moves those to a device, and a frozen dataclass it cannot.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ltr.draws import keys_inside

ALIGNMENT = 8  # bytes: a tensor of int64 begins at a multiple of it


class Texts(NamedTuple):
    """S tokenised texts laid end to end, without padding: T tokens in all.

    An encoder that needs padding makes it inside.

    Attributes:
        ids: ``[T]`` int64, token ids with the special tokens.
        lengths: ``[S]`` int64, tokens of each text; they sum to T.
        type_ids: ``[T]`` int64, 0 for the query part and 1 for the document part, or None where the
            tokenizer has none.
        keys: ``[S]`` int64, from which the dropout of each text is drawn (``ltr.dropout``).
            None: a model in training draws some.
        windows: ``[D]`` int64, where the texts are windows of D documents, one document after the
            other: how many each has, which sum to S (``ltr.data.windows``). None: every text is
            a document.
        host_lengths: ``[S]`` int64, the lengths as an array, which stays on the host when the rest
            goes to a device: so nothing waits for that device to know them. None: see
            :meth:`lengths_on_host`.
    """

    ids: Tensor
    lengths: Tensor
    type_ids: Tensor | None = None
    keys: Tensor | None = None
    windows: Tensor | None = None
    host_lengths: np.ndarray | None = None

    def lengths_on_host(self) -> np.ndarray:
        """``[S]`` int64, the lengths. Where ``host_lengths`` is None, or of other texts, the host waits
        for a GPU that has them.
        """
        # A loader of torch's own turns arrays into tensors, which have gone to the GPU too.
        lengths = self.host_lengths
        if not isinstance(lengths, np.ndarray):
            return self.lengths.cpu().numpy()
        is_theirs = lengths.shape == self.lengths.shape and lengths.sum() == len(self.ids)
        return lengths if is_theirs else self.lengths.cpu().numpy()

    def with_keys(self, keys: Tensor) -> "Texts":
        """With keys for dropout: of the texts, or of the documents ``[D]``, all windows of which are
        read with the same draws: by one network, as it were.
        """
        if self.windows is not None:
            keys = keys.repeat_interleave(self.windows, output_size=len(self.lengths))
        return self._replace(keys=keys)

    def hashes(self) -> Tensor:
        r"""``[S]`` int64, a hash of each text's ids, to tell equal texts by. Texts of equal ids have
        equal hashes. Two other texts have equal ones with a probability of about
        :math:`2^{-63}`. It is higher, :math:`2^{k - 63}`, where their ids differ by multiples of
        :math:`2^k` only. Of windows: ``[D]``, one hash per document.

        A hash is :math:`\sum_t (x_{st} + 1)\, w_t \bmod 2^{64}`, with odd numbers :math:`w_t` that
        are the same in every process; that of a document :math:`\sum_v h_v u_v`, of the hashes of
        its windows, with other odd numbers, where :math:`u_0 = 1`.
        """
        device = self.ids.device
        longest = int(self.lengths.max()) if len(self.lengths) else 0
        weights = _odd_numbers(longest, seed=0).to(device)
        # Of each text its first token; of each token its text, and its place in that text.
        begin_s = self.lengths.cumsum(0) - self.lengths
        text_t = torch.arange(len(self.lengths), device=device).repeat_interleave(self.lengths)
        place_t = torch.arange(len(self.ids), device=device) - begin_s[text_t]
        product_t = (self.ids.long() + 1) * weights[place_t]
        hash_s = torch.zeros_like(self.lengths).index_add_(0, text_t, product_t)
        if self.windows is None:
            return hash_s
        # Of each window its document, and its number among the windows of that one.
        most = int(self.windows.max()) if len(self.windows) else 0
        first_weight = torch.ones(1, dtype=torch.int64)
        window_weights = torch.cat([first_weight, _odd_numbers(most, seed=1)]).to(device)
        begin_d = self.windows.cumsum(0) - self.windows
        doc_s = torch.arange(len(self.windows), device=device).repeat_interleave(self.windows)
        number_s = torch.arange(len(hash_s), device=device) - begin_d[doc_s]
        product_s = hash_s * window_weights[number_s]
        return torch.zeros_like(self.windows).index_add_(0, doc_s, product_s)


def _odd_numbers(count: int, seed: int) -> Tensor:
    """``[count]`` int64: a fixed seed, so that every process draws the same; odd, so that a product
    modulo 2^64 loses no bit.
    """
    generator = torch.Generator().manual_seed(seed)
    halves = torch.randint(-(2**62), 2**62, (count,), generator=generator)
    return halves * 2 + 1


def on_device(arrays: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """Arrays of the host as tensors on a device. On a CPU they share memory; to a GPU goes one copy
    of all, for which the host does not wait.
    """
    tensors = [torch.from_numpy(array) for array in arrays]
    if device.type == "cuda":
        return _in_one_copy(tensors, device)
    return [tensor.to(device) for tensor in tensors]


def _in_one_copy(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """The tensors on a GPU, all in one piece of its memory."""
    spans = []
    n_bytes = 0
    for tensor in tensors:
        spans.append((n_bytes, n_bytes + tensor.nbytes))
        n_bytes += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    # The host waits for no copy that begins in pinned memory.
    pinned = torch.empty(n_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
    for tensor, (begin, end) in zip(tensors, spans, strict=True):
        pinned[begin:end].view(tensor.dtype).copy_(tensor.flatten())
    there = pinned.to(device, non_blocking=True)
    parts = []
    for tensor, (begin, end) in zip(tensors, spans, strict=True):
        parts.append(there[begin:end].view(tensor.dtype).view(tensor.shape))
    return parts


class HostLists:
    """What says of the texts of a batch which are the same and which are judged for whom. It stays on
    the host when the rest goes to a device: so longer lists (``ltr/in_batch``) are laid out while a
    GPU encodes, and nothing waits for it.

    It is neither tuple nor dataclass: what moves a batch looks into those, and would move these too.

    Args:
        lists: a batch on the host, without texts. Its ``query_rows`` are hashes of the queries; in a
            batch without queries those of :class:`RankingBatch`.
        originals: by name, the tensors of a batch on its device that have these values, each with
            its count of changes in place (``_version``); None before the batch is there.
    """

    def __init__(
        self,
        lists: "RankingBatch",
        originals: Mapping[str, tuple[Tensor, int]] | None = None,
    ) -> None:
        self.lists = lists
        self.originals = originals

    def agrees_with(self, batch: "RankingBatch") -> bool:
        """Whether a batch on the host still has the values from which this was made. Its texts are
        not looked at.
        """
        for name in COPIED:
            ours = getattr(self.lists, name)
            theirs = getattr(batch, name)
            if ours is None and theirs is None:
                continue
            if ours is None or theirs is None or theirs.device.type != "cpu":
                return False
            has_nan = ours.is_floating_point()
            if not np.array_equal(ours.numpy(), theirs.numpy(), equal_nan=has_nan):
                return False
        return True


# The fields of a batch that its HostLists repeat.
COPIED = (
    "labels",
    "mask",
    "doc_rows",
    "distances",
    "judged_rows",
    "judged_grades",
    "judged_hashes",
    "sources",
)


class RankingBatch(NamedTuple):
    """B lists of up to N documents.

    Attributes:
        labels: ``[B, N]`` float, relevance grades; 0 for documents nobody judged.
        mask: ``[B, N]`` bool, True for a document, False for padding.
        query_rows: ``[B]`` int64, row numbers of the queries in the collection.
        doc_rows: ``[B, N]`` int64, row numbers of the documents. Documents are stored in the order
            of their ids, so the larger row wins a tie of scores, as in trec_eval.
        pairs: the texts of a query joined with a document, one for every True of ``mask``, row by
            row (cross-encoder). These are no pairs of documents, as in ``ltr/pairs``.
        queries: the texts of the B queries (dual encoder). None in a batch of groups of labelled
            texts, which has no queries.
        docs: the documents' texts, one for every True of ``mask``, row by row (dual encoder).
        features: ``[B, N, F]`` float32, feature vectors of the documents, 0 at the padding (feature
            ranker).
        distances: ``[B, N]`` float, distance of each document to its query in the index that mined
            it; NaN for one that was not mined, such as a relevant document. None: no margin reads
            them, or no document was mined (a batch made by hand).
        judged_rows: ``[B, J]`` int64, rows of all documents that are judged for the query, in the
            list or not; −1 as padding (dual encoder with in-batch lists: a document of another
            query that is judged for this one is not irrelevant to it). In training also those that
            equal queries have as relevant, and those of the query's own text.
        judged_grades: ``[B, J]`` float, their grades; NaN for a document of the query's own text
            (``ltr.data.query_lists.OWN_TEXT``).
        judged_hashes: ``[B, J]`` int64, the hashes of their texts by :meth:`Texts.hashes`. Lists to
            be measured have none. Without them judged documents are found by their rows alone.
        doc_hashes: ``[B, N]`` int64, the hashes of the documents' texts; only in-batch lists make
            them. Without them different rows are different texts.
        ideal: ``[B, M]`` float, the grades of all relevant documents of the query, in the list or
            not, largest first and filled up with 0. Only lists to be measured carry it.
        judged: ``[B, N]`` bool, whether a document has a judgement, of whatever grade. Only lists
            to be measured carry it; None: all have one.
        keys: ``[B]`` int64, from which dropout is drawn, see :meth:`with_keys`.
        sources: ``[B]`` int64, the number of the source of each list; None where there is one.
        places: ``[S]`` int64, where the S documents stand among the B·N places of ``mask``, row by
            row. None: see :meth:`doc_places`.
        placed_in: the N that ``places`` count by.
        on_host: what longer lists are laid out by, of training batches of texts apart, see
            :meth:`lists_on_host`.

    Example:
        >>> batch = RankingBatch(
        ...     labels=torch.tensor([[1.0, 0.0]]),
        ...     mask=torch.tensor([[True, True]]),
        ...     query_rows=torch.tensor([0]),
        ...     doc_rows=torch.tensor([[0, 1]]),
        ...     features=torch.randn(1, 2, 46),
        ... )
    """

    labels: Tensor
    mask: Tensor
    query_rows: Tensor
    doc_rows: Tensor
    pairs: Texts | None = None
    queries: Texts | None = None
    docs: Texts | None = None
    features: Tensor | None = None
    distances: Tensor | None = None
    judged_rows: Tensor | None = None
    judged_grades: Tensor | None = None
    judged_hashes: Tensor | None = None
    doc_hashes: Tensor | None = None
    ideal: Tensor | None = None
    judged: Tensor | None = None
    keys: Tensor | None = None
    sources: Tensor | None = None
    places: Tensor | None = None
    placed_in: int | None = None
    on_host: HostLists | None = None

    @property
    def n_tokens(self) -> int:
        """How many tokens its texts have; 0 of vectors of features."""
        texts = (self.pairs, self.queries, self.docs)
        return sum(len(each.ids) for each in texts if each is not None)

    def with_keys(self, keys: Tensor) -> "RankingBatch":
        """The batch with keys ``[B]`` int64 of its lists, from which follow those of its texts: each
        list then gets the same draws in whichever process, and beside whichever others, it is.
        """
        batch = self._replace(keys=keys)
        doc_keys = batch.doc_keys()
        assert doc_keys is not None, "the batch has keys"
        keys_of_docs = self.of_docs(doc_keys)
        return batch._replace(
            pairs=None if self.pairs is None else self.pairs.with_keys(keys_of_docs),
            queries=None if self.queries is None else self.queries._replace(keys=keys),
            docs=None if self.docs is None else self.docs.with_keys(keys_of_docs),
        )

    def doc_keys(self) -> Tensor | None:
        """``[B, N]`` int64, from which the dropout of the documents is drawn; None in a batch without
        keys.
        """
        if self.keys is None:
            return None
        number = torch.arange(self.mask.shape[1], device=self.keys.device)
        return keys_inside(self.keys.unsqueeze(1), number)

    def moved(self, move: Callable[["RankingBatch"], "RankingBatch"]) -> "RankingBatch":
        """The batch, moved from the host to its device, and what ``on_host`` is a copy of there. Where
        the batch has been changed since it was made, nothing is.
        """
        agrees = self.on_host is not None and self.on_host.agrees_with(self)
        batch = move(self)
        if self.on_host is None or not agrees or batch.labels.is_inference():
            return batch._replace(on_host=None)
        originals = {name: (x, x._version) for name, x in batch._laid_out_by().items()}
        return batch._replace(on_host=HostLists(self.on_host.lists, originals))

    def lists_on_host(self) -> "RankingBatch | None":
        """The lists of this batch on the host, without texts; None where nobody knows whether
        they are the same (:meth:`moved` does), or where a tensor was replaced, left out or changed
        in place since. Distances may be left out.
        """
        if self.on_host is None or self.on_host.originals is None:
            return None
        originals = dict(self.on_host.originals)
        tensors = self._laid_out_by()
        lists = self.on_host.lists
        if self.distances is None:
            originals.pop("distances", None)
            lists = lists._replace(distances=None)
        if tensors.keys() != originals.keys():
            return None
        for name, tensor in tensors.items():
            original, version = originals[name]
            if tensor is not original or tensor._version != version:
                return None
        return lists

    def _laid_out_by(self) -> dict[str, Tensor]:
        """The tensors that longer lists are laid out by, by name."""
        tensors = {name: getattr(self, name) for name in (*COPIED, "query_rows", "doc_hashes")}
        for side in ("queries", "docs"):
            texts = getattr(self, side)
            if texts is not None:
                tensors |= {
                    f"{side}.ids": texts.ids,
                    f"{side}.lengths": texts.lengths,
                    f"{side}.windows": texts.windows,
                }
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}

    def doc_places(self) -> Tensor:
        """``[S]`` int64, the places of the documents. Where ``places`` is None, or counts by another N,
        the mask says them, for which the host waits for a GPU.
        """
        if self.places is None or self.placed_in != self.mask.shape[1]:
            return self.mask.flatten().nonzero().squeeze(1)
        return self.places

    def of_docs(self, lists: Tensor) -> Tensor:
        """What lists ``[B, N, …]`` hold of the documents, ``[S, …]``: row by row, without padding."""
        return lists.flatten(0, 1).index_select(0, self.doc_places())

    def in_lists(self, values: Tensor) -> Tensor:
        """Put one value or vector of each document, ``[S]`` or ``[S, H]``, into its place in the
        lists, ``[B, N]`` or ``[B, N, H]``; padding gets 0.
        """
        lists = values.new_zeros(self.mask.numel(), *values.shape[1:])
        lists = lists.index_copy_(0, self.doc_places(), values)
        return lists.unflatten(0, self.mask.shape)


class ScoredLists(NamedTuple):
    """A training batch as a loss, a margin policy and a callback see it: R rows of up to C documents.
    With several processes these are the lists of all, the same in each.

    A row is a query, or an anchor of a batch of groups; a column is a document of its list.

    Attributes:
        scores: ``[R, C]`` float, higher is better; ``[0]`` of lists that are not scored yet.
        labels: ``[R, C]`` float, relevance grades.
        mask: ``[R, C]`` bool, True for a document, False for padding and for what a row must not be
            compared with.
        distances: ``[R, C]`` float, distance of each document to its row, as
            :attr:`RankingBatch.distances` has it: NaN where none is known; it may be None where the
            margin policy wants none. Where it wants them, a document that was not mined for its row
            has one too: with a dual encoder the distance of the two embeddings, without gradient;
            with another ranker 0, if it is relevant.
        embeddings: ``[R, C, H]`` float, the documents' representations, finite at the padding;
            ``[1, C, H]`` where all rows share their documents; None where the ranker gives none.
        queries: ``[R, H]`` float, the rows' representations; None where the ranker gives none.
        frozen: the representations by the margin policy's frozen encoder: first those of the rows,
            shaped as ``queries``, then those of the documents, shaped as ``embeddings``. None
            without such an encoder.

    Example:
        >>> labels = torch.tensor([[1.0, 0.0]])
        >>> lists = ScoredLists(torch.tensor([[0.7, 0.2]]), labels, mask=torch.ones_like(labels).bool())
        >>> lists.distances is None  # nothing asked for them
        True
    """

    scores: Tensor
    labels: Tensor
    mask: Tensor
    distances: Tensor | None = None
    embeddings: Tensor | None = None
    queries: Tensor | None = None
    frozen: tuple[Tensor, Tensor] | None = None

    def detached(self) -> "ScoredLists":
        """The same lists without gradients; ``frozen`` has none."""
        detached: dict[str, Any] = {}
        for name, value in self._asdict().items():
            if isinstance(value, Tensor):
                detached[name] = value.detach()
        return self._replace(**detached)
