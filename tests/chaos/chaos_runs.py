"""Runs of the command line for the tests of this folder: their processes carry a mark, so that none hides."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from lockstep.algorithms.dqn import DQNConfig
from lockstep.algorithms.ppo import PPOConfig
from lockstep.cli.chaos.faults import InjectedFault
from lockstep.run import NetworkConfig, Run, dump, override

START_S = 90.0  # to start four ranks on a machine that is busy with other things
TIMEOUT_S = 4.0
BATCH = 16 * 8
_MARK = "LOCKSTEP_CHAOS_TEST"
_UNBURIED_S = 3.0  # a launcher that lives takes note of a dead rank sooner


def small(**changes) -> Run:
    """40 updates of a small network in 4 shards, with a checkpoint every 4 updates."""
    run = Run(
        task="CartPole-v1",
        num_envs=16,
        num_shards=4,
        total_steps=40 * BATCH,
        algorithm=PPOConfig(num_steps=8, num_epochs=2, num_minibatches=2, learning_rate=1e-3),
        network=NetworkConfig(hidden=(16, 16)),
        log_every=BATCH,
        evaluate_every=None,
        evaluate_episodes=8,
        stop_when_solved=False,
        checkpoint_every=4 * BATCH,
        check_every=4,
        timeout_s=TIMEOUT_S,
        startup_timeout_s=60.0,
    )
    if changes.get("algo") == "dqn":
        run = replace(run, algo="dqn", algorithm=REPLAY)
    return override(run, changes)


REPLAY = DQNConfig(
    num_steps=8,
    batch_size=32,
    updates_per_step=1 / 32,
    learning_starts=4 * BATCH,
    capacity=16 * BATCH,
    learning_rate=1e-3,
    n_step=3,
    prioritized=True,
    target_update_every=20,
    epsilon_steps=200 * BATCH,
)
"""Four gradient steps per rollout of `small`, on a replay that soon goes round and that checkpoints hold."""


class Start:
    """One start of a run, by the command line: its processes, its end, and what it left.

    Args:
        folder: where it is started; holds `run.yaml`, and the run directory `run`.
        arguments: of the command, run directory included.
        fault: to put into a rank.
        environment: variables that it gets besides.
        command: of `lockstep`.
    """

    def __init__(
        self, folder: Path, *arguments: str, fault: InjectedFault | None = None, environment=None, command="train"
    ):
        self.folder, self.run_dir = folder, folder / "run"
        self.mark = uuid4().hex
        self._seen: dict[int, str] = {}
        self._dead_since: dict[int, float] = {}
        self.zombies: set[int] = set()
        self.out, self.err = folder / f"{self.mark[:4]}.out", folder / f"{self.mark[:4]}.err"
        words = ["lockstep.cli"] if fault is None else ["lockstep.cli.chaos.faults", fault.to_json()]
        kept = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCKSTEP_RESTARTS")}
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *words, command, *arguments],
                cwd=folder,
                env=kept | {"OMP_NUM_THREADS": "1", _MARK: self.mark, **(environment or {})},
                stdout=out,
                stderr=err,
            )

    def wait(self, within_s: float = START_S) -> int:
        """The exit code; fails the test when the run did not end by itself."""
        deadline = time.monotonic() + within_s
        while self.process.poll() is None:
            self.look()
            if time.monotonic() > deadline:
                said = self.said
                self.kill_all()
                pytest.fail(f"the run did not end within {within_s} s:\n{said}")
            time.sleep(0.05)
        return self.process.returncode

    def until(self, condition, within_s: float = START_S) -> None:
        """Wait for something to be true while the run continues."""
        deadline = time.monotonic() + within_s
        while not condition():
            self.look()
            if self.process.poll() is not None or time.monotonic() > deadline:
                said, code = self.said, self.process.poll()
                self.kill_all()
                pytest.fail(f"waited in vain ({code=}):\n{said}")
            time.sleep(0.01)

    def kill_all(self) -> None:
        """SIGKILL to every process of the run, the launcher first."""
        for pid in [self.process.pid, *self.living()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def living(self) -> list[int]:
        """Processes of the run that are not zombies."""
        found, mark = [], f"{_MARK}={self.mark}".encode()
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if name.isdecimal() and mark in Path("/proc", name, "environ").read_bytes().split(b"\0"):
                    found.append(int(name))
        return found

    def ranks(self) -> list[int]:
        """The ranks' processes, in rank order; those that have begun."""
        found = {}
        for pid in self.living():
            with contextlib.suppress(OSError):
                variables = Path("/proc", str(pid), "environ").read_bytes().split(b"\0")
                for variable in variables:
                    if variable.startswith(b"RANK="):
                        found[int(variable[5:])] = pid
        return [found[rank] for rank in sorted(found)]

    def look(self) -> None:
        """Take note of the run's processes, and of those that ended while their parent does not care."""
        for pid in self.living():
            if pid not in self._seen:
                with contextlib.suppress(OSError):
                    self._seen[pid] = _began(pid)
        now = time.monotonic()
        for pid, began in self._seen.items():
            with contextlib.suppress(OSError):
                if pid != self.process.pid and _began(pid) == began and _stat(pid)[0] == "Z":
                    since = self._dead_since.setdefault(pid, now)
                    if now - since > _UNBURIED_S and self.process.poll() is None:
                        self.zombies.add(pid)

    def left(self, within_s: float = 5.0) -> list[int]:
        """Processes of the run that still live after `within_s`."""
        deadline = time.monotonic() + within_s
        while (found := self.living()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found

    def half_written(self) -> list[str]:
        """Files and folders that somebody began and did not finish."""
        return sorted(str(path.relative_to(self.run_dir)) for path in self.run_dir.rglob(".*"))

    def check_clean(self) -> None:
        """Neither processes nor half-written files are left."""
        assert self.left() == [], f"processes were left behind\n{self.said}"
        assert self.zombies == set(), f"nobody took note that these ended\n{self.said}"
        assert self.half_written() == [], self.said

    @property
    def said(self) -> str:
        """All it printed."""
        return f"{self.out.read_text()}\n--- stderr:\n{self.errors}"

    @property
    def errors(self) -> str:
        """What it printed on stderr."""
        return self.err.read_text()

    @property
    def summary(self) -> dict:
        return json.loads((self.run_dir / "summary.json").read_text())

    def failure(self, number: int | None = None) -> dict:
        """The failure that was written down: of start `number`, or of the last one."""
        name = "failure.json" if number is None else f"failure_{number}.json"
        return json.loads((self.run_dir / "logs" / name).read_text())

    @property
    def latest(self) -> int:
        """The step of the newest checkpoint, 0 without one."""
        with contextlib.suppress(OSError):
            return int((self.run_dir / "checkpoints" / "LATEST").read_text().strip().removeprefix("step_"))
        return 0


def folder_for(path: Path, run: Run) -> Path:
    """A folder that holds the config of a run."""
    path.mkdir(exist_ok=True)
    (path / "run.yaml").write_text(dump(run))
    return path


def train(folder: Path, ranks: int, *more: str, fault: InjectedFault | None = None) -> Start:
    """Start the run of a folder anew."""
    return Start(folder, "run.yaml", "--run-dir", "run", "--ranks", str(ranks), *more, fault=fault)


def resume(folder: Path, ranks: int, *more: str, fault: InjectedFault | None = None) -> Start:
    """Go on with the run of a folder."""
    return Start(folder, "--resume", "run", "--ranks", str(ranks), *more, fault=fault)


def timeless(folder: Path) -> list[dict]:
    """The metrics of a run without what clocks said."""
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "time_s" and not k.startswith("time/")} for line in lines]


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third on: state, parent, ..."""
    return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()


def _began(pid: int) -> str:
    return _stat(pid)[19]
