"""Train, compare and understand text rankers. Importing this package imports nothing else."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ltr.use.load import load

__all__ = ["load"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name != "load":
        raise AttributeError(f"module 'ltr' has no attribute {name!r}")
    from ltr.use.load import load  # torch and transformers take seconds to import

    return load
