"""Long lists and many of them, a part at a time: O(part) memory beyond the inputs instead of
O(B·N²).

The gradient of a part is computed right after its value, in the forward pass, so only one part is
in memory at a time. What is kept for the backward pass is that gradient: one number per document,
to be multiplied with what comes from above. A single part is computed under plain autograd.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ltr.spans import spans

# Numbers in one part. On a CPU its temporaries stay in the cache; a GPU wants few, large kernels.
BLOCK = {"cpu": 1 << 16, "cuda": 1 << 24}

# What computes a part: of some rows (see `by_rows`), and of a span of documents (see
# `sum_in_blocks`).
RowsFunction = Callable[..., tuple[Tensor, Tensor]]
BlockFunction = Callable[[slice, Sequence[Tensor], Sequence[Tensor]], tuple[Tensor, Tensor]]


def block_spans(n: int, size: int, device: torch.device) -> list[slice]:
    """The spans that n elements of ``size`` numbers each are cut into: as many elements in one as
    fit into a block of the device, at least one.
    """
    step = max(1, BLOCK.get(device.type, BLOCK["cuda"]) // max(1, size))
    return list(spans(n, step))


def by_rows(compute: RowsFunction, *tensors: Tensor) -> tuple[Tensor, Tensor]:
    """``compute(*tensors)``, for some rows at a time.

    All tensors begin with B, and the first is ``[B, N]``. ``compute`` returns two tensors ``[B]``,
    of which only the first has a gradient; row b of both may depend on row b of the tensors only.
    """
    row_spans = block_spans(len(tensors[0]), tensors[0].shape[1], tensors[0].device)
    if len(row_spans) <= 1:
        return compute(*tensors)

    def compute_part(span: slice, *part: Tensor) -> tuple[Tensor, Tensor]:
        return compute(*part)

    # Every tensor is cut along its rows.
    places = [[span] * len(tensors) for span in row_spans]
    return _in_parts(compute_part, row_spans, places, torch.cat, tensors)


def sum_in_blocks(
    block: BlockFunction, cut: Sequence[Tensor], whole: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """The sum of what ``block`` returns for each span of the documents.

    Args:
        block: ``block(span, cut[:, span], whole) -> (value_b, count_b)``; only the value has a
            gradient, and row b of both may depend on row b of the inputs only.
        cut: ``[B, P]`` or ``[B, P, N]`` each: cut along P.
        whole: ``[B, N]`` each (or anything else that begins with B): whole in every block.
    """
    n_cut = cut[0].shape[1]
    # Each document along the cut costs temporaries [B, N].
    doc_spans = block_spans(n_cut, whole[0].numel(), cut[0].device)
    if len(doc_spans) <= 1:
        value_b, count_b = block(slice(0, n_cut), cut, whole)
        return value_b, count_b.detach()

    def compute_part(span: slice, *part: Tensor) -> tuple[Tensor, Tensor]:
        return block(span, part[: len(cut)], part[len(cut) :])

    everything = slice(None)
    places = [[(everything, span)] * len(cut) + [everything] * len(whole) for span in doc_spans]
    return _in_parts(compute_part, doc_spans, places, sum, [*cut, *whole])


def _in_parts(
    compute: Callable, part_spans: list, places: list, join: Callable, tensors: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """``join`` of the values, and of the counts, that ``compute`` returns for the parts.

    Args:
        compute: ``compute(span, *part) -> (value_b, count_b)``.
        part_spans: the span of each part, the first argument of ``compute``.
        places: of each part, the index into each of the tensors.
        join: of the results of all parts, in their order.
        tensors: to be indexed by the places: a part has one piece of each.
    """
    if not torch.is_grad_enabled():  # then no part needs its gradient computed
        tensors = [t.detach() for t in tensors]
    return _InParts.apply(compute, part_spans, places, join, *tensors)


class _InParts(torch.autograd.Function):
    """See :func:`_in_parts`."""

    @staticmethod
    def forward(
        ctx: Any,
        compute: Callable,
        part_spans: list,
        places: list,
        join: Callable,
        *tensors: Tensor,
    ) -> tuple[Tensor, Tensor]:
        needs_gradient = ctx.needs_input_grad[4:]  # of the tensors, which follow four arguments
        gradients = [
            torch.zeros_like(tensor) if needed else None
            for tensor, needed in zip(tensors, needs_gradient, strict=True)
        ]
        values = []
        counts = []
        for span, places_of_part in zip(part_spans, places, strict=True):
            part = [tensor[at].detach() for tensor, at in zip(tensors, places_of_part, strict=True)]
            for piece, needed in zip(part, needs_gradient, strict=True):
                piece.requires_grad_(needed)
            # A forward of autograd runs without gradients: here the part's own graph is wanted.
            with torch.set_grad_enabled(any(needs_gradient)):
                value_b, count_b = compute(span, *part)
            if any(needs_gradient):
                leaves = [piece for piece in part if piece.requires_grad]
                ones = torch.ones_like(value_b)
                part_gradients = iter(
                    torch.autograd.grad(value_b, leaves, ones, materialize_grads=True)
                )
                for gradient, at in zip(gradients, places_of_part, strict=True):
                    if gradient is not None:
                        gradient[at] += next(part_gradients)
            values.append(value_b.detach())
            counts.append(count_b.detach())
        ctx.save_for_backward(*gradients)
        count_b = join(counts)
        ctx.mark_non_differentiable(count_b)
        return join(values), count_b

    @staticmethod
    def backward(ctx: Any, gradient_b: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        scaled: list[Tensor | None] = []
        for gradient in ctx.saved_tensors:
            if gradient is None:
                scaled.append(None)
                continue
            # Row b of all depends on row b only, so one factor a row is the chain rule.
            factor = gradient_b.view(-1, *[1] * (gradient.ndim - 1))
            scaled.append(gradient * factor)
        return None, None, None, None, *scaled


def refuse_second_derivative() -> None:
    """Refuse ``create_graph=True`` where the gradient was computed with the value: a second
    derivative would silently be 0.
    """
    if torch.is_grad_enabled():  # in a backward pass only under create_graph
        raise RuntimeError(
            "a loss of long lists, and ListMLE, has no second derivative: call backward without create_graph"
        )
