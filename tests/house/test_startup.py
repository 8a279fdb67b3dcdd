"""`lockstep --help` answers at once, because it imports almost nothing."""

import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

LOCKSTEP = Path(sys.executable).with_name("lockstep")
HEAVY = ("torch", "jax", "gymnasium", "numpy", "msgspec", "yaml", "rich", "tensorboard")


def imported_by(program: str, cwd: Path | None = None) -> set[str]:
    """Top-level packages that a fresh interpreter holds after the program."""
    program += "\nimport sys; print('MODULES', *{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("MODULES")[2].split())


@pytest.mark.parametrize(
    "program",
    [
        "import lockstep",
        "from lockstep.cli import main\ntry: main(['--help'])\nexcept SystemExit as end: assert not end.code",
        "from lockstep.cli import main\ntry: main(['train', '--help'])\nexcept SystemExit as end: assert not end.code",
    ],
)
def test_help_imports_nothing_heavy(program):
    assert not imported_by(program) & set(HEAVY)


def test_importing_starts_nothing(tmp_path):
    """No thread, no process, no file."""
    program = (
        "import os, threading\n"
        "import lockstep, lockstep.world, lockstep.run, lockstep.envs.vector, lockstep.record.run_dir, lockstep.watch\n"
        "assert threading.active_count() == 1 and not os.listdir()\n"
        "assert not open(f'/proc/self/task/{os.getpid()}/children').read()"
    )
    assert "torch" not in imported_by(program, tmp_path)


def test_help_in_half_a_second():
    def seconds() -> float:
        start = time.perf_counter()
        done = subprocess.run([LOCKSTEP, "--help"], capture_output=True, text=True)
        took = time.perf_counter() - start
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("usage: lockstep")
        return took

    seconds()  # the first start reads files that the next ones find in memory
    assert statistics.median(seconds() for _ in range(3)) < 0.5
