"""The guardian runs without the packages that its launcher finds in folders of the user's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.launch import guardian

pytestmark = pytest.mark.real_start


def test_it_needs_the_standard_library_alone(gone):
    rank = subprocess.Popen(["sleep", "60"], start_new_session=True)
    command = [sys.executable, "-I", "-S", str(Path(guardian.__file__)), str(os.getpid())]
    try:
        done = subprocess.run(command, input=f"{rank.pid}\n", stderr=subprocess.PIPE, text=True, timeout=30)
        assert (done.returncode, done.stderr) == (0, "")
        assert gone([rank.pid])
    finally:
        rank.kill()
        rank.wait()
