"""What all margin policies share."""

import torch
from torch import Tensor, nn

from ltr.batch import ScoredLists
from ltr.errors import InputError


class Margin(nn.Module):
    """A margin policy: from the lists of a batch to margins in units of score.

    Its margins at padding, and where there is no pair, are not used. Raises ``InputError`` for an
    option out of its bounds.

    Example:
        >>> class Half(Margin):  # half a unit of score for every document
        ...     def forward(self, lists: ScoredLists) -> Tensor:
        ...         return torch.full_like(lists.labels, 0.5)
        >>> Half()(ScoredLists(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]), torch.ones(1, 2).bool()))
        tensor([[0.5000, 0.5000]])
    """

    wants_queries: bool = False  # whether it reads the rows' representations
    wants_embeddings: bool = False  # whether it reads the documents' representations
    wants_distances: bool = False  # whether it needs the distance of every document
    encoder: str | None = (
        None  # the frozen encoder whose representations it reads; None: the ranker
    )

    def forward(self, lists: ScoredLists) -> Tensor:
        """Margins ``[B, N]`` (per less relevant document) or ``[B, N, N]`` (per pair, more relevant
        document first).
        """
        raise NotImplementedError

    @property
    def current(self) -> "Margin | None":
        """The policy itself; of policies that follow one another, that of the stage."""
        return self

    def want_as(self, other: "Margin | None") -> None:
        """Copy the wants of the policy that this one wraps; None wants nothing."""
        self.wants_queries = other is not None and other.wants_queries
        self.wants_embeddings = other is not None and other.wants_embeddings
        self.wants_distances = other is not None and other.wants_distances
        self.encoder = None if other is None else other.encoder


def less_relevant(lists: ScoredLists) -> Tensor:
    """``[B, N]`` bool: the documents below the best grade of their list."""
    best_b = lists.labels.masked_fill(~lists.mask, -torch.inf).amax(dim=1, keepdim=True)
    return lists.mask & (lists.labels < best_b)


def require(holds: bool, rule: str, *, at_fault: str | None = None, **values: float | None) -> None:
    """Raise ``InputError`` with the rule and the values of the options unless the rule holds.

    The error names the option ``at_fault``; None: the first of the options.
    """
    if not holds:
        joined_values = ", ".join(map(str, values.values()))
        option = at_fault or next(iter(values))
        raise InputError(f"{rule}, got {joined_values}", option=option)
