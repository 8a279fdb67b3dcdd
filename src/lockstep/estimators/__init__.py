"""Off-policy estimates of a policy from sums over groups of logged trajectories, with intervals and a verdict."""
