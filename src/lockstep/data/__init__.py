"""Logged data: from files to batches. Knows no framework."""
