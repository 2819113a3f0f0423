"""Margins that are drawn."""

import math

import numpy as np
import torch
from torch import Tensor

from ltr.batch import ScoredLists
from ltr.margins.margin import Margin, less_relevant, require


class NormalSample(Margin):
    r"""Margins drawn anew for every batch, the larger ones for the easier negatives of a list.

    .. math::
        m_j = \mathrm{clamp}\bigl(z_{(r_j)},\; \text{low},\; \text{high}\bigr),
        \qquad z \sim \mathcal{N}(\mu, \sigma^2)

    The list's n less relevant documents get n draws :math:`z_{(1)} \le \ldots \le z_{(n)}`, and
    :math:`r_j` is the rank of document j from the hardest to the easiest: by distance in the index,
    or by score where a negative of the list has none. The margins of padding and of the most
    relevant documents are not used.

    The draws are a function of the seed and the batches counted so far, the same in every process.
    The count is in the checkpoint, so a resumed run draws the same margins. They have no gradient.

    Args:
        mean: in units of score.
        std: at least 0, in units of score.
        low: lower bound, at least 0, in units of score.
        high: upper bound, at least ``low``, in units of score.
        seed: of the draws, at least 0.

    Example:
        >>> labels = torch.tensor([[1.0, 0.0, 0.0]])
        >>> lists = ScoredLists(torch.tensor([[2.0, 1.0, -1.0]]), labels, labels >= 0)
        >>> hard, easy = NormalSample()(lists)[0, 1:]
        >>> bool(0 < hard < easy <= 0.5)
        True
    """

    batches: Tensor  # counted so far; in the checkpoint

    def __init__(
        self,
        mean: float = 0.3,
        std: float = 0.1,
        low: float = 1e-4,
        high: float = 0.5,
        seed: int = 0,
    ) -> None:
        super().__init__()
        require(
            0 <= low <= high < math.inf,
            "NormalSample: low and high must be finite, with 0 <= low <= high",
            at_fault="low" if 0 <= high < math.inf else "high",
            low=low,
            high=high,
        )
        require(math.isfinite(mean), "NormalSample: mean must be finite", mean=mean)
        require(0 <= std < math.inf, "NormalSample: std must be finite and at least 0", std=std)
        require(seed >= 0, "NormalSample: seed must be at least 0", seed=seed)
        self.mean = mean
        self.std = std
        self.low = low
        self.high = high
        self.seed = seed
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))

    def forward(self, lists: ScoredLists) -> Tensor:
        is_lower = less_relevant(lists)
        ease = _ease_of_docs(lists, is_lower)
        draws = self._draw(lists)
        # The first n draws of a row are taken, and its n less relevant documents; everything else
        # becomes +inf and sorts last in both, so the r-th hardest of these documents gets the r-th
        # smallest of n draws.
        n_lower = is_lower.sum(dim=1, keepdim=True)
        column = torch.arange(is_lower.shape[1], device=is_lower.device)
        sorted_draws = draws.masked_fill(column >= n_lower, torch.inf).sort(dim=1).values
        from_hardest = ease.masked_fill(~is_lower, torch.inf).argsort(dim=1)  # columns by rank
        rank = from_hardest.argsort(dim=1)  # ranks by column: the inverse of a permutation
        return sorted_draws.gather(1, rank).clamp(self.low, self.high)

    def _draw(self, lists: ScoredLists) -> Tensor:
        """``[B, N]`` draws for this batch, which is counted here."""
        generator = np.random.default_rng([self.seed, int(self.batches), 0])
        self.batches += 1
        draws = generator.normal(self.mean, self.std, lists.labels.shape)
        return torch.from_numpy(draws).to(lists.labels)


def _ease_of_docs(lists: ScoredLists, is_lower: Tensor) -> Tensor:
    """``[B, N]``: the larger, the easier the document. The distances if every less relevant document
    of the list has one, else minus the scores.
    """
    ease = -lists.scores.detach()
    if lists.distances is None:
        return ease
    lacks_one_b1 = (is_lower & lists.distances.isnan()).any(dim=1, keepdim=True)
    return torch.where(lacks_one_b1, ease, lists.distances)
