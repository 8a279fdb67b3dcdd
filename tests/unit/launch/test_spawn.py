"""`spawn` with real processes."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lockstep import ConfigError, RunError, World, spawn
from lockstep.errors import PeerError
from lockstep.launch import local


def who(rank: int, word: str) -> tuple:
    world = World.from_environment()
    return rank, world.rank, world.size, word, os.environ["OMP_NUM_THREADS"], os.getsid(0) == os.getpid()


def big(rank: int, payload: bytes) -> bytes:
    return bytes([rank]) + payload


def one_raises(rank: int, file: str) -> None:
    """Rank 1, once rank 0 has written its process id."""
    pid = Path(file)
    if rank == 1:
        end = time.monotonic() + 30
        while not pid.exists() and time.monotonic() < end:
            time.sleep(0.01)
        raise ValueError("boom")
    beside = pid.with_suffix(".beside")
    beside.write_text(str(os.getpid()))
    beside.rename(pid)
    time.sleep(60)


def one_is_killed(rank: int) -> None:
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def peer_error_first(rank: int) -> None:
    if rank == 0:
        raise PeerError("rank 1 closed its connection", 1)
    time.sleep(0.5)
    raise ValueError("the cause")


def refuses(rank: int) -> None:
    raise ConfigError("num_envs=3 is odd")


def leaves(rank: int, how: str) -> None:
    if rank == 1:
        os._exit(0) if how == "hard" else sys.exit(5)


def not_picklable(rank: int):
    return lambda: rank


def slow_rank_0(rank: int) -> int:
    time.sleep(1.0 if rank == 0 else 0)
    return rank


def goes_on_in_threads(rank: int, folder: str) -> None:
    def write(name: str) -> None:
        time.sleep(0.5)
        (Path(folder) / f"{name}-{rank}").touch()

    threading.Thread(target=write, args=("thread",)).start()
    ThreadPoolExecutor(1).submit(write, "executor")


def with_workers(rank: int) -> list[int]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.map(abs, [-rank])


def sleeps(rank: int) -> None:
    time.sleep(60)


@pytest.mark.parametrize("ranks", [1, 3])
def test_results_come_in_rank_order(ranks, monkeypatch):
    monkeypatch.setattr(local, "usable_cores", lambda: 6)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    threads = str(6 // ranks)
    assert spawn(who, ranks, ("hi",)) == [(rank, rank, ranks, "hi", threads, True) for rank in range(ranks)]


def test_a_rank_may_start_processes_of_its_own():
    assert spawn(with_workers, 2) == [[0], [1]]


def test_large_arguments_and_results():
    payload = os.urandom(1 << 24)
    assert spawn(big, 2, (payload,)) == [b"\0" + payload, b"\1" + payload]


def test_a_rank_that_raises_ends_all_and_shows_where(tmp_path):
    start = time.monotonic()
    with pytest.raises(RunError, match=r"^rank 1: ValueError: boom$") as caught:
        spawn(one_raises, 2, (str(tmp_path / "pid"),))
    assert time.monotonic() - start < 20
    assert "in one_raises" in str(caught.value.__cause__)
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists()


def test_a_killed_rank_is_named():
    with pytest.raises(RunError, match=r"^rank 0 was killed by SIGKILL \(signal 9\)$"):
        spawn(one_is_killed, 2)


def test_the_cause_is_told_not_its_consequence():
    with pytest.raises(RunError, match=r"^rank 1: ValueError: the cause$"):
        spawn(peer_error_first, 2)


def test_a_config_error_stays_one():
    with pytest.raises(ConfigError, match=r"^num_envs=3 is odd$"):
        spawn(refuses, 2)


@pytest.mark.parametrize(
    "how, message", [("hard", "rank 1 exited with code 0 before its function"), ("soft", "rank 1 exited with code 5")]
)
def test_a_rank_that_leaves_is_named(how, message):
    with pytest.raises(RunError, match=message):
        spawn(leaves, 2, (how,))


def test_a_result_that_cannot_be_sent_is_named():
    with pytest.raises(RunError, match=r"rank 0: what fn returned cannot be sent to its caller \(.*pickle"):
        spawn(not_picklable, 1)


def test_spawn_within_a_rank_is_refused(monkeypatch):
    """Each rank of `lockstep launch` would train alone with ranks of its own."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="spawn starts ranks, but this process is rank 1 of one already"):
        spawn(not_picklable, 2)


