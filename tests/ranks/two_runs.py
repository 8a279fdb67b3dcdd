"""A user's script that trains two runs one after the other; at first, rank 1 is killed in the second."""

import os
import sys
from pathlib import Path

from lockstep.cli.chaos.faults import InjectedFault, inject
from lockstep.run import load
from lockstep.train import train

if __name__ == "__main__":
    run, folder = load(Path(sys.argv[1])), sys.argv[2]
    train(run, seed=0, run_dir=f"{folder}/first")
    if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        inject(InjectedFault("kill", rank=1, update=8))
    train(run, seed=1, run_dir=f"{folder}/second")
