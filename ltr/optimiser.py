"""AdamW and the course of its learning rate."""

import math
from collections.abc import Callable, Iterable

from torch import nn
from torch.optim import AdamW

NUMBERS_LR = 1e-3  # the lowest peak rate of parameters that are one number


def adamw(
    parameters: Iterable[nn.Parameter], lr: float, weight_decay: float, fused: bool | None
) -> AdamW:
    """The optimiser of those that are trained: no decay on biases and norms, and at least 1e-3 for
    single numbers.
    """
    learnt = [p for p in parameters if p.requires_grad]
    groups = [
        {"params": [p for p in learnt if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in learnt if p.ndim == 1], "weight_decay": 0.0},
        {
            "params": [p for p in learnt if p.ndim == 0],
            "weight_decay": 0.0,
            "lr": max(lr, NUMBERS_LR),
        },
    ]
    return AdamW([group for group in groups if group["params"]], lr=lr, fused=fused)


def rate_factor(total: float, warmup: float, decay: bool) -> Callable[[int], float]:
    """Share of the peak learning rate by step."""
    # Warm-up ends before the last step, so that a run of a single step still learns.
    rising = min(math.ceil(warmup * total), total - 1) if math.isfinite(total) else 0

    # It starts from 0, as in transformers. Adam's first update is about as large as the rate,
    # whatever the gradient; so the first batch only serves to estimate its moments.
    def factor(step: int) -> float:
        if step < rising:
            return step / rising
        if not math.isfinite(total) or not decay:
            return 1.0
        return max(0.0, (total - step) / max(1, total - rising))

    return factor