@pytest.mark.parametrize("args", ["word", 1, {"a": 1}])
def test_args_that_are_no_tuple_are_refused(args):
    with pytest.raises(ConfigError, match=r"^args is a (str|int|dict), not a tuple; give args=\(value,\)"):
        spawn(who, 1, args)


def test_a_rank_that_has_returned_may_wait_for_others(monkeypatch):
    monkeypatch.setattr(local, "DEFAULT_BOUNDS", local.Bounds(early_s=0.2))
    assert spawn(slow_rank_0, 2) == [0, 1]


def test_ranks_wait_for_their_threads_as_python_does(tmp_path):
    spawn(goes_on_in_threads, 2, (str(tmp_path),))
    assert {path.name for path in tmp_path.iterdir()} == {"thread-0", "thread-1", "executor-0", "executor-1"}


def test_a_call_has_a_bound():
    with pytest.raises(RunError, match=r"ranks 0, 1 were still running after timeout_s=0\.5"):
        spawn(sleeps, 2, timeout_s=0.5)


@pytest.mark.parametrize(
    ("fn", "ranks", "said"), [(5, 2, "fn=5 must be a function"), (print, "2", "ranks='2' must be a whole number")]
)
def test_arguments_of_other_types_are_refused(fn, ranks, said):
    with pytest.raises(ConfigError, match=said):
        spawn(fn, ranks)


def test_what_a_fresh_process_cannot_import_is_refused():
    with pytest.raises(ConfigError, match=r"fn=.*<lambda> to a fresh process; define it with `def`"):
        spawn(lambda rank: rank, 2)
    with pytest.raises(ConfigError, match="cannot send args"):
        spawn(who, 2, (lambda: 0,))


SCRIPT = """
import os, sys, time
import lockstep

class Result:
    def __init__(self, value): self.value = value

def work(rank, base):
    if base == "sleep":
        os.write(1, b"ready %d\\n" % os.getpid())  # in one piece, beside the other rank's
        time.sleep(60)
    return Result(base + str(rank))

{guard}
    print([result.value for result in lockstep.spawn(work, 2, (sys.argv[1],))])
"""
GUARD = 'if __name__ == "__main__":'


def script(tmp_path: Path, guard: str = GUARD) -> str:
    (tmp_path / "script.py").write_text(SCRIPT.format(guard=guard))
    return str(tmp_path / "script.py")


@pytest.mark.parametrize("as_module", [False, True])
@pytest.mark.real_start
def test_a_script_may_spawn_its_own_functions(as_module, tmp_path):
    path = script(tmp_path)
    arguments = ["-m", "script", "x"] if as_module else [path, "x"]
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=tmp_path, timeout=30)
    assert (done.stdout, done.stderr) == ("['x0', 'x1']\n", "")


def test_a_script_without_a_guard_is_told(tmp_path):
    path = script(tmp_path, guard="if True:")
    done = subprocess.run([sys.executable, path, "x"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert 'put the call under `if __name__ == "__main__":`' in done.stderr.splitlines()[-1]


def test_functions_typed_into_a_session_are_refused():
    code = "import lockstep\ndef f(rank): pass\ntry: lockstep.spawn(f, 2)\nexcept lockstep.ConfigError as e: print(e)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stdout == "spawn cannot import fn=f from an interactive session; write it to a file\n"


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # JAX, where another test imported it, warns of any
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_ranks_end_with_their_caller(number, tmp_path, gone):
    def default_sigint() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)

    process = subprocess.Popen(
        [sys.executable, "-u", script(tmp_path), "sleep"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=default_sigint,
    )
    assert process.stdout is not None
    pids = [int(process.stdout.readline().split()[1]) for _ in range(2)]
    process.send_signal(number)
    _, err = process.communicate(timeout=20)  # returns only when no rank holds the pipes any more
    assert process.returncode == -number
    assert ("KeyboardInterrupt" in err) == (number == signal.SIGINT)
    assert gone(pids)
