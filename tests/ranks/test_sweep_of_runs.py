"""`lockstep train --seeds` with real runs: killed with SIGKILL, started again, finished."""

import json
import signal
import subprocess
import sys
import time

import psutil

SETTINGS = {
    "num_envs": 8,
    "num_steps": 16,
    "hidden": "[8]",
    "num_epochs": 1,
    "num_minibatches": 1,
    "total_steps": 12_800,
    "log_every": 512,
    "checkpoint_every": 1_280,
    "evaluate_every": "null",
    "evaluate_episodes": 2,
}
SEEDS = ["CartPole-v1", "--seeds", "0:2", "--ranks", "2", "--jobs", "1", "--run-dir", "two"]


def start(folder):
    command = [
        sys.executable,
        "-m",
        "lockstep.train",
        *SEEDS,
        *(f"--set={name}={value}" for name, value in SETTINGS.items()),
    ]
    return subprocess.Popen(
        command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def wait_until(done, seconds=120.0):
    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_killed_sweep_resumes_its_runs_and_finishes(tmp_path):
    folder = tmp_path / "two"
    sweep = start(tmp_path)
    wait_until(lambda: (folder / "seed_0/checkpoints/LATEST").exists() or sweep.poll() is not None)
    assert sweep.poll() is None, sweep.stdout.read()
    members = psutil.Process(sweep.pid).children(recursive=True)
    sweep.send_signal(signal.SIGKILL)
    sweep.communicate()
    gone, alive = psutil.wait_procs(members, timeout=20.0)
    assert len(gone) >= 3 and not alive, "the launcher and both ranks end with the sweep"
    assert not (folder / "seed_0/summary.json").exists() and not (folder / "seed_1").exists()

    again = start(tmp_path)
    out, _ = again.communicate(timeout=120.0)
    assert again.returncode == 0, out
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    starts = [(event["run"], event["resumed"]) for event in events if event["event"] == "start"]
    assert starts == [("seed_0", False), ("seed_0", True), ("seed_1", False)]
    for seed in (0, 1):
        summary = json.loads((folder / f"seed_{seed}/summary.json").read_text())
        assert (summary["status"], summary["env_steps"], summary["world_size"]) == ("finished", 12800, 2)
        assert (summary["resumed_from"] is not None) == (seed == 0)
    steps = [json.loads(line)["step"] for line in (folder / "seed_0/metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(set(steps)) and steps[-1] == 12800
    assert "seed_0: resumes on core" in out and "IQM" in out
    assert json.loads((folder / "results.json").read_text())["trials"][0]["summary"]["count"] == 2
