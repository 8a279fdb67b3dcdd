"""`python -m lockstep`: the `lockstep` command, for the interpreter that has it installed."""

import sys

from lockstep.cli.main import main

sys.exit(main())
