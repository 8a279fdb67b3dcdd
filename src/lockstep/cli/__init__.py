"""The `lockstep` command.

`parser.py` and `flags.py` define the arguments, `command_help.py` has their help, `completion.py` completes
them, and `unknown_arguments.py` corrects them. `main.py` calls the command; it contains `train`, `recipe` and the first
part of `evaluate`, `doctor` and `chaos`. Most other commands have a file or folder of their name, such as `runs.py`,
`tasks.py` and `report/`.

`request.py` turns arguments into a run, `agent.py` gives the run of a task its first settings, and `start.py` starts or
resumes the run. `probe.py` is one rank of `lockstep doctor` on several machines. `workflow_files/` reads workflow
files, and `terminal.py` has what the commands that list runs share. A framework is imported only where a command needs
it.
"""
