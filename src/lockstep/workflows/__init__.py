"""Entry points for users of other libraries: `python -m lockstep.workflows.NAME`.

`dqn.py` and `parametric_dqn.py` train from classic workflow files (`command.py`). `skrl.py`, `rl_games.py` and
`rsl_rl.py` train with these libraries themselves on several ranks: `library_arguments.py` reads their command line,
`library_command.py` starts and connects the ranks, `library_run.py` is one rank of such a run.
"""
