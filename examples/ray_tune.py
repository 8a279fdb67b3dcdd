"""Search settings with Ray Tune: each trial is a whole Lockstep run, and reports its returns while it trains.

    pip install 'lockstep-rl[ray]' 'ray[tune]'
    python examples/ray_tune.py --ranks 2 --trials 8

The ranks of a trial are actors of their own, which Ray places beside the trial. When Tune ends a trial early, Ray ends
its ranks. `lockstep report runs/tune/trial_*` compares the runs.
"""

import argparse
import json
import threading
from pathlib import Path

from ray import tune
from ray.tune.schedulers import ASHAScheduler

import lockstep
from lockstep.engines.ray import launch

POLL_S = 0.5


def learn(rank: int, run_dir: str, settings: dict) -> None:
    """One rank of a trial; all ranks make the same call."""
    lockstep.train("CartPole-v1", run_dir=run_dir, **settings)


def trial(config: dict) -> None:
    """Train with the settings that Tune has chosen, and report each line of the run's metrics."""
    settings = dict(config)
    ranks, folder = settings.pop("ranks"), settings.pop("folder")
    run_dir = Path(folder) / tune.get_context().get_trial_name()  # Tune's own folder of a trial is on one node only
    errors: list[Exception] = []

    def run() -> None:
        try:
            launch(learn, (str(run_dir), settings), ranks=ranks)
        except Exception as error:
            errors.append(error)

    training = threading.Thread(target=run)
    training.start()
    reported, running = 0, True
    while running:
        training.join(POLL_S)
        running = training.is_alive()  # what was written until now is read once more below
        lines = metrics(run_dir)
        for line in lines[reported:]:
            if "episode/return_mean_100" in line:
                tune.report({"return_mean": line["episode/return_mean_100"], "steps": line["step"]})
        reported = len(lines)
    if errors:
        raise errors[0]


def metrics(run_dir: Path) -> list[dict]:
    """The whole lines of `metrics.jsonl` so far."""
    path = run_dir / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def main() -> None:
    """Search two settings and print the best."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, help="of each trial")
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--total-steps", type=int, default=50_000, help="environment steps of each trial")
    parser.add_argument("--at-a-time", type=int, default=1, help="trials at a time; their ranks need room, too")
    parser.add_argument("--folder", default="runs/tune", help="of the runs and of Tune; on a cluster, on a shared disk")
    args = parser.parse_args()
    folder = Path(args.folder).absolute()
    space = {
        "folder": str(folder),
        "ranks": args.ranks,
        "total_steps": args.total_steps,
        "learning_rate": tune.loguniform(1e-4, 1e-2),
        "entropy_coef": tune.choice([0.0, 0.01]),
    }
    tuner = tune.Tuner(
        tune.with_resources(trial, {"CPU": 0, "memory": 1}),  # it only reads files, and asks for next to nothing
        param_space=space,
        tune_config=tune.TuneConfig(
            metric="return_mean",
            mode="max",
            num_samples=args.trials,
            max_concurrent_trials=args.at_a_time,
            # A trial that comes to the end of its steps ends by itself: the scheduler's limit is beyond it.
            scheduler=ASHAScheduler(time_attr="steps", max_t=2 * args.total_steps, grace_period=args.total_steps // 4),
        ),
        run_config=tune.RunConfig(name="cartpole", storage_path=str(folder / "tune"), verbose=0),
    )
    best = tuner.fit().get_best_result()
    chosen = {name: best.config[name] for name in ("learning_rate", "entropy_coef")}
    print(f"best return {best.metrics['return_mean']:.1f} with {chosen}, in {folder}")


if __name__ == "__main__":
    main()
