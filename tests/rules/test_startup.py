"""`lockstep --help` answers at once, because it imports almost nothing."""

import resource
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real_start  # it is their imports that are tested

LOCKSTEP = Path(sys.executable).with_name("lockstep")
HEAVY = ("torch", "jax", "gymnasium", "numpy", "msgspec", "yaml", "psutil", "rich", "tensorboard")


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
        "from lockstep.cli.main import main\ntry: main(['--help'])\nexcept SystemExit as end: assert not end.code",
        "from lockstep.cli.main import main\n"
        "try: main(['train', '--help'])\nexcept SystemExit as end: assert not end.code",
    ],
)
def test_help_imports_nothing_heavy(program):
    assert not imported_by(program) & set(HEAVY)


def test_importing_starts_nothing(tmp_path):
    """No thread, no process, no file."""
    program = (
        "import os, threading\n"
        "import lockstep, lockstep.world, lockstep.run, lockstep.envs.vector, lockstep.record.run_dir\n"
        "import lockstep.distributed.watch\n"
        "assert threading.active_count() == 1 and not os.listdir()\n"
        "assert not open(f'/proc/self/task/{os.getpid()}/children').read()"
    )
    assert "torch" not in imported_by(program, tmp_path)


def test_the_package_is_imported_in_50_milliseconds():
    """Of processor time, which other programs do not lengthen; names are imported when they are used."""
    code = "import time; a = time.process_time(); import lockstep; print(time.process_time() - a)"

    def seconds() -> float:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        return float(done.stdout)

    seconds()
    assert min(seconds() for _ in range(5)) < 0.05


def test_names_of_the_package():
    """`lockstep.train` is called, holds a function of its name, and is imported under any of its names in any order."""
    asserted = (
        "assert lockstep.train.train is train and callable(lockstep.train) and module is lockstep.train\n"
        "assert lockstep.__version__ == version('lockstep-rl')\n"
        "assert set(lockstep.__all__) <= set(dir(lockstep))"
    )
    first = ["import lockstep; lockstep.train", "import lockstep.train as module", "from lockstep import train"]
    for line in first:
        lines = (
            line,
            "import lockstep\nimport lockstep.train as module\nfrom lockstep.train import train",
            "from importlib.metadata import version",
            asserted,
        )
        done = subprocess.run([sys.executable, "-W", "error", "-c", "\n".join(lines)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    command = [sys.executable, "-W", "error", "-m", "lockstep.train", "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_name_that_needs_torch_says_so_without_it(tmp_path):
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('no torch', name='torch')\n")
    code = "import lockstep\ntry: lockstep.Comm\nexcept ModuleNotFoundError as error: print(error)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert "lockstep-rl[torch]" in done.stdout and "from lockstep.jax import Comm" in done.stdout, done.stderr


def test_help_in_300_milliseconds():
    """Of processor time, which other programs do not lengthen."""

    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([LOCKSTEP, "--help"], capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("usage: lockstep")
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    seconds()  # the first start reads files that the next ones find in memory
    assert statistics.median(seconds() for _ in range(3)) < 0.3
