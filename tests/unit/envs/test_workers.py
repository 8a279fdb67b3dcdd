"""Worker processes: a death is named, and nobody outlives the rank."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from lockstep.envs.vector import make_vector_env
from lockstep.errors import RunError
from lockstep.run import EnvConfig

ASYNC = EnvConfig(vectorization="async")


def gone(pid, within_s=5.0):
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


def test_a_killed_worker_is_named():
    env = make_vector_env("CartPole-v1", ASYNC, 3)
    env.reset([0, 1, 2])
    os.kill(env._env.processes[2].pid, signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(RunError, match=r"environment 2 of 3 was killed by SIGKILL \(signal 9\)"):
        for _ in range(3):
            env.step(np.zeros(3, np.int64))
    env.close()
    env.close()
    assert time.monotonic() - start < 5
    assert all(not process.is_alive() for process in env._env.processes)


def test_a_worker_that_exits_inside_step_is_named(tmp_path):
    order = tmp_path / "order"
    env = make_vector_env("own_envs:Faulty", EnvConfig(kwargs={"order": str(order)}, vectorization="async"), 2)
    env.reset([10, 11])
    order.write_text("exit 7")
    with pytest.raises(RunError, match="environment 1 of 2 exited with code 7"):
        env.step(np.zeros(2, np.int64))
    env.close()


def test_workers_leave_signals_to_the_rank():
    env = make_vector_env("CartPole-v1", ASYNC, 2)
    env.reset([0, 1])
    for process in env._env.processes:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            os.kill(process.pid, number)
    env.step(np.zeros(2, np.int64))
    pids = [process.pid for process in env._env.processes]
    env.close()
    assert all(gone(pid) for pid in pids)


RANK = """
    import sys, time
    import numpy as np
    from lockstep.envs.vector import make_vector_env
    from lockstep.run import EnvConfig
    env = make_vector_env("CartPole-v1", EnvConfig(vectorization="async"), 2)
    env.reset([0, 1])
    print(*[process.pid for process in env._env.processes], flush=True)
    {end}
"""


@pytest.mark.parametrize(
    ("end", "kill"), [("time.sleep(60)", True), ("sys.exit(3)", False), ("raise RuntimeError", False)]
)
def test_workers_end_with_their_rank(end, kill):
    script = textwrap.dedent(RANK).format(end=end)
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as rank:
        pids = [int(word) for word in rank.stdout.readline().split()]
        assert len(pids) == 2
        if kill:
            rank.kill()
        assert rank.wait(timeout=10) == (-9 if kill else 3 if "exit" in end else 1)
    assert all(gone(pid) for pid in pids)
