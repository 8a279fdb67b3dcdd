"""Policies learned from logs: networks of named and of continuous actions, and how they act in a simulator."""
