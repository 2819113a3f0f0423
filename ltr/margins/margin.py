"""What all margin policies share."""

from torch import Tensor, nn

from ltr.batch import ScoredLists
from ltr.errors import InputError


class Margin(nn.Module):
    """A margin policy: from the lists of a batch to margins in units of score.

    Its margins at padding, and where there is no pair, are not used. Raises ``InputError`` for an
    option out of its bounds.
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

    def want_as(self, other: "Margin | None") -> None:
        """Want what another policy wants, whose margins this one returns; nothing for None."""
        self.wants_queries = other is not None and other.wants_queries
        self.wants_embeddings = other is not None and other.wants_embeddings
        self.wants_distances = other is not None and other.wants_distances
        self.encoder = None if other is None else other.encoder


def require(holds: bool, rule: str, **values: float | None) -> None:
    """Raise ``InputError`` with the rule and the values of the options unless the rule holds.

    The error names the first of the options.
    """
    if not holds:
        joined_values = ", ".join(map(str, values.values()))
        first_option = next(iter(values))
        raise InputError(f"{rule}, got {joined_values}", option=first_option)
