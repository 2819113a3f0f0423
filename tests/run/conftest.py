"""Fixtures of this room."""

from tests.run.interrupted import world
from tests.run.measured import config

__all__ = ["config", "world"]
