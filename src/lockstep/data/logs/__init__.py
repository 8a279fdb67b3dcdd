"""Logs of decisions, read as columns: `format.py` starts; JSON lines, CSV, Parquet and Minari each have a file."""
