"""Verification of an exported ranker: the layer where a library or a server departs from its proof."""
