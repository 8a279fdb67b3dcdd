"""What a command prints must reach the disk."""

import os
import subprocess
import sys

import pytest


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has this file")
@pytest.mark.parametrize("command", [["recipe", "cartpole"], ["submit", "cartpole", "--on", "slurm", "--dry-run"]])
def test_output_that_cannot_be_written_is_an_error(command):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "lockstep.cli", *command],
            stdout=full, stderr=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "lockstep: error: the output could not be written: No space left on device"
