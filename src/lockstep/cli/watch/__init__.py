"""`lockstep watch`: a run in the terminal, from the files of its directory alone.

`arguments.py` has the flags, `command.py` the loop and the keys. `watched_run.py` reads the files, `chart.py` draws a
curve in Braille characters, `frame.py` lays out the screen.
"""
