"""What a training step computed, for callbacks that watch a run."""

from typing import NamedTuple

from torch import Tensor


class LastStep(NamedTuple):
    """R rows (queries or anchors) of C columns, as the loss saw them. All detached, and kept only until the next step.

    Attributes:
        scores: ``[R, C]``.
        labels: ``[R, C]`` float.
        mask: ``[R, C]`` bool, True for a document, False for padding.
        margin: as the policy gave it, in units of score: a number, or broadcastable to ``[R, C]`` (per less relevant document) or
            ``[R, C, C]`` (per pair); None where it is left to the loss.
        embeddings: ``[S, H]`` float, representations of the batch's texts, or None.
        loss: a scalar.
    """

    scores: Tensor
    labels: Tensor
    mask: Tensor
    margin: Tensor | None
    embeddings: Tensor | None
    loss: Tensor
