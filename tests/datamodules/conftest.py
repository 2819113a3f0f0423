"""Fixtures of this room."""

from tests.datamodules.grouped import labelled

__all__ = ["labelled"]
