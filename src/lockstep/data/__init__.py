"""Logged data: from a log to batches of rows.

`logs/` reads every format as columns; `preparation/` orders, completes and normalizes them in bounded memory
(entry point: `prepare.py`). `dataset.py` and `dataset_writer.py` read and write prepared data; `permutation.py`,
`layout.py` and `reader.py` assign rows to batches and ranks. `features.py` and `formulas.py` are the
normalization of features.
"""
