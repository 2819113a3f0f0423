"""What a training batch holds: the rows of an epoch, and which of them share a batch."""
