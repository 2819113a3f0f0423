"""Fixtures of this room."""

from tests.run.interrupted import world
from tests.run.measured import config
from tests.run.nodes import nodes

__all__ = ["config", "nodes", "world"]
