"""What `lockstep offline` does."""
