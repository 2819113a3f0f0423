"""What a score promises: probabilities of relevance, and thresholds that keep what is relevant."""
