"""Fixtures of this room."""

from tests.mining.audited import collection

__all__ = ["collection"]
