"""What becomes of a batch of events."""
