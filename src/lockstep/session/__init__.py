"""The context of an algorithm's loop, for both backends.

`session.py` is the context manager that `train` runs in, `backend.py` its framework-specific part. `checkpoints.py`,
`run_state.py` and `resume.py` save and resume, `evaluation.py` evaluates, `policy_file.py` reads and writes policies,
`package_checks.py`, `task_checks.py`, `data_checks.py`, `host_checks.py` and `env_checks/` refuse bad input (begin with
`run_checks.py`), `loop_checks.py` mistakes of a user's own loop. `encoder_choice.py` and `placement.py` choose what
settings leave open, `non_finite.py` locates the source of a NaN. `offline/` is for runs on logged data.
"""
