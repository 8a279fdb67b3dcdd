"""Entry points for users of other libraries: `python -m lockstep.workflows.NAME`.

`dqn.py` and `parametric_dqn.py` train from classic workflow files (`command.py`). `skrl.py`, `rl_games.py` and
`rsl_rl.py` train with these libraries themselves on several ranks: `library_arguments.py` is their command line,
`library_run.py` one rank of such a run.
"""
