"""Lists for the tests of margins."""

import torch

from ltr.batch import ScoredLists


def lists_of(labels, mask=None, **others) -> ScoredLists:
    """Lists with scores of 0."""
    labels = torch.as_tensor(labels)
    mask = torch.ones_like(labels).bool() if mask is None else torch.as_tensor(mask)
    return ScoredLists(torch.zeros_like(labels), labels, mask, **others)


def one_list(h: torch.Tensor) -> ScoredLists:
    """Representations ``[B, N, H]`` without padding."""
    return lists_of(torch.zeros(h.shape[:2]), embeddings=h)


def negatives(given: ScoredLists) -> torch.Tensor:
    best = torch.where(given.mask, given.labels, -1.0).amax(dim=1, keepdim=True)
    return given.mask & (given.labels < best)
