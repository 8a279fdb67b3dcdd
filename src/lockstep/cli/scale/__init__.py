"""`lockstep scale`: how much faster more ranks are, where the loss goes, and when a return is reached.

`arguments.py` declares the flags, `plan.py` the runs, `command.py` makes them one after the other, `measurement.py`
reads them, `results.py` compares them for `scale.json`. `lockstep.cli.report.scale_table` prints that.
"""
