"""Learning from logged data: the algorithms, their batches and optimizer, and the scores that estimates need."""
