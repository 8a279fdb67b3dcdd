"""`lockstep train --on ray` as a process of the tests, and the processes that Ray and Lockstep have started for it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

sys.path.append(str(Path(__file__).parents[1] / "hosts"))

from small_runs import lines  # found by the line above

LOCKSTEP = str(Path(sys.executable).with_name("lockstep"))
WITHIN_S = 150.0


class Driver:
    """A `lockstep` command; its output goes to a file."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.words = [LOCKSTEP, *words]
        self._output = folder / "driver.log"
        environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "RAY_ADDRESS")}
        with self._output.open("ab") as output:
            self.process = subprocess.Popen(
                self.words, cwd=folder, env=environment, stdout=output, stderr=output, start_new_session=True
            )

    @property
    def output(self) -> str:
        return self._output.read_text()

    def wait(self) -> int:
        try:
            return self.process.wait(WITHIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"{self.words} did not end:\n{self.output}") from None

    def succeed(self) -> str:
        assert self.wait() == 0, self.output
        return self.output


def wait_for(condition: Callable[[], Any], what: str, driver: Driver | None = None, within_s: float = WITHIN_S) -> Any:
    """The first true value of `condition()`; fails if the driver ends before, or after `within_s`."""
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        output = "" if driver is None else driver.output
        assert driver is None or driver.process.poll() is None, f"{what}: the driver has ended:\n{output}"
        assert time.monotonic() < deadline, f"{what}: not within {within_s} s\n{output}"
        time.sleep(0.1)
    return found


def wait_until_trained(driver: Driver, run_dir: Path, beyond: int = 0) -> int:
    """The number of steps of the run, once there are more than `beyond`."""
    return wait_for(lambda: max((one["step"] for one in lines(run_dir)), default=0) > beyond, f"> {beyond}", driver)


def ranks_of(run_dir: Path) -> dict[int, psutil.Process]:
    """The running rank processes of a run, by rank."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        try:
            environment = process.environ() if "lockstep.train" in " ".join(process.cmdline()) else {}
            if "RANK" in environment and str(run_dir) in " ".join(process.cmdline()):
                found[int(environment["RANK"])] = process
        except psutil.Error:
            continue
    return found


def kill_actor(run_dir: Path, rank: int) -> None:
    """SIGKILL the actor process of a rank."""
    actor = ranks_of(run_dir)[rank].parent()
    assert actor is not None and "ray::" in " ".join(actor.cmdline()), actor
    os.kill(actor.pid, signal.SIGKILL)


def summary(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "summary.json").read_text())


def fingerprint(run_dir: Path) -> str:
    return summary(run_dir)["params_fingerprint"]
