"""What Ray as an engine costs: start, speed, and how soon a killed actor is noticed and trained on without.

    python benchmarks/ray_engine.py --repeats 3         prints a Markdown table; docs/results/ray.md has one

Starts a Ray cluster on this machine, and trains CartPole-v1 on 2 ranks by turns with `--ranks 2` and with `--on ray`.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from ray.cluster_utils import Cluster

LOCKSTEP = str(Path(sys.executable).with_name("lockstep"))
BATCH = 8 * 64
SETTINGS = {
    "num_envs": 8,
    "num_steps": 64,
    "num_shards": 2,
    "log_every": BATCH,
    "evaluate_every": "null",
    "stop_when_solved": "false",
    "checkpoint_every": 8 * BATCH,
}
WITHIN_S = 300.0
TICK_S = 0.02


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--updates", type=int, default=100, help="of the runs whose speed is measured")
    args = parser.parse_args()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    cluster = Cluster()
    cluster.add_node(num_cpus=2, include_dashboard=False, object_store_memory=80_000_000)
    engines = {"--ranks 2": [], "--on ray": ["--on", "ray", "--address", cluster.address]}
    starts: dict[str, list[float]] = {name: [] for name in engines}
    speeds: dict[str, list[float]] = {name: [] for name in engines}
    losses: list[tuple[float, float]] = []
    try:
        for _ in range(args.repeats):
            for name, words in engines.items():
                start_s, speed = whole_run(words, args.updates)
                starts[name].append(start_s)
                speeds[name].append(speed)
                print(f"{name}: first update after {start_s:.1f} s, {speed:.0f} steps/s", file=sys.stderr)
            losses.append(killed_actor(engines["--on ray"]))
            print(
                f"killed: reported after {losses[-1][0]:.1f} s, training after {losses[-1][1]:.1f} s", file=sys.stderr
            )
    finally:
        cluster.shutdown()
    print(
        f"load averages at the end: {', '.join(f'{load:.1f}' for load in os.getloadavg())} on {os.cpu_count()} cores\n"
    )
    print("| | `--ranks 2` | `--on ray` |\n|---|---|---|")
    for title, table, digits in (("first update after, s", starts, 1), ("steps/s", speeds, 0)):
        print(f"| {title} | " + " | ".join(shown(values, digits) for values in table.values()) + " |")
    print(f"| killed actor reported after, s | | {shown([noticed for noticed, _ in losses], 2)} |")
    print(f"| training again after, s | | {shown([again for _, again in losses], 1)} |")


def shown(values: list[float], digits: int) -> str:
    """The median, and the range."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def whole_run(words: list[str], updates: int) -> tuple[float, float]:
    """Seconds from the command to the first update, and steps/s of a run."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        began = time.perf_counter()
        process = start(run_dir, words, updates * BATCH)
        wait_for(lambda: last_step(run_dir) > 0, process)
        start_s = time.perf_counter() - began
        assert process.wait() == 0
        lines = metrics(run_dir)
        first, last = lines[len(lines) // 10], lines[-1]
        return start_s, (last["step"] - first["step"]) / (last["time_s"] - first["time_s"])


def killed_actor(words: list[str]) -> tuple[float, float]:
    """Seconds from SIGKILL of an actor to the driver's message, and to the first update after the restart."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        process = start(run_dir, [*words, "--max-restarts", "1"], 10_000 * BATCH)
        wait_for(lambda: (run_dir / "checkpoints" / "LATEST").exists(), process)
        os.kill(actor_of(run_dir).pid, signal.SIGKILL)
        killed = time.perf_counter()
        log = Path(folder) / "driver.log"
        wait_for(lambda: "was lost" in log.read_text(), process)
        noticed = time.perf_counter() - killed
        wait_for(lambda: "Ray placed" in log.read_text().partition("was lost")[2], process)
        lowest = last_step(run_dir)

        def trains() -> bool:
            """Whether there are new metrics: the restart first discards those after its checkpoint."""
            nonlocal lowest
            step = last_step(run_dir)
            lowest = min(lowest, step)
            return step > lowest

        wait_for(trains, process)
        again = time.perf_counter() - killed
        process.send_signal(signal.SIGTERM)
        process.wait()
        return noticed, again


def start(run_dir: Path, words: list[str], total_steps: int) -> subprocess.Popen[bytes]:
    """Start a training."""
    settings = SETTINGS | {"total_steps": total_steps}
    changes = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    command = [LOCKSTEP, "train", "CartPole-v1", "--ranks", "2", *words, "--run-dir", str(run_dir), *changes]
    with (run_dir.parent / "driver.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Return as soon as `condition()` is true."""
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit("the training ended early, or is too slow")
        time.sleep(TICK_S)


def metrics(run_dir: Path) -> list[dict[str, Any]]:
    """The whole lines of `metrics.jsonl` so far."""
    path = run_dir / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def last_step(run_dir: Path) -> int:
    """The steps of the last line of the metrics."""
    return max((line["step"] for line in metrics(run_dir)), default=0)


def actor_of(run_dir: Path) -> psutil.Process:
    """The actor of rank 1."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "lockstep.train" not in words or str(run_dir) not in " ".join(words):
            continue
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            parent = process.parent()
            if process.environ().get("RANK") == "1" and parent is not None:
                return parent
    raise SystemExit("rank 1 is not running")


if __name__ == "__main__":
    main()
