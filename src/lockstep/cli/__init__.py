"""The `lockstep` command.

`parser.py` and `flags.py` define the arguments, `main.py` has one function per command. `request.py` turns arguments
into a run, `start.py` starts or resumes it. `check.py`, `doctor.py`, `evaluate.py` and the folders are the other
commands, and `terminal.py` has the tables and texts of those that list runs; `completion.py` completes arguments and
`unknown_arguments.py` corrects them. A framework is imported only where a command needs it.
"""
