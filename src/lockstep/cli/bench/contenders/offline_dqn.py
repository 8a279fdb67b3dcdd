"""DQN on logged rows: by `lockstep offline train`, or by a plain loop that reads with torch's DataLoader."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from clock import Clock, report
from torch import nn

ROWS, FEATURES, ACTIONS, EPISODE, BATCH = 500_000, 16, 4, 100, 1024
STATE = [f"s{i}" for i in range(FEATURES)]
"""Columns of the log with the features of the state."""
SETTINGS = {"estimate": "false", "checkpoint_every": "null"}


def columns() -> dict[str, np.ndarray]:
    """The log: noise, in episodes of equal length."""
    random = np.random.default_rng(0)
    return {
        "state": random.standard_normal((ROWS, FEATURES), np.float32),
        "action": random.integers(ACTIONS, size=ROWS),
        "reward": random.standard_normal(ROWS, np.float32),
        "step": np.arange(ROWS) % EPISODE,
        "episode": np.arange(ROWS) // EPISODE,
    }


def write_log(path: Path) -> None:
    """The log as a CSV file, as users have it."""
    import polars as pl

    log = columns()
    table = {"mdp_id": log["episode"], "sequence_number": log["step"], "action": log["action"]}
    table |= {"reward": log["reward"], "action_probability": np.full(ROWS, 1 / ACTIONS)}
    pl.DataFrame(table | dict(zip(STATE, log["state"].T, strict=True))).write_csv(path)


def call(command: list[str]) -> float:
    """Run a command, end with its output if it fails; returns the memory of its largest process in MB."""
    with tempfile.TemporaryFile("w+") as output:
        words = [sys.executable, "-m", "lockstep.cli", *command]
        process = subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            output.seek(0)
            sys.exit(output.read())
    return used.ru_maxrss / 1024


def by_lockstep(ranks: int, batch_size: int, warm_up: int, measured: int) -> tuple[float, float]:
    """Rows per second of `lockstep offline train`, once warm, and MB of its largest process.

    `batch_size` is that of all ranks together.
    """
    with tempfile.TemporaryDirectory() as folder:
        log, data, run_dir = Path(folder) / "log.csv", Path(folder) / "data", Path(folder) / "run"
        write_log(log)
        names = Path(folder) / "columns.yaml"
        names.write_text(f"state_features: [{', '.join(STATE)}]\n")
        call(["offline", "prepare", str(log), "--columns", str(names), "--out", str(data)])
        # `lockstep bench` multiplies the steps by the ranks, which is right where the batch grows with them.
        parts = ranks * BATCH // batch_size
        every = warm_up // parts
        epochs = max(2 * every // ROWS + 1, (warm_up + measured) // parts // ROWS)  # two lines before the last one
        settings = SETTINGS | {"batch_size": batch_size, "epochs": epochs, "log_every": every}
        words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        words += ["--algo", "dqn", "--ranks", str(ranks), "--run-dir", str(run_dir)]
        peak_mb = call(["offline", "train", str(data), *words])  # preparing takes more, once, and is not measured
        lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    first, last = lines[0], lines[-2]  # the last line has the time of the estimates, too
    return (last["step"] - first["step"]) / (last["time_s"] - first["time_s"]), peak_mb


def by_loader(warm_up: int, measured: int) -> float:
    """Rows per second of the loop that a PyTorch tutorial would write."""
    torch.set_num_threads(1)
    log = columns()
    following = np.roll(log["state"], -1, axis=0)
    continues = (log["step"] < EPISODE - 1).astype(np.float32)
    arrays = (log["state"], log["action"], log["reward"], following, continues)
    rows = torch.utils.data.TensorDataset(*(torch.from_numpy(array) for array in arrays))
    loader = torch.utils.data.DataLoader(rows, BATCH, shuffle=True, drop_last=True)

    def network() -> nn.Sequential:
        layers = (nn.Linear(FEATURES, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, ACTIONS))
        return nn.Sequential(*layers)

    online, target = network(), network()
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-3)
    clock, done = Clock(warm_up), 0
    while done < warm_up + measured:
        for state, action, reward, next_state, goes_on in loader:
            with torch.no_grad():
                best = online(next_state).argmax(1, keepdim=True)
                wanted = reward + 0.99 * goes_on * target(next_state).gather(1, best)[:, 0]
            loss = nn.functional.smooth_l1_loss(online(state).gather(1, action[:, None])[:, 0], wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for mine, theirs in zip(target.parameters(), online.parameters(), strict=True):
                    mine.lerp_(theirs, 0.005)
            done += BATCH
            clock.mark(done)
            if done >= warm_up + measured:
                break
    return clock.per_second()


def main() -> None:
    """Train, and print the rows per second."""
    parser = argparse.ArgumentParser()
    parser.add_argument("who", choices=["lockstep", "loader"])
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=BATCH)
    parser.add_argument("--warm-up", type=int)
    parser.add_argument("--measured", type=int)
    args = parser.parse_args()
    if args.who == "lockstep":
        value, peak_mb = by_lockstep(args.ranks, args.batch_size, args.warm_up, args.measured)
    else:
        value, peak_mb = by_loader(args.warm_up, args.measured), None
    report(value, ["torch", "lockstep-rl", "polars"], peak_mb=peak_mb)


if __name__ == "__main__":
    main()
