"""`lockstep train`, by its command. The speed is that between two lines of metrics.jsonl: without start and end."""

import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

COMMON = {"evaluate_every": "null", "stop_when_solved": "false", "checkpoint_every": "null", "device": "cpu"}


def main() -> None:
    """Train, and print the steps per second."""
    words = sys.argv[1:]
    warm_up, measured = int(words[-3]), int(words[-1])
    words = words[:-4]
    ranks = words[words.index("--ranks") + 1]
    # A line falls on both ends of the measured steps: one that is written after the last of them has the time of the
    # final evaluation and checkpoint.
    every = measured // max(1, measured // warm_up)
    begin = -(-warm_up // every) * every
    total = begin + measured // every * every
    settings = {**COMMON, "total_steps": total, "log_every": every, "evaluate_episodes": ranks}
    for name, value in settings.items():
        words += ["--set", f"{name}={value}"]
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        command = [sys.executable, "-m", "lockstep.cli", "train", *words, "--run-dir", str(run_dir)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
        lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
        summary = json.loads((run_dir / "summary.json").read_text())
    first, last = next(line for line in lines if line["step"] >= begin), lines[-1]
    value = (last["step"] - first["step"]) / (last["time_s"] - first["time_s"])
    peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024  # of the largest process: a rank
    print(json.dumps({"value": value, "peak_mb": round(peak_mb, 1), "versions": summary["versions"]}))


if __name__ == "__main__":
    main()
