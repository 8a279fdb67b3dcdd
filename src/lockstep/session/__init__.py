"""What surrounds an algorithm's loop, for both backends.

`session.py` is the context manager that `train` runs in. `backend.py` says what it asks of a framework.
`checkpoints.py`, `run_state.py` and `resume.py` save and go on, `evaluation.py` evaluates, `policy_file.py` holds
policies, `checks.py` and `env_checks/` refuse what cannot work, `non_finite.py` finds where a NaN came from.
"""
