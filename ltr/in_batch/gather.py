"""Embeddings of all processes in every process, with the gradient that one process would have."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ltr.in_batch.embedded import Embedded
from ltr.processes import all_gather, rank, world_size


def gather_lists(lists: Embedded) -> Embedded:
    r"""The lists of all ranks, in the order of ranks, on every rank.

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
        lists: of this rank. All ranks must call, with embeddings of one length, and must agree on
            whether there are queries, judged rows, their grades, the keys and distances. A rank
            without lists must still pass them through its encoder: ``DistributedDataParallel``
            waits for the gradient of every parameter on every rank.

    Returns:
        The lists themselves without ``torch.distributed``, or with one rank. Otherwise B is the sum
        over ranks, N and J the largest; padding is 0, False, or −1 in ``judged_rows``. Labels,
        grades, distances, rows and mask carry no gradient.

    Raises:
        ValueError: on every rank, if ranks disagree on queries, judged rows, their grades, the
            keys, distances or the length of embeddings.

    Cost:
        Three collectives: sizes, floats, integers. Every rank then computes the whole score matrix
        and its loss, in the time and memory of one process; only the work of the encoder is shared.
    """
    if world_size() == 1:
        return lists
    sizes = _sizes(lists)
    n_lists, n_docs, n_judged = sizes.amax(dim=0).tolist()
    # Two collectives: as a float, a large row number would be rounded.
    floats: dict[str, Tensor] = {}
    integers: dict[str, Tensor] = {}
    for name, tensor in lists._asdict().items():
        if tensor is None:
            continue
        shape: tuple[int, ...] = (n_lists, n_docs)
        if name in ("queries", "query_rows"):
            shape = (n_lists,)
        elif name in ("judged_rows", "judged_grades", "judged_keys"):
            shape = (n_lists, n_judged)
        padded = _padded(tensor, shape, fill=-1 if name == "judged_rows" else 0)
        if padded.is_floating_point():
            floats[name] = padded
        else:
            integers[name] = padded
    lists_per_rank = sizes[:, 0].tolist()
    fields = _gather_fields(floats, lists_per_rank) | _gather_fields(integers, lists_per_rank)
    for name in ("labels", "judged_grades", "distances"):
        if name in fields:
            fields[name] = fields[name].detach()
    return lists._replace(**fields)


def _sizes(lists: Embedded) -> Tensor:
    """``[W, 3]`` int64: B, N and J of each rank; J is 0 without ``judged_rows``. A ValueError where
    ranks have different fields.
    """
    n_judged = 0 if lists.judged_rows is None else lists.judged_rows.shape[1]
    optional = (
        lists.judged_rows,
        lists.judged_grades,
        lists.queries,
        lists.doc_keys,
        lists.judged_keys,
        lists.distances,
    )
    present = [tensor is not None for tensor in optional]
    sizes_of_rank = [*lists.mask.shape, n_judged]
    form_of_rank = [*present, lists.docs.shape[-1]]
    both = torch.tensor([*sizes_of_rank, *form_of_rank], device=lists.docs.device)
    sizes, forms = all_gather(both).cpu().split([len(sizes_of_rank), len(form_of_rank)], dim=1)
    if (forms != forms[0]).any():
        got = []
        for *flags, length in forms.tolist():
            got.append((*map(bool, flags), length))
        raise ValueError(
            f"all ranks must have queries or none, judged_rows or none, judged_grades or none, keys or none, distances or none, and embeddings of one length; got, as (judged_rows, judged_grades, queries, doc_keys, judged_keys, distances, length) of each rank: {got}"
        )
    return sizes


def _padded(tensor: Tensor, sizes: tuple[int, ...], fill: int = 0) -> Tensor:
    """The tensor with these sizes in the first dimensions, filled up at their ends."""
    # F.pad takes two numbers for each dimension, before and after, and the last dimension first.
    padding = [0, 0] * (tensor.ndim - len(sizes))
    for dim in reversed(range(len(sizes))):
        padding += [0, sizes[dim] - tensor.shape[dim]]
    return F.pad(tensor, padding, value=fill)


def _gather_fields(fields: dict[str, Tensor], lists_per_rank: list[int]) -> dict[str, Tensor]:
    """Each field of the lists of all ranks, end to end, by one collective.

    Args:
        fields: ``[B, …]`` each, of this rank. All ranks must send the same shapes.
        lists_per_rank: how many of the B lists of each rank are no padding.
    """
    # Side by side as columns of one matrix [B, F]; a field [B] becomes one column.
    columns: list[Tensor] = []
    for tensor in fields.values():
        n_columns = math.prod(tensor.shape[1:])
        columns.append(tensor.reshape(len(tensor), n_columns))
    matrix_of_rank = _Gather.apply(torch.cat(columns, dim=1))  # [W, B, F]
    real = [matrix[:n] for matrix, n in zip(matrix_of_rank, lists_per_rank, strict=True)]
    widths = [column.shape[1] for column in columns]
    gathered = torch.cat(real).split(widths, dim=1)
    of_all: dict[str, Tensor] = {}
    for (name, tensor), values in zip(fields.items(), gathered, strict=True):
        of_all[name] = values.reshape(len(values), *tensor.shape[1:]).to(tensor.dtype)
    return of_all


class _Gather(torch.autograd.Function):
    """The derivation of the backward pass stands at :func:`gather_lists`."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return all_gather(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient[rank()] * world_size()
