"""Fixtures of this room."""

from tests.world.tested_runs import runs

__all__ = ["runs"]
