"""Worker processes: a death is named, and nobody outlives the rank."""

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from lockstep.envs.make import make_vector_env
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


def test_workers_that_do_not_come_up_are_an_error_and_leave_nothing(tmp_path):
    (tmp_path / "only_here.py").write_text(
        "import os\nfrom own_envs import Counter\nhome = os.getpid()\n"
        "class Env(Counter):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        if os.getpid() != home: os._exit(4)\n"
    )
    before = set(multiprocessing.active_children())
    with pytest.raises(RunError, match="exited with code 4 while it started"):
        make_vector_env(f"{tmp_path / 'only_here.py'}:Env", ASYNC, 2)
    assert set(multiprocessing.active_children()) == before


RANK = """
    import sys
    import numpy as np
    from lockstep.envs.make import make_vector_env
    from lockstep.run import EnvConfig
    config = EnvConfig(kwargs={{"order": {order!r}}}, vectorization="async")
    env = make_vector_env({task!r}, config, 2)
    env.reset([10, 11])
    print(*[process.pid for process in env._env.processes], flush=True)
    {end}
"""


@pytest.mark.parametrize(
    ("end", "code"), [("env.step(np.zeros(2, np.int64))", -9), ("sys.exit(3)", 3), ("raise RuntimeError", 1)]
)
def test_workers_end_with_their_rank(tmp_path, end, code):
    # Worker 1 sleeps inside step, so that it cannot learn from its pipe that the rank is gone.
    order = tmp_path / "order"
    order.write_text("sleep")
    task = f"{Path(__file__).parent / 'own_envs.py'}:Faulty"
    script = textwrap.dedent(RANK).format(order=str(order), task=task, end=end)
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as rank:
        pids = [int(word) for word in rank.stdout.readline().split()]
        assert len(pids) == 2
        if code == -9:
            time.sleep(0.2)
            rank.kill()
        try:
            assert rank.wait(timeout=10) == code
        finally:
            rank.kill()
    assert all(gone(pid) for pid in pids)
