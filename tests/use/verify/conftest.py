"""Fixtures of this room."""

from tests.use.proof.exported import proofs

__all__ = ["proofs"]
