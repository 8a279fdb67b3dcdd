"""`lockstep sweep`, and `lockstep train --seeds`: whole runs side by side, resumable, with statistics over seeds.

`arguments.py` has the flags, `command.py` the commands. `sweep_file.py` reads the sweep file, `space.py` the settings
to search, `trial.py` lists combinations and their runs; `optuna_trials.py` has Optuna choose them. `train_command.py`
makes the config and the command of each run, `slots.py` divides the machine, `processes.py` starts a run in a slot,
`pool.py` runs all of them, `folder.py` is the directory, `progress.py` the lines shown, and `scores.py` the table at
the end.
"""
