"""A margin from the distance of a negative to its query."""

import math

from torch import Tensor

from ltr.batch import ScoredLists
from ltr.errors import InputError
from ltr.margins.margin import Margin, less_relevant, require


class FromDistance(Margin):
    r"""A margin per negative, from its distance to the query: :math:`m_j = \min(k\, d_j^{\,p},
    \text{cap})`.

    A far (easy) negative is asked to stay further away. The distance of a mined negative is that in
    its index, as of the last mining. Any other document, such as those of other queries, has the
    distance of the two embeddings as they are now: Euclidean, of embeddings of length 1 under
    cosine, the unit of mined negatives. The margin carries no gradient. A ranker that is no dual
    encoder needs mined negatives.

    Args:
        k: factor above 0; in units of score for a distance of 1.
        power: above 0: 1 for ``k·d``, 0.5 for ``k·√d``, 2 for ``k·d²``.
        cap: upper bound above 0, in units of score; None for no bound.

    Raises:
        InputError: for a batch without distances, or with a negative that has none.

    Example:
        >>> import torch
        >>> labels, distances = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[0.0, 1.0, 4.0]])
        >>> lists = ScoredLists(torch.zeros(1, 3), labels, labels >= 0, distances)
        >>> FromDistance(k=0.5, power=0.5)(lists)  # 0.5 * sqrt(distance)
        tensor([[0.0000, 0.5000, 1.0000]])
    """

    wants_distances = True

    def __init__(self, k: float = 1.0, power: float = 1.0, cap: float | None = None) -> None:
        super().__init__()
        rule = "FromDistance: k and power must be finite and above 0"
        require(0 < k < math.inf, rule, k=k, power=power)
        require(0 < power < math.inf, rule, at_fault="power", k=k, power=power)
        require(cap is None or cap > 0, "FromDistance: cap must be above 0, or none", cap=cap)
        self.k = k
        self.power = power
        self.cap = cap

    def forward(self, lists: ScoredLists) -> Tensor:
        distances = lists.distances
        if distances is None:
            raise InputError(
                "FromDistance needs a batch with distances, got none; set negatives of the data to "
                "a folder of mined negatives, or take another margin",
                option="margin",
            )
        # A dual encoder's documents all have a distance, see `ScoredLists`.
        is_dual_encoder = lists.queries is not None
        if not is_dual_encoder and distances[less_relevant(lists)].isnan().any():
            raise InputError(
                "FromDistance needs a batch with distances, got negatives without one; set "
                "negatives of the data to a folder of mined negatives, or take another margin",
                option="margin",
            )
        return self.margin_at(distances.detach())

    def margin_at(self, distances: Tensor) -> Tensor:
        """The margins of negatives at these distances, of any shape."""
        margin = self.k * distances.clamp(min=0) ** self.power
        if self.cap is None:
            return margin
        return margin.clamp(max=self.cap)
