"""Fixtures of this room."""

from tests.compare.tested import runs

__all__ = ["runs"]
