"""What a policy would earn, from sums over groups of logged trajectories, with intervals and a verdict."""
