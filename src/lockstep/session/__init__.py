"""The context of an algorithm's loop, for both backends.

`session.py` is the context manager that `train` runs in, `backend.py` its framework-specific part. `checkpoints.py`,
`run_state.py` and `resume.py` save and resume, `evaluation.py` evaluates, `policy_file.py` reads and writes policies,
`run_checks.py` calls what refuses bad input: `package_checks.py`, `task_checks.py`, `data_checks.py`, `host_checks.py`
and `env_checks/`; `loop_checks.py` refuses mistakes of a user's own loop. `encoder_choice.py` and `placement.py` choose
what settings leave open, `non_finite.py` locates the source of a NaN. `offline/` is for runs on logged data.
"""
