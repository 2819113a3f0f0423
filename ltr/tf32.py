"""Products of float32 matrices: torch may round their factors to fewer digits where the user allowed
that, as TF32 and bfloat16 have.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
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
    allowed. The settings are of the process: its other threads have them too, as long as one of
    them is inside. What the user sets meanwhile stays, but that who comes in later has all digits.
    """
    _unrounded.enter()
    try:
        yield
    finally:
        _unrounded.leave()


class _Unrounded:
    """What was allowed before the first thread came in; the last one out allows it again."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._n_inside = 0
        self._before: dict[int, str] = {}  # by the place of a setting
        self._asked: str | None = None  # of all torch, once the settings were set

    def enter(self) -> None:
        with self._lock:
            self._n_inside += 1
            for place, setting in enumerate(SETTINGS):
                if rounds_factors(setting):
                    self._before[place] = setting.fp32_precision
                    setting.fp32_precision = "ieee"
                    self._asked = _asked_of_torch()

    def leave(self) -> None:
        with self._lock:
            self._n_inside -= 1
            if self._n_inside:
                return
            # "highest" sets what is set here: only this tells that the user asked for it.
            is_asked_still = _asked_of_torch() == self._asked
            for place, precision in self._before.items():
                setting = SETTINGS[place]
                if not is_asked_still or setting.fp32_precision != "ieee":
                    continue
                # First as if nothing was asked of products alone: then what is asked of the whole
                # backend holds, and follows later changes.
                setting.fp32_precision = "none"
                if setting.fp32_precision != precision:
                    setting.fp32_precision = precision
            self._before.clear()


_unrounded = _Unrounded()


def _asked_of_torch() -> str | None:
    """What ``torch.set_float32_matmul_precision`` was told; None where torch refuses to say, as the
    settings of backends contradict it.
    """
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None
