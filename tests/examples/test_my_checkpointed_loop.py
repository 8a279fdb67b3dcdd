"""`examples/my_checkpointed_loop.py`: killed in mid-run and started again, it ends as if it had never been killed."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

UPDATES = ("--updates", "12", "--every", "4")


def command(examples, folder, ranks):
    script = [str(examples / "my_checkpointed_loop.py"), "--folder", folder, *UPDATES]
    launcher = ["-m", "lockstep.cli", "launch", "--ranks", str(ranks)]
    return [sys.executable, *(launcher if ranks > 1 else []), *script]


def clean():
    return {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "OMP_NUM_THREADS")}


def run(examples, folder, ranks):
    words = command(examples, folder, ranks)
    done = subprocess.run(words, env=clean(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def parameters(printed):
    (found,) = re.findall(r"^parameters (\w+)$", printed, re.MULTILINE)
    return found


def kill_at(examples, folder, ranks, update, whom):
    """Start it and kill it with SIGKILL once it has printed this update: the launcher, or one of the ranks."""
    words, printed = command(examples, folder, ranks), []
    with subprocess.Popen(words, env=clean(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        for line in process.stdout:
            printed.append(line)
            if line.startswith(f"update {update}:"):
                children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
                ranks = [c for c in children if b"my_checkpointed_loop" in Path(f"/proc/{c}/cmdline").read_bytes()]
                os.kill(process.pid if whom == "all" else int(ranks[-1]), signal.SIGKILL)
    assert process.returncode != 0
    assert "parameters" not in "".join(printed), "it was killed too late"


@pytest.mark.parametrize(("ranks", "whom"), [(1, "all"), (2, "all"), (2, "a rank")])
@pytest.mark.slow  # the loop of the guide, which is quick, goes on from its checkpoints too
def test_killed_and_started_again_it_ends_with_the_same_bits(examples, ranks, whom):
    whole = parameters(run(examples, "whole", ranks))
    kill_at(examples, "killed", ranks, 6, whom)
    assert sorted(path.name for path in Path("killed/checkpoints").glob("step_*")) == ["step_4"]
    printed = run(examples, "killed", ranks)
    assert printed.startswith("update 5:"), printed
    assert parameters(printed) == whole
    assert parameters(run(examples, "killed", ranks)) == whole, "a run that has nothing left to do"
