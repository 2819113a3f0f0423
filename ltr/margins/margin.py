"""What all margin policies share."""

from torch import Tensor, nn

from ltr.batch import ScoredLists
from ltr.errors import InputError


class Margin(nn.Module):
    """A margin policy: from the lists of a batch to margins in units of score.

    What it says of padding, and of pairs that are none, is not used. Raises ``InputError`` for an
    option out of its bounds.
    """

    wants_queries: bool = False  # whether it reads the rows' representations
    wants_embeddings: bool = False  # whether it reads those of the documents
    wants_distances: bool = False  # whether it cannot do without them
    encoder: str | None = None  # a frozen encoder whose representations it reads

    def forward(self, lists: ScoredLists) -> Tensor:
        """Margins ``[B, N]`` (per less relevant document) or ``[B, N, N]`` (per pair, more relevant
        document first).
        """
        raise NotImplementedError

    def want_as(self, other: "Margin | None") -> None:
        """Want what another policy wants; nothing for None."""
        wanted = Margin if other is None else other
        self.wants_queries = wanted.wants_queries
        self.wants_embeddings = wanted.wants_embeddings
        self.wants_distances = wanted.wants_distances
        self.encoder = wanted.encoder


def require(holds: bool, rule: str, **values: float | None) -> None:
    """Raise ``InputError`` with the rule and the values of the options unless the rule holds.

    The error names the first of the options.
    """
    if not holds:
        values_given = ", ".join(map(str, values.values()))
        raise InputError(f"{rule}, got {values_given}", option=next(iter(values)))
