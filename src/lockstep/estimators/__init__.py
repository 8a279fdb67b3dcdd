"""What a policy would earn, estimated from a log of another one. Knows no framework."""
