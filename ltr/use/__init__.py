"""A trained ranker in use: it scores, ranks and searches texts, and is exported for others."""
