"""Sums over the pairs of a list in blocks of its documents: O(N · block) memory instead of O(N²).

Short lists are one block, which is the plain dense form under autograd. Letters of shapes: b row (one query), p the documents
that the blocks are cut from, n all documents of the list.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# Elements of one block. On a CPU its temporaries stay in the cache; a GPU wants few, large kernels.
BLOCK = {"cpu": 1 << 17, "cuda": 1 << 25}

Block = Callable[[slice, Sequence[Tensor], Sequence[Tensor]], tuple[Tensor, Tensor]]


def spans(n_docs: int, n_lists: int, width: int, device: torch.device) -> list[slice]:
    """Cut ``n_docs`` documents so that ``[n_lists, documents, width]`` stays within one block (or it is one document)."""
    step = max(1, BLOCK.get(device.type, BLOCK["cuda"]) // max(1, n_lists * width))
    return [slice(start, min(start + step, n_docs)) for start in range(0, n_docs, step)]


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
    cuts = spans(n_docs, n_lists, lists[0].shape[1], docs[0].device)
    if len(cuts) <= 1:
        value_b, count_b = block(slice(0, n_docs), docs, lists)
        return value_b, count_b.detach()
    return _InBlocks.apply(block, cuts, len(docs), *docs, *lists)


class _InBlocks(torch.autograd.Function):
    """The gradient of a block is taken right after its value, so that one block is in memory at a time, and forward and backward
    are one pass over the pairs. What is kept is one number per document: its factor in the chain rule.
    """

    @staticmethod
    def forward(ctx, block: Block, cuts: list[slice], n_cut: int, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        wanted = ctx.needs_input_grad[3:]
        gradients = [torch.zeros_like(t) if w else None for t, w in zip(tensors, wanted, strict=True)]
        total_b = count_b = 0
        for span in cuts:
            parts = [t[:, span] if i < n_cut else t for i, t in enumerate(tensors)]
            leaves = [part.detach().requires_grad_(w) for part, w in zip(parts, wanted, strict=True)]
            with torch.set_grad_enabled(any(wanted)):
                value_b, more_b = block(span, leaves[:n_cut], leaves[n_cut:])
            if any(wanted):
                some = [leaf for leaf, w in zip(leaves, wanted, strict=True) if w]
                found = torch.autograd.grad(value_b, some, torch.ones_like(value_b))
                for i, gradient in zip([i for i, w in enumerate(wanted) if w], found, strict=True):
                    whole = gradients[i][:, span] if i < n_cut else gradients[i]
                    whole += gradient
            total_b = total_b + value_b.detach()
            count_b = count_b + more_b.detach()
        ctx.save_for_backward(*(g for g in gradients if g is not None))
        ctx.mark_non_differentiable(count_b)
        return total_b, count_b

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient_b: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        saved = iter(ctx.saved_tensors)
        found = [next(saved) if wanted else None for wanted in ctx.needs_input_grad[3:]]
        scaled = [None if g is None else g * gradient_b.view(-1, *[1] * (g.ndim - 1)) for g in found]
        return None, None, None, *scaled
