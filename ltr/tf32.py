"""Products of float32 matrices: torch may round their factors to fewer digits where the user allowed
that, as TF32 and bfloat16 have.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

# Where torch keeps what the user allowed: ``torch.set_float32_matmul_precision`` writes there, too.
SETTINGS: tuple[Any, ...] = (
    torch.backends.cuda.matmul,
    torch.backends.mkldnn.matmul,  # type: ignore[attr-defined]
)


def rounds_factors(setting: Any) -> bool:
    """Whether products are computed of rounded factors, by a setting of ``torch.backends``."""
    return setting.fp32_precision in ("tf32", "bf16")


@contextmanager
def unrounded_products() -> Iterator[None]:
    """A context in which products of float32 matrices have all their digits, whatever the user
    allowed. The settings are of the process: its other threads have them too, as long as it lasts.
    """
    rounding = [
        (setting, setting.fp32_precision) for setting in SETTINGS if rounds_factors(setting)
    ]
    for setting, _ in rounding:
        setting.fp32_precision = "ieee"
    try:
        yield
    finally:
        for setting, precision in rounding:
            # First as if nothing was asked of products alone: then what is asked of the whole
            # backend holds, and follows later changes.
            setting.fp32_precision = "none"
            if setting.fp32_precision != precision:
                setting.fp32_precision = precision
