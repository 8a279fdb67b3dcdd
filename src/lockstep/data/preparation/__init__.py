"""From a log to prepared data in bounded memory.

`passes.py` has the two passes. `spill.py` keeps rows on the disk between them, `next_rows.py` finds the next row of
each row, `identify.py` chooses normalizations.
"""
