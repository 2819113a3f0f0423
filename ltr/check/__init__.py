"""Is an experiment worth running, and may its numbers be believed? What data and configuration say before training."""
