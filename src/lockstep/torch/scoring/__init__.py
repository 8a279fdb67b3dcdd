"""Policies learned from logs: networks that score named actions or candidates, and their preprocessing."""
