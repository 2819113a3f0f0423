"""A margin that is trained with the ranker."""

import math

import torch
from torch import Tensor, nn

from ltr.batch import ScoredLists
from ltr.errors import InputError
from ltr.margins.margin import Margin, require
from ltr.similarity import euclidean


class Learnable(Margin):
    r"""A margin per pair, learnt with the ranker, from the distance of the two representations.

    .. math::
        m_{ij} = \mathrm{clamp}\bigl(k\, \lVert h_i - h_j \rVert,\;
        \text{floor},\; \text{cap}\bigr), \qquad k = k_0 \cdot 2^{\tanh \theta}

    The gradient flows into the representations and into k, and a loss falls when its margin falls.
    Left alone, k and the distances would shrink to 0 to please the loss, and nothing would be
    ranked. Hence two bounds: k stays within :math:`[k_0 / 2,\; 2 k_0]`, and a margin never falls
    below the floor, where its gradient is cut (as it is above the cap).

    It is ``[B, N, N]``, float32 or better, and its gradient takes as much memory: with in-batch
    lists rows × columns² numbers.

    Args:
        k: where the factor starts, above 0, in units of score per unit of distance.
        cap: upper bound of the margin, in units of score.
        floor: lower bound of the margin, above 0 and below ``cap``, in units of score.

    Raises:
        InputError: for a batch without embeddings.

    References:
        Nayyeri et al. (2019), Adaptive margin ranking loss for knowledge graph embeddings via a
        correntropy objective function, arXiv:1907.05336 (another margin that training adjusts; the
        form here is ours).

    Example:
        >>> docs = torch.tensor([[[0.0, 0.0], [3.0, 4.0]]])  # at a distance of 5
        >>> labels = torch.tensor([[1.0, 0.0]])
        >>> lists = ScoredLists(torch.zeros(1, 2), labels, labels >= 0, embeddings=docs)
        >>> Learnable(k=0.1)(lists)[0, 0, 1].item()
        0.5
    """

    wants_embeddings = True

    def __init__(self, k: float = 0.1, cap: float = 1.0, floor: float = 0.1) -> None:
        super().__init__()
        require(0 < k < math.inf, "Learnable: k must be finite and above 0", k=k)
        require(
            0 < floor < cap,
            "Learnable: floor and cap must be 0 < floor < cap",
            at_fault="floor" if cap > 0 else "cap",
            floor=floor,
            cap=cap,
        )
        self.k_start = k
        self.cap = cap
        self.floor = floor
        self.theta = nn.Parameter(torch.zeros(()))

    @property
    def k(self) -> Tensor:
        """The factor as it stands."""
        return self.k_start * torch.exp2(self.theta.tanh())

    def forward(self, lists: ScoredLists) -> Tensor:
        docs = lists.embeddings
        if docs is None:
            raise InputError(
                "Learnable needs the documents' embeddings [B, N, H], got none; take a model that "
                "gives them",
                option="margin",
            )
        # Where all rows share their documents, one matrix of distances serves all, and the padding
        # is left as it is: to mask it for each row would take a copy [R, C, H].
        if len(docs) == len(lists.mask):
            docs = docs.masked_fill(~lists.mask.unsqueeze(2), 0.0)
        distances = -euclidean(docs, docs)
        margin = (self.k * distances).clamp(self.floor, self.cap)
        return margin.expand(len(lists.mask), -1, -1)
