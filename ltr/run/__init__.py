"""A run: its folder, its checkpoints, its results, and what it is."""
