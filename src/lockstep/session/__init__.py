"""The context of an algorithm's loop, for both backends.

`session.py` is the context manager that `train` runs in, `backend.py` its framework-specific part. `checkpoints.py`,
`run_state.py` and `resume.py` save and resume, `evaluation.py` evaluates, `policy_file.py` reads and writes policies,
`checks.py` and `env_checks/` refuse bad input, `encoder_choice.py` and `placement.py` choose what settings leave open,
`non_finite.py` locates the source of a NaN. `offline/` is for runs on logged data.
"""
