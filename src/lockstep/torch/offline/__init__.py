"""Learning from logged data: the algorithms, their batches, and estimates of their policies."""
