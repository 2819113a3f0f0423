"""Fixtures of this room."""

from tests.use.exported import exported, scores_of_others
from tests.use.loaded import runs
from tests.use.searched import retriever

__all__ = ["exported", "retriever", "runs", "scores_of_others"]
