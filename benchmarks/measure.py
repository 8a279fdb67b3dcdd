"""What the benchmarks share: runs in processes of their own, repetitions in turn, medians of ratios, a table.

Absolute times of a shared machine mean little. Every claim is therefore a ratio of two things measured one after the
other in the same run (A B A B ...), and the median of these ratios.
"""

import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
"""Environment variables that keep every library to one thread."""

LOCKSTEP = [sys.executable, "-m", "lockstep.cli"]


def call(command: Sequence[str], cores: set[int] | None = None) -> str:
    """Run a command with one thread per process, on `cores` only if given. Returns its output; ends on failure."""
    before = os.sched_getaffinity(0)
    try:
        if cores:
            os.sched_setaffinity(0, cores)  # inherited by the process
        done = subprocess.run(command, env=os.environ | ONE_THREAD, capture_output=True, text=True)
    finally:
        os.sched_setaffinity(0, before)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\nended with code {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def peer_python(name: str, packages: Sequence[str]) -> str:
    """The interpreter of a peer's environment, `.venv-bench-NAME`, which is made if it does not exist.

    Args:
        name: of the peer, in short.
        packages: what it consists of; those that this process's environment also has get the same version.
    """
    folder = Path(__file__).parent.parent / f".venv-bench-{name}"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        pinned = [p if "==" in p else f"{p}=={importlib.metadata.version(p).partition('+')[0]}" for p in packages]
        print(f"making {folder} with {', '.join(pinned)}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *pinned], check=True)
        (folder / "complete").touch()
    return str(python)


def train(task: str, settings: Mapping[str, object], *, ranks: int = 1, cores: set[int] | None = None) -> dict:
    """The summary of a run by the `lockstep` command, and `steady`: its steps per second without start and end.

    `steady` comes from the run's own clock: from the first line of metrics.jsonl to the last. Logs are included,
    start-up and the evaluation at the end are not.
    """
    settings = {"evaluate_every": "null", "evaluate_episodes": ranks, "stop_when_solved": "false", **settings}
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        pairs = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        call([*LOCKSTEP, "train", task, "--ranks", str(ranks), "--run-dir", str(run_dir), *pairs], cores)
        summary = json.loads((run_dir / "summary.json").read_text())
        lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    if len(lines) > 1:
        seconds = lines[-1]["time_s"] - lines[0]["time_s"]
        summary["steady"] = (lines[-1]["step"] - lines[0]["step"]) / seconds
    return summary


def in_turn(arms: Mapping[str, Callable[[], float]], repetitions: int) -> dict[str, list[float]]:
    """Measure each arm `repetitions` times, in turn; tells each number on stderr."""
    measured: dict[str, list[float]] = {name: [] for name in arms}
    for i in range(repetitions):
        for name, arm in arms.items():
            measured[name].append(arm())
            print(f"[{i + 1}/{repetitions}] {name}: {measured[name][-1]:.6g}", file=sys.stderr, flush=True)
    return measured


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> str:
    """`median (smallest-largest)` of the ratios of each repetition."""
    ratios = [a / b for a, b in zip(numerators, denominators, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def machine() -> str:
    """One line on what was measured, and on what."""
    installed = {str(package.name).lower() for package in importlib.metadata.distributions()}
    names = [name for name in ("torch", "jax", "numpy", "gymnasium") if name in installed]
    versions = [f"{name} {importlib.metadata.version(name)}" for name in names]
    cores = f"{len(os.sched_getaffinity(0))} cores ({_processor()})"
    system = f"{platform.system()} {platform.machine()}"
    return ", ".join([cores, system, f"Python {platform.python_version()}", *versions])


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown processor"
