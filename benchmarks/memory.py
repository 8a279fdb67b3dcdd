"""Does a run that learns from a replay keep to its memory? Resident bytes after minutes of training, against after one.

    python benchmarks/memory.py                       # pong_small, 10 minutes
    python benchmarks/memory.py --ranks 2 --minutes 3 --set batch_size=16
    python benchmarks/memory.py CartPole-v1 --algo dqn --minutes 2

Trains with everything that a long run does, often: evaluations, checkpoints with the replay in them, lines of metrics.
The replay is small enough to go round within the first minutes. Counted is what every process of the run holds,
launcher and workers included: what ranks share counts once, and mapped files (libraries, mostly, which other programs
share as well) do not count. Each minute's number is the median of its samples; the first begins when each of these
things has happened once. Ends with code 1 if the last minute holds over 2% more than the first.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from uuid import uuid4

import measure

_MARK = "LOCKSTEP_MEMORY_BENCHMARK"
EVERY_S = 2.0
SETTINGS = {
    "capacity": 8000, "learning_starts": 1000, "log_every": 1000, "checkpoint_every": 4000, "evaluate_every": 4000,
    "evaluate_episodes": 2, "stop_when_solved": "false", "total_steps": 100_000_000,
}  # fmt: skip


def resident(mark: str) -> int:
    """Bytes that all processes with this mark hold together, proportional where they share them."""
    total, wanted = 0, f"{_MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                lines = (folder / "smaps_rollup").read_text().splitlines()
                held = [int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:"))]
                total += 1024 * sum(held)
    return total


def watch(command: list[str], run_dir: Path, seconds: float, every_s: float = EVERY_S) -> list[tuple[float, int, int]]:
    """Run a training for so long; `(seconds, bytes, environment steps)` of every sample.

    Seconds count from when the first metrics, evaluation and checkpoint are all there.
    """
    mark, metrics = uuid4().hex, run_dir / "metrics.jsonl"
    first = (metrics, run_dir / "evaluations.jsonl", run_dir / "checkpoints" / "LATEST")
    environment = os.environ | measure.ONE_THREAD | {_MARK: mark}
    found: list[tuple[float, int, int]] = []
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, env=environment, stdout=said, stderr=subprocess.STDOUT)
        try:
            begun = None
            while begun is None or time.monotonic() - begun < seconds:
                if process.poll() is not None:
                    said.seek(0)
                    sys.exit(f"the run ended with code {process.returncode}:\n{said.read().decode()}")
                if all(path.exists() for path in first) and (lines := metrics.read_text().splitlines()):
                    begun = begun or time.monotonic()
                    found.append((time.monotonic() - begun, resident(mark), json.loads(lines[-1])["step"]))
                time.sleep(every_s)
        finally:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60.0)
            process.kill()
            process.wait()
    return found


def main() -> None:
    """Train, watch and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["pong_small"], help="what `lockstep train` is to train")
    parser.add_argument("--minutes", type=int, default=10)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--set", action="append", default=[])
    args, more = parser.parse_known_args()
    settings = {**SETTINGS, **dict(pair.split("=", 1) for pair in args.set)}
    pairs = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    with tempfile.TemporaryDirectory() as folder:
        command = [*measure.LOCKSTEP, "train", *args.what, *more, "--ranks", str(args.ranks)]
        command += ["--run-dir", f"{folder}/run", *pairs]
        samples = watch(command, Path(folder) / "run", 60.0 * args.minutes + EVERY_S)
    minutes = [[(b, n) for s, b, n in samples if 60 * m <= s < 60 * (m + 1)] for m in range(args.minutes)]
    held = [median(b for b, _ in samples) for samples in minutes]
    rows = [
        [m + 1, f"{samples[-1][1]:,}", f"{now / 2**20:,.1f}", f"{100 * (now / held[0] - 1):+.2f}%"]
        for m, (samples, now) in enumerate(zip(minutes, held, strict=True))
    ]
    print(f"{measure.machine()}; {' '.join(args.what)} on {args.ranks} ranks, {settings}\n")
    print(measure.table(["minute", "environment steps", "MiB", "against the first minute"], rows))
    if held[-1] > 1.02 * held[0]:
        sys.exit("memory grew by more than 2%")


if __name__ == "__main__":
    main()
