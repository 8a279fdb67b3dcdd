"""Vectorized environments: numpy at the border, one vector environment per shard."""
