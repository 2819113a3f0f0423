"""Embeddings of all processes in every process, with the gradient that one process would have."""

import math

import torch
from torch import Tensor, distributed
from torch.nn import functional as F

from ltr.in_batch.embedded import Embedded


def gathered(lists: Embedded) -> Embedded:
    r"""The lists of all ranks, in the order of ranks, on every rank.

    Each of the W ranks then computes the same loss L over all B lists that one process would compute. So any loss works, also one
    whose mean is over the batch. Let :math:`E_r(\theta)` be the embeddings that rank r has computed. The gradient of one process
    is

    .. math::
        \frac{dL}{d\theta} = \sum_{r=1}^{W} \frac{\partial L}{\partial E_r} \frac{\partial E_r}{\partial\theta}.

    Rank r can compute only its own term: the embeddings of others are constants to it. ``DistributedDataParallel`` averages the
    gradients of the ranks, which would give 1/W of the sum. The backward pass here therefore gives rank r

    .. math::
        W \frac{\partial L}{\partial E_r}, \qquad
        \frac{1}{W} \sum_{r=1}^{W} W \frac{\partial L}{\partial E_r} \frac{\partial E_r}{\partial\theta}
        = \frac{dL}{d\theta},

    without any communication. A parameter that is used after the gather (a temperature, a margin) has its full gradient on every
    rank. The average of equal gradients is that gradient, so it needs no factor. A parameter used before and after the gather
    gets the sum of both.

    Ranks may hold different numbers of lists, also none, of different N and J: they are padded to the largest and cut again.
    Whatever follows the gather must be the same on every rank: a loss or a margin that draws random numbers must draw equal ones.

    Args:
        lists: of this rank. All ranks must call, with embeddings of one length, and must agree on whether there are queries,
            ``judged_rows`` and ``doc_keys``. A rank without lists must still pass them through its encoder:
            ``DistributedDataParallel`` waits for the gradient of every parameter on every rank.

    Returns:
        The lists themselves without ``torch.distributed``, or with one rank. Otherwise B is the sum over ranks, N and J the
        largest; padding is 0, False, or −1 in ``judged_rows``. Labels, rows and mask carry no gradient.

    Raises:
        ValueError: on every rank, if ranks disagree on queries, ``judged_rows``, ``doc_keys`` or the length of embeddings.

    Cost:
        Three collectives: sizes, floats, integers. Every rank then computes the whole score matrix and its loss, in the time and
        memory of one process; only the work of the encoder is shared.
    """
    if not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size() == 1:
        return lists
    sizes = _sizes(lists)
    n_lists, n_docs, n_judged = sizes[:, :3].amax(dim=0).tolist()
    per_rank = sizes[:, 0].tolist()
    floats = [(lists.docs, (n_docs, lists.docs.shape[-1]), 0), (lists.labels, (n_docs,), 0)]
    integers = [(lists.query_rows, (), 0), (lists.doc_rows, (n_docs,), 0), (lists.mask.long(), (n_docs,), 0)]
    if lists.queries is not None:
        floats.append((lists.queries, lists.queries.shape[1:], 0))
    if lists.judged_rows is not None:
        integers.append((lists.judged_rows, (n_judged,), -1))
    if lists.doc_keys is not None:
        integers.append((lists.doc_keys, (n_docs,), 0))
    docs, labels, *queries = _of_all(floats, n_lists, per_rank)
    query_rows, doc_rows, mask, *others = _of_all(integers, n_lists, per_rank)
    return Embedded(
        queries=queries[0] if queries else None,
        docs=docs,
        labels=labels.detach(),
        mask=mask.bool(),
        query_rows=query_rows,
        doc_rows=doc_rows,
        judged_rows=None if lists.judged_rows is None else others.pop(0),
        doc_keys=None if lists.doc_keys is None else others.pop(0),
    )


def _sizes(lists: Embedded) -> Tensor:
    """``[W, 3]`` int64: B, N and J of each rank; J is −1 without ``judged_rows``."""
    n_judged = -1 if lists.judged_rows is None else lists.judged_rows.shape[1]
    own = [*lists.mask.shape, n_judged, lists.queries is not None, lists.doc_keys is not None, lists.docs.shape[-1]]
    sizes = _all_gather(torch.tensor([own], device=lists.docs.device))
    sizes = sizes.squeeze(1).cpu()
    alike = torch.cat([sizes[:, 2:3] >= 0, sizes[:, 3:]], dim=1)
    if (alike != alike[0]).any():
        raise ValueError(
            "all ranks must have queries or none, judged_rows or none, doc_keys or none, and embeddings of one length; got, as "
            "(judged_rows, queries, doc_keys, length) of each rank: "
            f"{[(*map(bool, has), h) for *has, h in alike.tolist()]}"
        )
    return sizes[:, :3]


def _of_all(parts: list[tuple[Tensor, tuple[int, ...], int]], n_lists: int, per_rank: list[int]) -> list[Tensor]:
    """Tensors of all ranks, the lists end to end, by one collective.

    Args:
        parts: each a tensor ``[B, …]``, the shape of a row after padding, and the value to pad with.
        n_lists: the largest B.
        per_rank: B of each rank.
    """
    sent = torch.cat([_padded(tensor, (n_lists, *shape), fill).flatten(1) for tensor, shape, fill in parts], dim=1)
    rows = torch.cat([part[:n] for part, n in zip(_Gather.apply(sent), per_rank, strict=True)])
    widths = [math.prod(shape) for _, shape, _ in parts]
    return [
        row.reshape(len(row), *shape).to(tensor.dtype)
        for row, (tensor, shape, _) in zip(rows.split(widths, dim=1), parts, strict=True)
    ]


def _padded(tensor: Tensor, shape: tuple[int, ...], fill: int) -> Tensor:
    if tensor.ndim == 1:
        tensor, shape = tensor.unsqueeze(1), (*shape, 1)
    missing = [n - size for n, size in zip(shape, tensor.shape, strict=True)]
    return F.pad(tensor, [amount for n in reversed(missing) for amount in (0, n)], value=fill)


def _all_gather(own: Tensor) -> Tensor:
    """``[W, …]``: the tensors of all ranks, which must have one shape; without gradient."""
    whole = own.new_empty(distributed.get_world_size(), *own.shape)
    distributed.all_gather(list(whole), own.contiguous())
    return whole


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, own: Tensor) -> Tensor:
        return _all_gather(own)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return gradient[distributed.get_rank()] * distributed.get_world_size()
