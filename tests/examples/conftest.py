"""The examples as modules, in a working directory of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))  # fresh processes that `spawn` starts get it too


@pytest.fixture
def examples(tmp_path, monkeypatch):
    """The folder of the examples; runs go to a temporary one."""
    monkeypatch.chdir(tmp_path)
    return EXAMPLES


@pytest.fixture
def python(examples):
    """`python(*arguments)` runs a command of Python as a user types it, and returns what it printed."""

    def call(*arguments: object) -> str:
        environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "OMP_NUM_THREADS")}
        done = subprocess.run(
            [sys.executable, "-W", "error::FutureWarning", *map(str, arguments)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout

    return call
