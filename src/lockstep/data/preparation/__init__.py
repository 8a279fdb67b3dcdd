"""From a log to prepared data in bounded memory.

`passes.py` reads the log once and its sorted parts again.

`spill.py` keeps rows on the disk in between, `next_rows.py` finds what follows each row, `identify.py` chooses
normalizations.
"""
