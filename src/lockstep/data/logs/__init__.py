"""Logs of decisions, read as columns. Entry point: `format.py`; each format has a file."""
