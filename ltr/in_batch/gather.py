"""Embeddings of all processes in every process, with the gradient that one process would have."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ltr.in_batch.embedded import Embedded
from ltr.processes import all_gather, rank, world_size


def gathered(lists: Embedded) -> Embedded:
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
            whether there are queries, ``judged_rows``, the keys and distances. A rank without lists
            must still pass them through its encoder: ``DistributedDataParallel`` waits for the
            gradient of every parameter on every rank.

    Returns:
        The lists themselves without ``torch.distributed``, or with one rank. Otherwise B is the sum
        over ranks, N and J the largest; padding is 0, False, or −1 in ``judged_rows``. Labels,
        distances, rows and mask carry no gradient.

    Raises:
        ValueError: on every rank, if ranks disagree on queries, ``judged_rows``, the keys,
            distances or the length of embeddings.

    Cost:
        Three collectives: sizes, floats, integers. Every rank then computes the whole score matrix
        and its loss, in the time and memory of one process; only the work of the encoder is shared.
    """
    if world_size() == 1:
        return lists
    sizes = _sizes(lists)
    n_lists, n_docs, n_judged = sizes.amax(dim=0).tolist()
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("queries", "query_rows"), (n_lists,))
    shapes |= dict.fromkeys(("judged_rows", "judged_keys"), (n_lists, n_judged))
    padded = {
        name: _padded(
            tensor, shapes.get(name, (n_lists, n_docs)), fill=-1 if name == "judged_rows" else 0
        )
        for name, tensor in lists._asdict().items()
        if tensor is not None
    }
    floats = {name: tensor for name, tensor in padded.items() if tensor.is_floating_point()}
    integers = {name: tensor for name, tensor in padded.items() if name not in floats}
    per_rank = sizes[:, 0].tolist()
    found = _of_all(floats, per_rank) | _of_all(integers, per_rank)
    constants = {name: found[name].detach() for name in ("labels", "distances") if name in found}
    return lists._replace(**found | constants)


def _sizes(lists: Embedded) -> Tensor:
    """``[W, 3]`` int64: B, N and J of each rank; J is −1 without ``judged_rows``."""
    n_judged = -1 if lists.judged_rows is None else lists.judged_rows.shape[1]
    there = [
        part is not None
        for part in (lists.queries, lists.doc_keys, lists.judged_keys, lists.distances)
    ]
    own = [*lists.mask.shape, n_judged, *there, lists.docs.shape[-1]]
    sizes = all_gather(torch.tensor(own, device=lists.docs.device)).cpu()
    alike = torch.cat([sizes[:, 2:3] >= 0, sizes[:, 3:]], dim=1)
    if (alike != alike[0]).any():
        raise ValueError(
            "all ranks must have queries or none, judged_rows or none, keys or none, distances or none, and embeddings of one "
            "length; got, as (judged_rows, queries, doc_keys, judged_keys, distances, length) of each rank: "
            f"{[(*map(bool, has), h) for *has, h in alike.tolist()]}"
        )
    return sizes[:, :3]


def _padded(tensor: Tensor, sizes: tuple[int, ...], fill: int = 0) -> Tensor:
    """With these sizes in the first dimensions."""
    missing = [0] * (tensor.ndim - len(sizes)) + [
        n - tensor.shape[dim] for dim, n in reversed([*enumerate(sizes)])
    ]
    return F.pad(tensor, [amount for n in missing for amount in (0, n)], value=fill)


def _of_all(parts: dict[str, Tensor], per_rank: list[int]) -> dict[str, Tensor]:
    """The lists of all ranks end to end, ``per_rank`` of each, by one collective. All ranks must
    send the same shapes.
    """
    flat = [tensor.unsqueeze(-1).flatten(1) for tensor in parts.values()]
    ranks = _Gather.apply(torch.cat(flat, dim=1))
    rows = torch.cat([part[:n] for part, n in zip(ranks, per_rank, strict=True)])
    each = zip(parts.items(), rows.split([tensor.shape[1] for tensor in flat], dim=1), strict=True)
    return {
        name: row.reshape(len(row), *tensor.shape[1:]).to(tensor.dtype)
        for (name, tensor), row in each
    }


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor) -> Tensor:
        return all_gather(own)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient[rank()] * world_size()
