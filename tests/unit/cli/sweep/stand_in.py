"""A stand-in for `lockstep train` that starts in a moment: `stand_in.py CONFIG --run-dir DIR` or `--resume DIR`.

`behaviour.json` in the working directory maps a name of a run to what it does: `fail`, `refuse` (exit code 2 before
anything is written), `wait` (until a signal), `poor` (a poor evaluation, then until a signal), `late` (ends by itself
after a signal), `damaged` (an evaluation and a metric that are no numbers).
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

import yaml

STEPS = (100, 200, 300)


def main(words: list[str]) -> int:
    resumed = words[0] == "--resume"
    path = Path(words[1] if resumed else words[2])
    config_path = path / "run.yaml" if resumed else Path(words[0])
    name = f"{path.parent.name}/{path.name}" if path.parent.name.startswith("trial_") else path.name
    behaviour = json.loads(Path("behaviour.json").read_text()).get(name, "")
    if behaviour == "refuse":
        print("lockstep: error: num_envs=0 must be at least 1")
        return 2
    config = yaml.safe_load(config_path.read_text())
    path.mkdir(parents=True, exist_ok=True)
    (path / "run.yaml").write_text(config_path.read_text())
    (path / "affinity.json").write_text(json.dumps(sorted(os.sched_getaffinity(0))))
    # Before anything that a test waits for, so that no signal finds the handlers of Python.
    signalled: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: signalled.append(number) if behaviour == "late" else end(path, number))
    first = len(STEPS) - 1 if resumed else 0
    for step in STEPS[first:]:
        append(path, "metrics.jsonl", {"step": step, "time_s": step / 1000, "time/steps_per_second": 1000.0})
    if behaviour == "damaged":
        append(path, "metrics.jsonl", {"step": 300, "time_s": 0.3, "policy/kl": True, "loss/value": float("nan")})
    if behaviour == "fail":
        summary = {"status": "failed", "error": "rank 0: the simulator\nran away", "env_steps": 300}
        (path / "summary.json").write_text(json.dumps(summary))
        return 1
    if not resumed:
        mean, step = -1000.0 if behaviour == "poor" else 0.0, None if behaviour == "damaged" else 50
        append(path, "evaluations.jsonl", {"step": step, "returns": [mean], "lengths": [1]})
    while behaviour in ("wait", "poor") or (behaviour == "late" and not signalled):
        time.sleep(0.05)
    time.sleep(0.3)
    score = -abs(float(config["algorithm"]["learning_rate"]) - 0.01) + config["seed"]
    append(path, "evaluations.jsonl", {"step": 300, "returns": [score], "lengths": [1]})
    summary = {"status": "finished", "env_steps": 300, "steps_per_second": 1000.0, "eval_return_mean": score}
    (path / "summary.json").write_text(json.dumps(summary))
    return 0


def append(path: Path, name: str, entry: dict) -> None:
    with (path / name).open("a") as file:
        file.write(json.dumps(entry) + "\n")


def end(path: Path, number: int) -> NoReturn:
    (path / "summary.json").write_text(json.dumps({"status": "interrupted", "error": "stopped"}))
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
