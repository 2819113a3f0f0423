"""Train, compare and understand text rankers. Importing this package imports nothing else."""

__version__ = "0.1.0"
