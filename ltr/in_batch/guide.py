"""A second model, the guide, tells likely false negatives: in-batch negatives that are in fact
relevant.
"""

import torch
from torch import Tensor
from torch.nn import functional as F


def mask_likely_relevant(
    mask: Tensor, labels: Tensor, guide_scores: Tensor, margin: float = 0.0
) -> Tensor:
    r"""Leave out documents of label 0 (judged or not) that a second model, the guide, scores above
    a relevant one.

    .. math::
        M'_{rc} = M_{rc} \wedge \neg\bigl(y_{rc} = 0 \wedge g_{rc} > \min_{p \in P_r} g_{rp} + m\bigr),
        \qquad P_r = \{p : y_{rp} > 0 \wedge M_{rp}\}

    The published rule has one relevant document a row. With several, the lowest of their scores is
    the threshold, so the rule holds for every pair of a relevant document and a negative that is
    kept.

    Args:
        mask, labels: ``[R, C]``, see :class:`ltr.batch.ScoredLists`.
        guide_scores: ``[R, C]``, the guide's scores of the same rows and columns.
        margin: a negative is left out if it scores this much above the relevant document, in units
            of ``guide_scores``. A value below 0 also leaves out negatives that come close.

    Returns:
        ``[R, C]`` bool. A row without a relevant document does not change, nor does a column whose
        label is not 0.

    References:
        Solatorio (2024), GISTEmbed: guided in-sample selection of training negatives for text
        embedding fine-tuning.

    Example:
        >>> import torch
        >>> mask, labels = torch.ones(1, 3, dtype=torch.bool), torch.tensor([[1.0, 0.0, 0.0]])
        >>> mask_likely_relevant(mask, labels, torch.tensor([[0.7, 0.8, 0.6]]))
        tensor([[ True, False,  True]])
    """
    relevant = mask & (labels > 0)
    scores_of_relevant = guide_scores.masked_fill(~relevant, torch.inf)
    # One more column of +inf, as amin of no columns is an error.
    lowest = F.pad(scores_of_relevant, (0, 1), value=torch.inf).amin(dim=1, keepdim=True)
    likely_relevant = (labels == 0) & (guide_scores > lowest + margin)
    return mask & ~likely_relevant
