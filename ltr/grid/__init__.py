"""A family of experiments from one file: what its cells are, and which of them are made."""
