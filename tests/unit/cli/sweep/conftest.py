"""Sweeps whose runs are stand-ins, which start in a moment."""

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.cli import main as cli
from lockstep.cli.sweep import pool, train_command

STAND_IN = Path(__file__).with_name("stand_in.py")


class Sweeps:
    """Runs `lockstep` in an empty directory, with stand-ins for the runs of sweeps."""

    def __init__(self, path: Path):
        self.path = path
        self.behave({})

    def behave(self, behaviour: dict[str, str]) -> None:
        """What runs do, by name."""
        (self.path / "behaviour.json").write_text(json.dumps(behaviour))

    def write(self, text: str) -> None:
        """Write `my.yaml`."""
        (self.path / "my.yaml").write_text(text)

    def run(self, *words: str) -> int:
        """Run a command of `lockstep`."""
        return cli.main(list(words))

    def run_interrupted(self, ready: Callable[[], bool], number: int, *words: str) -> int:
        """Run a command, and send a signal to it once `ready`."""

        def interrupt() -> None:
            while not ready():
                time.sleep(0.02)
            time.sleep(0.2)
            os.kill(os.getpid(), number)

        thread = threading.Thread(target=interrupt)
        thread.start()
        code = self.run(*words)
        thread.join()
        return code

    def events(self, path: str) -> list[dict]:
        return [json.loads(line) for line in (self.path / path / "events.jsonl").read_text().splitlines()]

    def started(self, path: str) -> list[str]:
        return [event["run"] for event in self.events(path) if event["event"] == "start"]

    def results(self, path: str) -> dict:
        return json.loads((self.path / path / "results.json").read_text())


@pytest.fixture
def sweeps(here, monkeypatch):
    monkeypatch.setattr(train_command, "PROGRAM", (sys.executable, str(STAND_IN)))
    monkeypatch.setattr(pool, "_POLL_S", 0.02)
    monkeypatch.setattr(pool, "_READ_EVERY_S", 0.02)
    affinity = os.sched_getaffinity(0)
    yield Sweeps(here)
    os.sched_setaffinity(0, affinity)
