"""Trainings in JAX that the tests of this folder start as commands, and what they must come to."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from jax_compiled import PLACE

from lockstep.launch.rank_environment import free_port

START_S = 120.0  # to start ranks, compile and take a few steps, on a machine that is busy with other things
SETTINGS = {
    "ml_framework": "jax",
    "num_envs": 16,
    "num_shards": 4,
    "total_steps": 10 * 16 * 8,
    "algorithm.num_steps": 8,
    "algorithm.num_epochs": 1,
    "algorithm.num_minibatches": 2,
    "network.hidden": "[16,16]",
    "log_every": 16 * 8,
    "evaluate_every": "null",
    "evaluate_episodes": 8,
    "stop_when_solved": "false",
    "check_every": 4,
    "timeout_s": 10,
    "startup_timeout_s": 100,
}
started: list["Command"] = []
"""Everything that a test started, for `end_all`."""

_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK")


def small(**changes: Any) -> list[str]:
    """`--set` arguments of 10 updates of a small network in 4 shards; double underscores stand for dots."""
    settings = SETTINGS | {name.replace("__", "."): value for name, value in changes.items()}
    return [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]


def environment(**more: str) -> dict[str, str]:
    """Ours without a launcher's variables, on one thread, and with what commands before this one compiled."""
    ours = (*_LAUNCHERS, "JAX_RANK", "JAX_WORLD_SIZE")
    kept = {"JAX_COMPILATION_CACHE_DIR": os.path.join(os.environ[PLACE], "commands")} if PLACE in os.environ else {}
    kept |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
    return {k: v for k, v in os.environ.items() if k not in ours} | {"OMP_NUM_THREADS": "1"} | kept | more


def by_hand(rank: int, port: int) -> dict[str, str]:
    """What users set themselves, torchrun's names."""
    return {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def jax_alone(rank: int, port: int) -> dict[str, str]:
    """What another launcher of JAX scripts sets."""
    where = {"JAX_COORDINATOR_ADDR": "127.0.0.1", "JAX_COORDINATOR_PORT": str(port)}
    return {"JAX_RANK": str(rank), "JAX_LOCAL_RANK": str(rank), "JAX_WORLD_SIZE": "2", **where}


def slurm(rank: int, port: int) -> dict[str, str]:
    """What srun sets for two tasks on one host."""
    job = {"SLURM_JOB_ID": str(port), "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2"}
    job |= {"SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_STEP_NODELIST": "localhost", "SLURM_NODEID": "0"}
    return {**job, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}


class Command:
    """One command; what it writes goes to a file beside its run directory."""

    def __init__(self, folder: Path, words: list[str], **more: str) -> None:
        self.run_dir, self._said = folder / "run", folder / f"said_{time.monotonic_ns()}"
        with self._said.open("w") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *words],
                cwd=folder,
                env=environment(**more),
                stdout=said,
                stderr=subprocess.STDOUT,
            )
        started.append(self)

    @property
    def said(self) -> str:
        return self._said.read_text()

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads((self.run_dir / "summary.json").read_text())

    def wait(self, within_s: float = START_S) -> int:
        """The exit code; fails the test when the command did not end by itself."""
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"it did not end within {within_s} s:\n{self.said}")
        finally:
            self.end()

    def end(self) -> None:
        """Kill what still runs of it."""
        if self.process.poll() is None:
            for pid in [self.process.pid, *self.left()]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait()

    def until(self, done: Any, within_s: float = START_S) -> None:
        """Wait for something while the command runs."""
        deadline = time.monotonic() + within_s
        while not done():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.wait(0.01)
                pytest.fail(f"waited in vain:\n{self.said}")
            time.sleep(0.05)

    def trained(self) -> bool:
        metrics = self.run_dir / "metrics.jsonl"
        return metrics.exists() and metrics.read_text() != ""

    def left(self) -> list[int]:
        """Processes of this run that still live."""
        found: list[int] = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if b"run" in (path / "cmdline").read_bytes() and os.readlink(path / "cwd") == str(self.run_dir.parent):
                    found.append(int(path.name))
        return found

    def gone(self, within_s: float = 5.0) -> bool:
        deadline = time.monotonic() + within_s
        while self.left() and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.left() == []


def end_all() -> None:
    """After a test: nothing that it started goes on."""
    while started:
        started.pop().end()


def train(folder: Path, *words: str, **changes: Any) -> Command:
    """`lockstep train` of a small run, by its own launcher."""
    return Command(folder, ["lockstep.cli", "train", "CartPole-v1", "--run-dir", "run", *small(**changes), *words])


def new_port() -> int:
    """A port for a rendezvous."""
    return free_port()
