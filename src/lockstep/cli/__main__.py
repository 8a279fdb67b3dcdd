"""`python -m lockstep.cli ...` is `lockstep ...`; launchers also start ranks with it."""

import os
import sys

from lockstep.launch.child import die_with_launcher, exit_process

if __name__ == "__main__":
    is_rank = "RANK" in os.environ or "JAX_RANK" in os.environ
    die_with_launcher()
    from lockstep.cli.main import main

    code = main()
    if is_rank:
        exit_process(code)
    sys.exit(code)
