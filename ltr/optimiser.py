"""AdamW and the course of its learning rate."""

import math
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn
from torch.optim import AdamW, Optimizer

WAYS = ("fused", "foreach", "capturable")  # torch's options that say how a step is computed
MIN_LR_OF_NUMBERS = 1e-3  # the lowest peak rate of parameters that are one number


def adamw(
    parameters: Iterable[nn.Parameter], lr: float, weight_decay: float, fused: bool | None
) -> AdamW:
    """AdamW over the parameters that are trained. Biases and norms don't decay; parameters that are
    one number have a peak rate of at least 1e-3.

    A state that is loaded may come from another type of device: how steps are computed stays as it
    is here.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    matrices = [parameter for parameter in trained if parameter.ndim > 1]
    vectors = [parameter for parameter in trained if parameter.ndim == 1]  # biases and norms
    numbers = [parameter for parameter in trained if parameter.ndim == 0]
    lr_of_numbers = max(lr, MIN_LR_OF_NUMBERS)
    groups = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
        {"params": numbers, "weight_decay": 0.0, "lr": lr_of_numbers},
    ]
    optimizer = AdamW([group for group in groups if group["params"]], lr=lr, fused=fused)
    optimizer.register_load_state_dict_pre_hook(_with_own_ways)
    return optimizer


def _with_own_ways(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any] | None:
    """The state with the optimiser's own choice of how a step is computed; None: as it is."""
    saved_groups = state["param_groups"]
    if len(saved_groups) != len(optimizer.param_groups):
        return None  # torch refuses it
    groups = []
    for own, saved in zip(optimizer.param_groups, saved_groups, strict=True):
        groups.append(saved | {way: own[way] for way in WAYS})
    return state | {"param_groups": groups}


def rate_factor(total: float, warmup: float, decay: bool) -> Callable[[int], float]:
    """Share of the peak learning rate by step.

    Args:
        total: steps of the whole run; infinite where it has no last step.
        warmup: share of all steps in which the rate rises.
        decay: whether the rate falls to 0 towards the end.
    """
    has_end = math.isfinite(total)
    n_rising: float = 0
    if has_end:
        # Warm-up ends before the last step, so that a run of a single step still learns.
        n_rising = min(math.ceil(warmup * total), total - 1)

    # With a warm-up the rate at step 0 is 0, as in transformers: the first batch changes no weight, and only
    # starts the moments of Adam. At any other rate Adam's first update would be about as large as
    # the rate, whatever the gradient.
    def factor(step: int) -> float:
        if step < n_rising:
            return step / n_rising
        if not has_end or not decay:
            return 1.0
        return max(0.0, (total - step) / max(1, total - n_rising))

    return factor
