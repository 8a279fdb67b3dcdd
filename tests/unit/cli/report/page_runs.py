"""Run directories with made results and phases."""

from pathlib import Path

from lockstep.record.run_dir import RunDir
from lockstep.record.summary import empty_summary
from lockstep.run import Run

RUN = Run(task="CartPole-v1")
PHASES = {"env": 62.0, "act": 8.0, "learn": 20.0, "sync": 4.0, "wait": 4.0, "evaluate": 1.0, "checkpoint": 0.5}


def make_run(path, run=RUN, returns=(10.0, 20.0), status="finished", ranks=1, phases=PHASES, waits=None, **summary):
    """A run directory with a training return each 1000 steps and 2 s."""
    path = Path(path)
    with RunDir.create(path, run) as run_dir:
        for i, mean in enumerate(returns, 1):
            run_dir.write_metrics(1000 * i, 2.0 * i, {"episode/return_mean_100": mean})
        waits = waits or [1.0] * ranks
        if phases:
            of_ranks = {name: waits if name == "wait" else [value] * ranks for name, value in phases.items()}
            run_dir.write_ranks(1000, 2.0, of_ranks | {"other": [0.0] * ranks}, [1] * ranks)
        if status is not None:
            entries = [
                {"rank": rank, "host": "node", "device": "cpu", "params_fingerprint": "a1", "wait_s": wait}
                | {"first_rollout_fingerprint": f"b{rank}"}
                for rank, wait in enumerate(waits)
            ]
            known = {"status": status, "world_size": ranks, "ranks": entries, "phases_s": phases}
            run_dir.write_summary(empty_summary(run) | known | {"params_fingerprint": "a1"} | summary)
    return path
