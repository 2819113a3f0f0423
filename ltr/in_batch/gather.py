"""The lists of all processes in every process, with the gradient that one process would have."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ltr.batch import RankingBatch, ScoredLists, on_device
from ltr.processes import all_gather, gather_numbers, rank, world_size

# Fields of a list itself, and of its judgements; all others belong to its documents.
OF_LIST = {"queries", "query_rows", "sources", "frozen_queries"}
OF_JUDGEMENT = {"judged_rows", "judged_grades", "judged_hashes"}
WITHOUT_GRADIENT = {"labels", "judged_grades", "distances", "frozen_queries", "frozen_docs"}
# Not each batch has these, but either all ranks have one or none has; in the order of an error.
OPTIONAL = (
    "judged_rows",
    "judged_grades",
    "queries",
    "doc_hashes",
    "judged_hashes",
    "distances",
)


def gather_lists(
    lists: RankingBatch, queries: Tensor | None, docs: Tensor
) -> tuple[RankingBatch, Tensor | None, Tensor]:
    r"""The lists of all ranks and their embeddings on every rank, in the order that the whole batch
    has.

    Each of the W ranks then computes the same loss L over all B lists that one process would
    compute. So any loss works, also one whose mean is over the batch. Let :math:`E_r(\theta)` be
    the embeddings that rank r has computed. The gradient of one process is

    .. math::
        \frac{dL}{d\theta} = \sum_{r=1}^{W} \frac{\partial L}{\partial E_r} \frac{\partial E_r}{\partial\theta}.

    Rank r can compute only its own term: the embeddings of others are constants to it.
    ``DistributedDataParallel`` averages the gradients of the ranks, which would give 1/W of the
    sum. The backward pass here therefore gives rank r

    .. math::
        W \frac{\partial L}{\partial E_r}, \qquad
        \frac{1}{W} \sum_{r=1}^{W} W \frac{\partial L}{\partial E_r} \frac{\partial E_r}{\partial\theta}
        = \frac{dL}{d\theta},

    without any communication. A parameter that is used after the gather (a temperature, a margin)
    has its full gradient on every rank. The average of equal gradients is that gradient, so it
    needs no factor. A parameter used before and after the gather gets the sum of both.

    Ranks may hold different numbers of lists, also none, of different N and J: they are padded to
    the largest and cut again. Whatever follows the gather must be the same on every rank: a loss or
    a margin that draws random numbers must draw equal ones.

    Args:
        lists: of this rank, without texts; on its host, or where the embeddings are. All ranks must
            call, and must agree on whether there are queries, judged rows, their grades, the hashes
            and distances, and sources.
        queries: ``[B, H]``; None for groups of texts without queries.
        docs: ``[B, N, H]``, with one H on all ranks. A rank without lists must still pass them
            through its encoder: ``DistributedDataParallel`` waits for the gradient of every
            parameter on every rank.

    Returns:
        What came, without ``torch.distributed`` or with one rank. Otherwise B is the sum
        over ranks, N and J the largest; padding is 0, False, or −1 in ``judged_rows``. Labels,
        grades, distances, rows and mask carry no gradient. Lists stay on the hosts if those of all
        ranks are there; else they go to the embeddings.

    Raises:
        ValueError: on every rank, if ranks disagree on queries, judged rows, their grades, the
            hashes, distances or the length of embeddings.

    Cost:
        Three collectives: forms and sizes, floats, integers; of lists on the hosts beside embeddings
        on GPUs one more, as only embeddings go from GPU to GPU. Every rank then computes the whole
        score matrix and its loss, in the time and memory of one process; only the work of the
        encoder is shared.
    """
    if world_size() == 1:
        return lists, queries, docs
    embedded = lists._asdict() | {"queries": queries, "docs": docs}
    fields = {name: tensor for name, tensor in embedded.items() if tensor is not None}
    own_sizes = _sizes(fields)
    is_on_host = fields["mask"].device.type == "cpu"
    of_ranks = gather_numbers([*own_sizes, *_form(fields), int(is_on_host)])
    _check_forms(of_ranks[:, len(own_sizes) : -1])
    if not of_ranks[:, -1].all():
        fields = {name: tensor.to(docs.device) for name, tensor in fields.items()}
    gathered: dict[str, Any] = _gather_fields(fields, of_ranks[:, : len(own_sizes)])
    queries = gathered.pop("queries", None)
    docs = gathered.pop("docs")
    return lists._replace(**gathered), queries, docs


def gather_scored(lists: ScoredLists) -> ScoredLists:
    """The scored lists of all ranks on every rank, as :func:`gather_lists` does it for lists and
    embeddings.

    A loss over the gathered scores, and a margin of them, are those of one process with the whole
    batch, also where its mean is over rows or pairs that have something to learn.
    """
    if world_size() == 1:
        return lists
    # A rank whose documents have no distances says so for each of them: others may have some. What
    # the ranker gives (embeddings, queries) all ranks have, or none has.
    if lists.distances is None:
        lists = lists._replace(distances=torch.full_like(lists.labels, torch.nan))
    flat = lists._replace(frozen=None)._asdict()
    fields = {name: tensor for name, tensor in flat.items() if tensor is not None}
    if lists.frozen is not None:
        fields["frozen_queries"], fields["frozen_docs"] = lists.frozen
    gathered = _gather_fields(fields, gather_numbers(_sizes(fields)))
    frozen = None
    if lists.frozen is not None:
        frozen = (gathered.pop("frozen_queries"), gathered.pop("frozen_docs"))
    return ScoredLists(**gathered, frozen=frozen)


def _form(fields: dict[str, Tensor]) -> list[int]:
    """Which of the optional fields a rank has, as 0 and 1, and the length of its embeddings."""
    is_there = [int(name in fields) for name in OPTIONAL]
    return [*is_there, fields["docs"].shape[-1]]


def _check_forms(forms: np.ndarray) -> None:
    """A ValueError on every rank where ranks have different fields, see :func:`_form`."""
    if (forms != forms[0]).any():
        got = []
        for *flags, length in forms.tolist():
            got.append((*map(bool, flags), length))
        raise ValueError(
            f"all ranks must have queries or none, judged_rows or none, judged_grades or none, hashes or none, distances or none, and embeddings of one length; got, as ({', '.join(OPTIONAL)}, length) of each rank: {got}"
        )


def _sizes(fields: dict[str, Tensor]) -> tuple[int, int, int]:
    """B, N and J of a rank."""
    n_lists, n_docs = fields["mask"].shape
    judged = fields.get("judged_rows")
    return n_lists, n_docs, 0 if judged is None else judged.shape[1]


def _gather_fields(fields: dict[str, Tensor], sizes: np.ndarray) -> dict[str, Tensor]:
    """Each field of the lists of all ranks, in the order of the whole batch.

    Args:
        fields: by name, of this rank: ``[B, …]`` for what belongs to a list, ``[B, J]`` for its
            judgements, ``[B, N, …]`` for its documents. All ranks have the same, in one order.
        sizes: ``[W, 3]``, of each rank, see :func:`_sizes`.
    """
    n_lists, n_docs, n_judged = sizes.max(axis=0).tolist()  # the most of any rank
    # A collective for each kind: as a float, a large row number would be rounded, and what lies on
    # the hosts doesn't go through GPUs.
    kinds: dict[tuple[str, bool], dict[str, Tensor]] = {}
    for name, tensor in fields.items():
        shape: tuple[int, ...] = (n_lists, n_docs)
        if name in OF_LIST:
            shape = (n_lists,)
        elif name in OF_JUDGEMENT:
            shape = (n_lists, n_judged)
        padded = _padded(tensor, shape, fill=-1 if name == "judged_rows" else 0)
        kind = (padded.device.type, padded.is_floating_point())
        kinds.setdefault(kind, {})[name] = padded
    lists_per_rank = sizes[:, 0].tolist()
    gathered: dict[str, Tensor] = {}
    for _, of_kind in sorted(kinds.items(), reverse=True):
        gathered |= _gather_as_matrix(of_kind, lists_per_rank)
    for name in WITHOUT_GRADIENT & gathered.keys():
        gathered[name] = gathered[name].detach()
    return gathered


def _padded(tensor: Tensor, sizes: tuple[int, ...], fill: int = 0) -> Tensor:
    """The tensor with these sizes in the first dimensions, filled up at their ends."""
    # F.pad takes two numbers for each dimension, before and after, and the last dimension first.
    padding = [0, 0] * (tensor.ndim - len(sizes))
    for dim in reversed(range(len(sizes))):
        padding += [0, sizes[dim] - tensor.shape[dim]]
    return F.pad(tensor, padding, value=fill)


def _gather_as_matrix(fields: dict[str, Tensor], lists_per_rank: list[int]) -> dict[str, Tensor]:
    """Each field ``[B, …]`` of the lists of all ranks, in the order of the whole batch, by one
    collective: all send the same shapes, of which ``lists_per_rank`` are no padding.
    """
    # Side by side in one matrix [B, F]: a field [B] takes one column of it.
    parts: list[Tensor] = []
    for tensor in fields.values():
        parts.append(tensor.reshape(len(tensor), math.prod(tensor.shape[1:])))
    matrices = _Gather.apply(torch.cat(parts, dim=1))  # [W, B, F]
    real = [matrix[:n] for matrix, n in zip(matrices, lists_per_rank, strict=True)]
    widths = [part.shape[1] for part in parts]
    order_on_host = np.array(_order(lists_per_rank), dtype=np.int64)
    (order,) = on_device([order_on_host], matrices.device)
    gathered = torch.cat(real)[order].split(widths, dim=1)
    gathered_tensors: dict[str, Tensor] = {}
    for (name, tensor), values in zip(fields.items(), gathered, strict=True):
        gathered_tensors[name] = values.reshape(len(values), *tensor.shape[1:]).to(tensor.dtype)
    return gathered_tensors


def _order(lists_per_rank: list[int]) -> list[int]:
    """For each list of the whole batch its place among the lists of the ranks, end to end. The ranks
    deal out a batch (:mod:`ltr.data.sampling.buckets`): rank r of W has the lists r, r + W, r + 2 W
    and so on.

    >>> _order([3, 2])
    [0, 3, 1, 4, 2]
    """
    n_ranks = len(lists_per_rank)
    numbers: list[int] = []
    for rank_of_list, n_lists in enumerate(lists_per_rank):
        numbers += range(rank_of_list, rank_of_list + n_ranks * n_lists, n_ranks)
    return sorted(range(len(numbers)), key=numbers.__getitem__)


class _Gather(torch.autograd.Function):
    """The derivation of the backward pass stands at :func:`gather_lists`."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return all_gather(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient[rank()] * world_size()
