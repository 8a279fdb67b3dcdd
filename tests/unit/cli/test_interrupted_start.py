"""Ctrl-C while the command still imports its modules."""

import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.real_start

CTRL_C = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background of a shell ignore it
sys.meta_path.insert(0, Finder())
sys.argv = ["lockstep", "train", "cartpole"]
from lockstep.cli.main import console
console()
"""


@pytest.mark.parametrize("module", ["lockstep.cli.parser", "lockstep.cli.request", "lockstep.launch.flags", "msgspec"])
def test_an_interruption_while_the_command_starts_is_one_line(module, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", CTRL_C.format(module=module)], capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGINT, "", "lockstep: interrupted\n")
    assert not list(tmp_path.iterdir())
