"""What a verification finds: the layer where a server departs from the proof."""

from typing import Literal, NamedTuple

# In the order in which a text passes them.
Layer = Literal[
    "template",
    "tokens",
    "special tokens",
    "truncation",
    "place",
    "dtype",
    "hidden state",
    "head",
    "activation",
    "order",
    "calibration",  # behind the scores
]


class Finding(NamedTuple):
    """A departure.

    Attributes:
        layer: the first one that departs.
        fault: what is done there, in words.
        evidence: how it shows.
    """

    layer: Layer
    fault: str
    evidence: str
