"""Fixtures of this room."""

from tests.run.interrupted import world
from tests.run.measured import config
from tests.run.nodes import ends, nodes

__all__ = ["config", "ends", "nodes", "world"]
