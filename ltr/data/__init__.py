"""Files, tokens and batches, without Lightning."""
