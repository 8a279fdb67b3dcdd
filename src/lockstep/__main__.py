"""`python -m lockstep`: the `lockstep` command, for the interpreter that has it installed."""

from lockstep.cli.main import console

console()
