"""`python -m lockstep.cli.offline ...` is `lockstep offline ...`: what a rank on one of several machines is started as."""

import sys

from lockstep.launch.child import die_with_launcher, leave

if __name__ == "__main__":
    die_with_launcher()
    from lockstep.cli import main as cli

    leave(cli.main(["offline", *sys.argv[1:]]))
