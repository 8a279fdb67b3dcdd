"""Logged data: from a log to batches of rows.

`logs/` reads every format as columns, `preparation/` orders, completes and normalizes them in bounded memory
(`prepare.py` starts it). `dataset.py` and `dataset_writer.py` are prepared data on the disk; `permutation.py`,
`layout.py` and `reader.py` decide which rank reads which rows when. `features.py` and `formulas.py` are the
normalization of features.
"""
