"""The pairwise family, to be read first: the cost of every pair (i, j) of a list with
``y_i > y_j``, at once.

Long lists take other forms, which must equal this one in value and gradient; ``pairs/__init__.py``
chooses. Letters of shapes: i the more relevant document of a pair, j the less relevant one.
"""

from collections.abc import Callable

from torch import Tensor

# cost(s_i, s_j, y_i, y_j, m_ij) of a pair: elementwise, over whatever shapes broadcast. Every cost
# takes all five, whether it needs them or not.
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
    """``[B]`` each: the summed cost of the pairs of each list, and their number.

    Args:
        scores: ``[B, N]``, finite at the padding.
        labels: ``[B, N]``, finite at the padding.
        mask: ``[B, N]`` bool; None means no padding.
        margin: a number, ``[B, N]`` (of document j) or ``[B, N, N]`` (of the pair).
        cost: of a pair.
        active: whether only pairs that cost something are counted.
        chosen: ``[B, N, N]`` bool, the pairs to be summed; None means all.
    """
    s_i = scores.unsqueeze(2)
    s_j = scores.unsqueeze(1)
    y_i = labels.unsqueeze(2)
    y_j = labels.unsqueeze(1)
    # 1 for a pair and 0 elsewhere, to multiply with: so a NaN score comes out.
    pair_ij = (y_i > y_j).to(scores.dtype)
    if mask is not None:
        pair_ij = pair_ij * mask.unsqueeze(2) * mask.unsqueeze(1)
    if chosen is not None:
        pair_ij = pair_ij * chosen
    m_ij = margin
    if isinstance(m_ij, Tensor):
        if m_ij.ndim == 2:
            m_ij = m_ij.unsqueeze(1)
        # Anything may stand where there is no pair, NaN included.
        m_ij = m_ij.masked_fill(pair_ij == 0, 0.0)
    cost_ij = cost(s_i, s_j, y_i, y_j, m_ij) * pair_ij
    counted_ij = cost_ij > 0 if active else pair_ij
    return cost_ij.sum(dim=(1, 2)), counted_ij.sum(dim=(1, 2))
