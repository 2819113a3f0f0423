"""Long lists and many of them, a part at a time: O(part) memory beyond the inputs instead of
O(B·N²).

The gradient of a part is computed right after its value, so only one part is in memory, and forward
and backward are one pass. What is kept is one number per document: its factor in the chain rule. A
single part is computed under plain autograd.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

# Elements of one part. On a CPU its temporaries stay in the cache; a GPU wants few, large kernels.
BLOCK = {"cpu": 1 << 16, "cuda": 1 << 24}

Rows = Callable[..., tuple[Tensor, Tensor]]
Block = Callable[[slice, Sequence[Tensor], Sequence[Tensor]], tuple[Tensor, Tensor]]


def spans(n: int, size: int, device: torch.device) -> list[slice]:
    """Cut ``range(n)`` so that a part of elements of this size stays within one block (or is one
    element).
    """
    step = max(1, BLOCK.get(device.type, BLOCK["cuda"]) // max(1, size))
    return [slice(start, min(start + step, n)) for start in range(0, n, step)]


def by_rows(rows: Rows, *tensors: Tensor) -> tuple[Tensor, Tensor]:
    """Call ``rows`` on some rows of the inputs at a time.

    All inputs begin with B, and the first is ``[B, N]``. ``rows`` returns two tensors ``[B]``, of
    which only the first has a gradient; row b of both may depend on row b of the inputs only.
    """
    cuts = spans(len(tensors[0]), tensors[0].shape[1], tensors[0].device)
    if len(cuts) <= 1:
        return rows(*tensors)
    return _in_parts(
        lambda _, *part: rows(*part),
        cuts,
        [[cut] * len(tensors) for cut in cuts],
        torch.cat,
        tensors,
    )


def sum_in_blocks(
    block: Block, docs: Sequence[Tensor], lists: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Sum what ``block`` returns for each span of the documents.

    Args:
        block: ``block(span, docs[:, span], lists) -> (value_b, count_b)``; only the value has a
            gradient, and row b of both may depend on row b of the inputs only.
        docs: ``[B, P]`` or ``[B, P, N]`` each: cut along P.
        lists: ``[B, N]`` each (or anything else that begins with B): whole in every block.
    """
    n_docs = docs[0].shape[1]
    n_cut = len(docs)
    cuts = spans(n_docs, lists[0].numel(), docs[0].device)
    if len(cuts) <= 1:
        value_b, count_b = block(slice(0, n_docs), docs, lists)
        return value_b, count_b.detach()
    places = [[(slice(None), cut)] * n_cut + [...] * len(lists) for cut in cuts]
    return _in_parts(
        lambda cut, *part: block(cut, part[:n_cut], part[n_cut:]),
        cuts,
        places,
        sum,
        [*docs, *lists],
    )


def _in_parts(
    compute: Callable, cuts: list, places: list, join: Callable, tensors: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    if not torch.is_grad_enabled():
        tensors = [t.detach() for t in tensors]
    return _InParts.apply(compute, cuts, places, join, *tensors)


class _InParts(torch.autograd.Function):
    """``compute(cut, *part)`` for each part, where ``places`` index the tensors, and ``join`` of
    what they return.
    """

    @staticmethod
    def forward(
        ctx: Any, compute: Callable, cuts: list, places: list, join: Callable, *tensors: Tensor
    ) -> tuple[Tensor, Tensor]:
        wanted = ctx.needs_input_grad[4:]
        gradients = [
            torch.zeros_like(t) if w else None for t, w in zip(tensors, wanted, strict=True)
        ]
        values = []
        counts = []
        for cut, place in zip(cuts, places, strict=True):
            part = [
                t[at].detach().requires_grad_(w)
                for t, at, w in zip(tensors, place, wanted, strict=True)
            ]
            with torch.set_grad_enabled(any(wanted)):
                value_b, count_b = compute(cut, *part)
            if any(wanted):
                leaves = [t for t in part if t.requires_grad]
                ones = torch.ones_like(value_b)
                found = iter(torch.autograd.grad(value_b, leaves, ones, materialize_grads=True))
                for gradient, at in zip(gradients, place, strict=True):
                    if gradient is not None:
                        gradient[at] += next(found)
            values.append(value_b.detach())
            counts.append(count_b.detach())
        ctx.save_for_backward(*gradients)
        count_b = join(counts)
        ctx.mark_non_differentiable(count_b)
        return join(values), count_b

    @staticmethod
    def backward(ctx: Any, gradient_b: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        scaled = [
            None if g is None else g * gradient_b.view(-1, *[1] * (g.ndim - 1))
            for g in ctx.saved_tensors
        ]
        return None, None, None, None, *scaled


def refuse_second_derivative() -> None:
    """Refuse ``create_graph=True`` where the gradient was computed with the value: a second
    derivative would silently be 0.
    """
    if torch.is_grad_enabled():  # in a backward pass only under create_graph
        raise RuntimeError(
            "a loss of long lists, and ListMLE, has no second derivative: call backward without create_graph"
        )
