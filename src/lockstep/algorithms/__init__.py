"""Configs and metric names of the algorithms, shared by both backends."""
