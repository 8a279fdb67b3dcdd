"""`lockstep chaos`: `command.py` the command, `faults.py` what is done to a rank, `trial.py` one fault in one run."""
