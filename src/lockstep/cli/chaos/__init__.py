"""`lockstep chaos`: inject faults into a run, and report which ones it survives.

`command.py` is the command, `fault_run.py` runs and evaluates one fault, `faults.py` and `backend_faults.py` inject it.
"""
