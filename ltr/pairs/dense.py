"""The pairwise family, to be read first: the cost of every pair (i, j) of a list with
``y_i > y_j``, at once.

Long lists take other forms, which must equal this one in value and gradient; ``pairs/__init__.py``
chooses. Letters of shapes: i the more relevant document of a pair, j the less relevant one.
"""

from collections.abc import Callable

from torch import Tensor

# cost(s_i, s_j, y_i, y_j, m_ij) of a pair: elementwise, over whatever shapes broadcast.
Cost = Callable[[Tensor, Tensor, Tensor, Tensor, float | Tensor], Tensor]


def dense_sums(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    margin: float | Tensor,
    cost: Cost,
    active: bool,
    chosen: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """``[B]`` each: the summed cost of the pairs of each list, and how many there are (that cost
    something, if ``active``).

    Scores and labels are ``[B, N]``, finite at the padding; a margin ``[B, N]`` is that of document
    j, ``[B, N, N]`` of the pair. ``chosen`` ``[B, N, N]`` bool: some of the pairs only.
    """
    s_i = scores.unsqueeze(2)
    s_j = scores.unsqueeze(1)
    y_i = labels.unsqueeze(2)
    y_j = labels.unsqueeze(1)
    pair_ij = (y_i > y_j).to(scores.dtype)  # numbers, to multiply with: a NaN score comes out
    if mask is not None:
        pair_ij = pair_ij * mask.unsqueeze(2) * mask.unsqueeze(1)
    if chosen is not None:
        pair_ij = pair_ij * chosen
    if isinstance(margin, Tensor):  # anything may stand where there is no pair, NaN included
        margin = (margin if margin.ndim == 3 else margin.unsqueeze(1)).masked_fill(
            pair_ij == 0, 0.0
        )
    cost_ij = cost(s_i, s_j, y_i, y_j, margin) * pair_ij
    counted_ij = cost_ij > 0 if active else pair_ij
    return cost_ij.sum(dim=(1, 2)), counted_ij.sum(dim=(1, 2))
