"""For all tests: GPU tests skip without a GPU, and no process outlives the tests that started it."""

import atexit
import gc
import os
import signal
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import fork_server
from lockstep.launch.gpus import nvidia_gpu_present

# Children inherit it, and theirs too; this process's own environment, as /proc shows it, is from before.
_MARK = "LOCKSTEP_TEST_SESSION"
_GRACE_S = 5.0
_USING_JAX = (
    "test_jax_",
    "test_seams.py",
    "test_dqn_seams.py",
    "test_actor_critic_seams.py",
    "test_doctor.py",
    "test_cli.py",
    "test_env_errors.py",
)  # whoever uses it first in a process decides for all
_DEVICES = 4
_XLA_FLAGS = (
    "--xla_cpu_multi_thread_eigen=false --xla_disable_hlo_passes=cse_barrier_expander"
    " --xla_backend_optimization_level=0"  # most of the time of these tests is compilation
)
# Python's own helper of shared memory and semaphores ends with the process that it serves.
_ALLOWED = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
_STARTED_AS_USERS_DO = ("real_start", "slow", "learning", "planted", "chaos", "hosts", "gpu", "suites", "ray")
_reported: list[str] = []
# What JAX compiles once is read again by the tests that follow in the same process.
_COMPILATION_CACHE = {
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}


def pytest_configure(config: pytest.Config) -> None:
    os.environ[_MARK] = uuid4().hex
    if hasattr(config, "workerinput"):
        atexit.register(_exit_at_once, os.getpid())  # the first registered function is the last one called


def _exit_at_once(worker: int) -> None:
    """The interpreter's own end would free all that tests and libraries have made, for seconds of a processor."""
    if os.getpid() == worker:  # not a process that a test forked
        os._exit(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not nvidia_gpu_present():
        for item in items:
            if item.get_closest_marker("gpu"):  # `item.keywords` has the names of folders too, also that of the clone
                item.add_marker(pytest.mark.skip(reason="needs a GPU"))


def pytest_collection_finish() -> None:
    """Exclude the imported libraries and the collected tests from garbage collections: they stay until the end."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before the fixtures
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Quick tests fork processes from one that has imported torch or JAX; the others start them as users do."""
    as_users_do = any(item.get_closest_marker(mark) for mark in _STARTED_AS_USERS_DO)
    backend = "jax" if item.path.name.startswith("test_jax_") else "torch"
    fork_server.use(None if as_users_do else backend)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker of pytest-xdist tells the controller what its tests left."""
    _reported.extend(getattr(node, "workeroutput", {}).get(_MARK, []))


def pytest_sessionfinish(session: pytest.Session) -> None:
    fork_server.stop()
    left = _reported if session.config.getoption("numprocesses", None) else _end_what_is_left()
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[_MARK] = left
    elif left:
        print("\nleft behind by the tests, now killed:", *left, sep="\n  ")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _end_what_is_left() -> list[str]:
    deadline = time.monotonic() + _GRACE_S
    while (left := dict(_left_behind())) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return [f"process {pid}: {command}" for pid, command in left.items()]


def _left_behind() -> Iterator[tuple[int, str]]:
    """Living processes that this session's tests started, directly or not."""
    mark = f"{_MARK}={os.environ[_MARK]}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            environment, command = (entry / "environ").read_bytes(), (entry / "cmdline").read_bytes()
        except OSError:  # it ended meanwhile, or is somebody else's
            continue
        if mark in environment.split(b"\0"):
            words = command.replace(b"\0", b" ").decode(errors="replace").strip()
            if not any(allowed in words for allowed in _ALLOWED):
                yield int(entry.name), words


@pytest.fixture(autouse=True, scope="module")  # before what a module makes once
def _strict_jax(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests of JAX: four devices, one thread, and no array is stretched to another's rank in silence."""
    if not request.path.name.startswith(_USING_JAX) or find_spec("jax") is None:
        yield
        return
    import jax

    if jax.config.jax_num_cpu_devices != _DEVICES:
        jax.config.update("jax_num_cpu_devices", _DEVICES)
        # Read when JAX is first used; taken back, so that processes that tests start show what they do by themselves.
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XLA_FLAGS", _XLA_FLAGS)
            jax.devices()
        for name, value in _COMPILATION_CACHE.items():
            jax.config.update(name, value)
        jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.mktemp("compiled")))
    with jax.numpy_rank_promotion("raise"):
        yield
