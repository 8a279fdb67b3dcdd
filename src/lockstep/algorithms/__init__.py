"""Settings and metric names of each algorithm, for every backend."""
