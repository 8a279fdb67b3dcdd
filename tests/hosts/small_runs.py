"""Tiny training runs for the tests of this folder, and what their results are compared by."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from network import WITHIN_S, Command, Network, wait_for
from safetensors import safe_open

BATCH = 16 * 8
ANSWER_S = 30.0  # from the start of the last node; the machine that runs the tests is busy, and this holds all the same
SETTINGS = {
    "num_envs": 16,
    "num_shards": 4,
    "total_steps": 40 * BATCH,
    "algorithm.num_steps": 8,
    "algorithm.num_epochs": 2,
    "algorithm.num_minibatches": 2,
    "network.hidden": "[16,16]",
    "log_every": BATCH,
    "evaluate_every": "null",
    "evaluate_episodes": 8,
    "stop_when_solved": "false",
    "checkpoint_every": 4 * BATCH,
    "check_every": 4,
    "timeout_s": 60,
    "startup_timeout_s": 120,
}


class Paced:
    """A training that goes slowly until the test lets it go: `arguments`, and `alone`'s run directory to compare with.

    Args:
        folder: where the file is that slows it down.
        updates: how long it is.
        changes: of settings.
    """

    def __init__(self, folder: Path, updates: int, **changes: Any) -> None:
        self.folder, self._slow = folder, folder / "slow"
        self._slow.touch()
        self._what = [f"{Path(__file__).with_name('paced_env.py')}:Paced"]
        self._changes = {"total_steps": updates * BATCH, "env__kwargs__slow_while": self._slow} | changes
        self.arguments = self._what + small(**self._changes)

    def let_go(self) -> None:
        """Full speed from now on."""
        self._slow.unlink()

    def alone(self) -> Path:
        """The same training in one process of one host, at full speed."""
        assert not self._slow.exists()
        return alone(self.folder / "alone", *self._what, **self._changes)


def small(**changes: Any) -> list[str]:
    """`--set` arguments of 40 updates of a small network in 4 shards; double underscores stand for dots."""
    settings = SETTINGS | {name.replace("__", "."): value for name, value in changes.items()}
    return [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]


def alone(folder: Path, *what: str, **changes: Any) -> Path:
    """The run directory of the same training in one process of one host."""
    words = [f"{Path(sys.executable).parent}/lockstep", "train", *what, "--run-dir", str(folder), *small(**changes)]
    kept = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    done = subprocess.run(
        words, env=kept | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def summary(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "summary.json").read_text())


def lines(run_dir: Path) -> list[dict[str, Any]]:
    """The metrics written so far, whole lines only."""
    try:
        text = (run_dir / "metrics.jsonl").read_text()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def steps(run_dir: Path) -> int:
    """How far the run is, as its metrics tell."""
    return lines(run_dir)[-1]["step"] if lines(run_dir) else 0


def training(run_dir: Path, command: Command, beyond: int = 0) -> int:
    """Wait until the run has come further than so many steps, and by how far it is."""

    def goes_on() -> bool:
        return steps(run_dir) > beyond or not command.running

    wait_for(goes_on, lambda: f"it did not train beyond {beyond} steps:\n{command.said}")
    assert command.running, f"{command} has ended:\n{command.said}"
    return steps(run_dir)


def only_run(network: Network) -> Path:
    """The one directory below `runs/`."""
    (found,) = (network.shared / "runs").iterdir()
    return found


def ended_well(*commands: Command) -> None:
    """Every command ends with code 0."""
    codes = [command.wait() for command in commands]
    said = "\n".join(f"--- {command}\n{command.said}" for command in commands)
    assert codes == [0] * len(commands), f"{codes}\n{said}"


def refused(*commands: Command, each: list[str]) -> None:
    """All end in time with code 2, one line of error, and what it has to tell."""
    since = max(command.began for command in commands)
    codes = [command.wait(within_s=4 * ANSWER_S) for command in commands]
    said = "\n".join(f"--- {command}\n{command.said}" for command in commands)
    assert codes == [2] * len(commands), f"{codes}\n{said}"
    for command, pattern in zip(commands, each, strict=True):
        errors = [line for line in command.said.splitlines() if line.startswith("lockstep: error: ")]
        assert len(errors) == 1, said
        assert re.search(pattern, errors[0]), f"{pattern!r} is not in\n{said}"
        assert "Traceback" not in command.said, said
    took = max(command.ended - since for command in commands if command.ended is not None)
    assert took < ANSWER_S, f"{took:.0f} s\n{said}"


def same_bits(one: Path, other: Path, ranks: int, hosts: int) -> None:
    """`other` ran on so many ranks and hosts, and both runs came to the same bits on the same way.

    Optimizer, environments and random streams are in the last checkpoint, byte by byte.
    """
    told, expected = summary(other), summary(one)
    assert expected["status"] in ("finished", "solved")
    assert (told["status"], told["env_steps"]) == (expected["status"], expected["env_steps"])
    assert told["world_size"] == ranks
    assert len({rank["host"] for rank in told["ranks"]}) == hosts
    assert told["params_fingerprint"] == expected["params_fingerprint"]
    assert {rank["params_fingerprint"] for rank in told["ranks"]} == {expected["params_fingerprint"]}
    assert [_timeless(line) for line in lines(other)] == [_timeless(line) for line in lines(one)]
    last = f"checkpoints/step_{expected['env_steps']}"
    mine, theirs = _checkpoint(other / last), _checkpoint(one / last)
    assert mine.keys() == theirs.keys()
    assert "shard_3.safetensors" in theirs, "the run that is compared with has no checkpoint at its end"
    assert mine == theirs, f"other bits in {[name for name in theirs if mine[name] != theirs[name]]} of {last}"


def _checkpoint(folder: Path) -> dict[str, Any]:
    """The bits of every file, without what clocks said."""
    found: dict[str, Any] = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "np") as opened:
            rest = json.loads(opened.metadata()["lockstep"])
            tensors = {name: opened.get_tensor(name).tobytes() for name in opened.keys()}  # noqa: SIM118  # no mapping
        if "elapsed_s" in rest:
            del rest["elapsed_s"], rest["journal"]["logged"]
            rest["journal"]["summary"].pop("solved_at_s", None)
        found[file.name] = (tensors, rest)
    return found


def _timeless(line: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key != "time_s" and not key.startswith("time/")}
