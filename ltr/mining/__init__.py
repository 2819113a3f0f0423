"""Hard negatives: mined from a corpus, filtered, kept as a folder that training reads."""
