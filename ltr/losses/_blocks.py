"""Long lists and many of them, a part at a time: O(part) memory beyond the inputs instead of O(B·N²).

The gradient of a part is taken right after its value, so that one part is in memory at a time, and forward and backward are one
pass. What is kept is one number per document: its factor in the chain rule. Short lists are one part: the plain dense form under
autograd. Letters of shapes: b row (one query), p the documents that blocks are cut from, n all documents of the list.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

# Elements of one part: pairs of a block, documents of some rows. On a CPU its temporaries stay in the cache; a GPU wants few,
# large kernels. At most 2^24, so that what is counted in float32 within a part is exact.
BLOCK = {"cpu": 1 << 16, "cuda": 1 << 24}

# Pairs of a batch up to which it is quicker to take all N² of a list than to pick out the more relevant documents first.
SHORT = 1 << 15
# More relevant documents per grade from which on sorting beats the dense form [B, P, N] of a hinge.
DENSE_UPPERS = 24

Block = Callable[[slice, Sequence[Tensor], Sequence[Tensor]], tuple[Tensor, Tensor]]
Rows = Callable[..., tuple[Tensor, ...]]


def is_short(scores: Tensor) -> bool:
    """Whether to take all N² pairs of each list."""
    return scores.numel() * scores.shape[1] <= SHORT


def sorting_pays(n_uppers: int, levels: int) -> bool:
    """Whether to sort: the dense form costs ``n_uppers`` passes over a list, sorting some :data:`DENSE_UPPERS` per grade."""
    return n_uppers > DENSE_UPPERS * levels


def first_derivative_only(backward: Callable) -> Callable:
    """Refuse ``create_graph=True`` instead of taking the first derivative for a constant: it was computed with the value."""

    def refusing(ctx, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # in a backward pass it is so for create_graph only
            raise RuntimeError("a loss of long lists, and ListMLE, has no second derivative: call backward without create_graph")
        return backward(ctx, *gradients)

    return refusing


def spans(n: int, size: int, device: torch.device) -> list[slice]:
    """Cut ``range(n)`` so that a part of elements of this size stays within one block (or it is one element)."""
    step = max(1, BLOCK.get(device.type, BLOCK["cuda"]) // max(1, size))
    return [slice(start, min(start + step, n)) for start in range(0, n, step)]


def by_rows(rows: Rows, *tensors: Tensor) -> tuple[Tensor, ...]:
    """What ``rows`` answers for ``[B, …]`` tensors, some rows at a time.

    Args:
        rows: answers ``[B]`` tensors; row b of each may depend on row b of the inputs only, and the first has a gradient.
        tensors: ``[B, …]`` each; the first is ``[B, N]``.
    """
    cuts = spans(len(tensors[0]), tensors[0].shape[1], tensors[0].device)
    if len(cuts) <= 1:
        return rows(*tensors)
    if not torch.is_grad_enabled():
        tensors = tuple(t.detach() for t in tensors)
    return _ByRows.apply(rows, cuts, *tensors)


def sum_in_blocks(block: Block, docs: Sequence[Tensor], lists: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Sum what ``block`` answers for each span of the documents.

    Args:
        block: ``block(span, docs[:, span], lists) -> (value_b, count_b)``; row b of both may depend on row b of the inputs only.
        docs: ``[B, P]`` or ``[B, P, N]`` each: cut along P.
        lists: ``[B, N]`` each (or anything else that begins with B): whole in every block.

    Returns:
        ``[B]`` the summed values, with their gradient for docs and lists, and ``[B]`` the summed counts, without.
    """
    n_lists, n_docs = docs[0].shape[:2]
    cuts = spans(n_docs, lists[0].numel(), docs[0].device)
    if len(cuts) <= 1:
        value_b, count_b = block(slice(0, n_docs), docs, lists)
        return value_b, count_b.detach()
    if not torch.is_grad_enabled():
        docs, lists = [t.detach() for t in docs], [t.detach() for t in lists]
    return _InBlocks.apply(block, cuts, len(docs), *docs, *lists)


def _evaluate(compute: Rows, tensors: Sequence[Tensor], wanted: Sequence[bool]) -> tuple[tuple[Tensor, ...], list[Tensor | None]]:
    """What ``compute`` answers, and the gradient of its first answer, summed, for each of the tensors that want one."""
    leaves = [t.detach().requires_grad_(w) for t, w in zip(tensors, wanted, strict=True)]
    if not any(wanted):
        return compute(*leaves), [None] * len(leaves)
    with torch.enable_grad():
        answers = compute(*leaves)
        some = [leaf for leaf in leaves if leaf.requires_grad]
        found = iter(torch.autograd.grad(answers[0].sum(), some, materialize_grads=True))
    return tuple(a.detach() for a in answers), [next(found) if w else None for w in wanted]


class _ByRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows: Rows, cuts: list[slice], *tensors: Tensor) -> tuple[Tensor, ...]:
        wanted = ctx.needs_input_grad[2:]
        gradients = [torch.empty_like(t) if w else None for t, w in zip(tensors, wanted, strict=True)]
        answers = []
        for cut in cuts:
            answer, found = _evaluate(rows, [t[cut] for t in tensors], wanted)
            answers.append(answer)
            for whole, gradient in zip(gradients, found, strict=True):
                if whole is not None:
                    whole[cut] = gradient
        ctx.save_for_backward(*(g for g in gradients if g is not None))
        joined = tuple(map(torch.cat, zip(*answers, strict=True)))
        ctx.mark_non_differentiable(*joined[1:])
        return joined

    @staticmethod
    @first_derivative_only
    def backward(ctx, gradient_b: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *_scaled(ctx.saved_tensors, ctx.needs_input_grad[2:], gradient_b)


class _InBlocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, block: Block, cuts: list[slice], n_cut: int, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        wanted = ctx.needs_input_grad[3:]
        gradients = [torch.zeros_like(t) if w else None for t, w in zip(tensors, wanted, strict=True)]
        total_b = count_b = 0
        for cut in cuts:
            part = [t[:, cut] if i < n_cut else t for i, t in enumerate(tensors)]
            (value_b, more_b), found = _evaluate(partial(_call_block, block, cut, n_cut), part, wanted)
            total_b, count_b = total_b + value_b, count_b + more_b
            for i, gradient in enumerate(found):
                if gradient is not None:
                    whole = gradients[i][:, cut] if i < n_cut else gradients[i]
                    whole += gradient
        ctx.save_for_backward(*(g for g in gradients if g is not None))
        ctx.mark_non_differentiable(count_b)
        return total_b, count_b

    @staticmethod
    @first_derivative_only
    def backward(ctx, gradient_b: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, None, *_scaled(ctx.saved_tensors, ctx.needs_input_grad[3:], gradient_b)


def _call_block(block: Block, cut: slice, n_cut: int, *tensors: Tensor) -> tuple[Tensor, Tensor]:
    return block(cut, tensors[:n_cut], tensors[n_cut:])


def _scaled(saved: Sequence[Tensor], wanted: Sequence[bool], gradient_b: Tensor) -> list[Tensor | None]:
    """Each row's gradient times that of its value."""
    found = iter(saved)
    gradients = [next(found) if w else None for w in wanted]
    return [None if g is None else g * gradient_b.view(-1, *[1] * (g.ndim - 1)) for g in gradients]
