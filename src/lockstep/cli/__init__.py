"""The `lockstep` command.

`parser.py` and `flags.py` are what can be typed, `main.py` has one function per command. `request.py` turns
arguments into a run, `start.py` starts it or goes on with it. `check.py`, `doctor.py`, `evaluate.py` and the
folders are the other commands; `completion.py` and `unknown_arguments.py` help at the keyboard. A framework is
imported only where a command needs it.
"""
