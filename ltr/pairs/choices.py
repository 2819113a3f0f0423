"""Which pairs of a list a loss takes: one class each, and one of your own.

``choose`` is the definition, a mask of all N² pairs. The names that losses take (``hardest``,
``semi-hard``, ``adjacent``) are these classes in forms that need less memory (``choose.py``), which
must equal them.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from ltr.errors import one_of


class PairChoice(ABC):
    """Some of the pairs (i, j) of a list with ``y_i > y_j``.

    For a choice of your own, subclass it and name the class: ``pairs: mine.Choice``, or
    ``{class_path: mine.Choice, init_args: {…}}``. It takes O(N²) memory.
    """

    @abstractmethod
    def choose(self, scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        """The chosen pairs ``[B, N, N]`` bool: True at [b, i, j] for the more relevant document i
        and the less relevant one j. What is True elsewhere does not count.

        Args:
            scores: ``[B, N]``, without gradient; finite at the padding.
            labels: ``[B, N]``.
            mask: ``[B, N]`` bool, False at the padding.
        """

    def pairs(self, scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        """``[B, N, N]`` bool: what :meth:`choose` answers, and False where there is no pair."""
        with torch.no_grad():
            return self.choose(scores, labels, mask) & all_pairs(labels, mask)


class Hardest(PairChoice):
    """The pair of each list with the least ``s_i - s_j``."""

    def choose(self, scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        gap_ij = scores.unsqueeze(2) - scores.unsqueeze(1)
        gap_ij = gap_ij.masked_fill(~all_pairs(labels, mask), torch.inf)
        hardest = gap_ij.flatten(1).argmin(dim=1, keepdim=True)
        chosen = torch.zeros_like(gap_ij, dtype=torch.bool).flatten(1)
        return chosen.scatter(1, hardest, True).view_as(gap_ij)


class SemiHard(PairChoice):
    """For each i the j with the highest ``s_j < s_i``, or with the lowest ``s_j`` where there is
    none.
    """

    def choose(self, scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        pair_ij = all_pairs(labels, mask)
        s_j = scores.unsqueeze(1).expand_as(pair_ij)
        below_ij = pair_ij & (s_j < scores.unsqueeze(2))
        highest = s_j.masked_fill(~below_ij, -torch.inf).argmax(dim=2, keepdim=True)
        lowest = s_j.masked_fill(~pair_ij, torch.inf).argmin(dim=2, keepdim=True)
        column = torch.where(below_ij.any(dim=2, keepdim=True), highest, lowest)
        return torch.zeros_like(pair_ij).scatter(2, column, True)


class Adjacent(PairChoice):
    """Neighbours in the order of the labels: no label of the list lies between theirs."""

    def choose(self, scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        lower_j = labels.unsqueeze(1).expand(-1, labels.shape[1], -1)
        lower_j = lower_j.masked_fill(~all_pairs(labels, mask), -torch.inf)
        # An i without a pair has -inf throughout, and so True: ``pairs`` leaves it out.
        return lower_j == lower_j.amax(dim=2, keepdim=True)


def all_pairs(labels: Tensor, mask: Tensor) -> Tensor:
    """``[B, N, N]`` bool: whether ``y_i > y_j``; False where i or j is padding."""
    return (labels.unsqueeze(2) > labels.unsqueeze(1)) & mask.unsqueeze(2) & mask.unsqueeze(1)


def check_pairs(pairs: "str | PairChoice", known: Sequence[str]) -> None:
    """Raise an InputError for what is neither a known name nor a choice."""
    if not isinstance(pairs, PairChoice):
        one_of(known, pairs=pairs)
