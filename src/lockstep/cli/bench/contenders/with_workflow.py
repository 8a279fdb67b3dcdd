"""`lockstep.workflows.NAME`: skrl, rl_games or rsl_rl itself on one or several ranks of `lockstep/Cartpole-v0`.

The speed is that between two lines of metrics.jsonl: without start and end.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import robot_settings
from clock import arguments, report

PACKAGES = ["skrl", "rl-games", "rsl-rl-lib", "torch"]


def main() -> None:
    """Train, and print the steps per second of all ranks."""
    args = arguments("library", "num_envs", "ranks")
    num_envs, ranks = int(args.num_envs), int(args.ranks)
    batch = num_envs * ranks * robot_settings.STEPS
    warm_up, measured = (max(1, steps // batch) for steps in (args.warm_up, args.measured))
    settings = {
        "skrl": robot_settings.skrl(),
        "rl_games": robot_settings.rl_games(num_envs),
        "rsl_rl": robot_settings.rsl_rl(),
    }
    with tempfile.TemporaryDirectory() as folder:
        agent = Path(folder) / "agent.yaml"
        agent.write_text(json.dumps(settings[args.library]))  # JSON is YAML
        words = ["--task", "lockstep/Cartpole-v0", "--agent", str(agent), "--num_envs", str(num_envs)]
        words += ["--max_iterations", str(warm_up + measured), "--ranks", str(ranks), "--run_dir", f"{folder}/run"]
        command = [sys.executable, "-m", f"lockstep.workflows.{args.library}", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
        lines = [json.loads(line) for line in Path(folder, "run", "metrics.jsonl").read_text().splitlines()]
    first, last = lines[warm_up - 1], lines[-1]
    report((last["step"] - first["step"]) / (last["time_s"] - first["time_s"]), PACKAGES, of_children=True)


if __name__ == "__main__":
    main()
