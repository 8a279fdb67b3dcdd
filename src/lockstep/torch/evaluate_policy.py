"""`lockstep evaluate`: a trained policy on episodes of its own, in this process."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.demands import check_drawing
from lockstep.errors import ConfigError
from lockstep.run import load
from lockstep.torch.comm import Comm
from lockstep.torch.evaluation import Evaluation
from lockstep.torch.export import load_policy
from lockstep.world import World


def evaluate_run(
    path: Path, *, episodes: int, greedy: bool = True, seed: int | None = None, video: bool = False
) -> dict[str, Any]:
    """Play the final policy of a run directory. Returns `task`, `eval_return_mean`, `..._std`, `eval_episodes`.

    With `video` one more episode is drawn, into `videos/evaluate.gif` of that directory; `video` says where it is.
    """
    if not (path / "run.yaml").is_file():
        raise ConfigError(f"{path} is not a run directory: it has no run.yaml; give a directory below runs/")
    run = load(path / "run.yaml")
    # Another stream than any evaluation during training: those chose when to stop and which policy is the best.
    run = replace(run, evaluate_episodes=episodes, evaluate_greedy=greedy, seed=run.seed + 1 if seed is None else seed)
    policy, observations = load_policy(path)
    if policy.spec is None:
        raise ConfigError(
            f"{path} learned from a log and has no simulator to play in; `lockstep offline evaluate {path}` judges it "
            "by the log, and a run with --set task=ID is played"
        )
    if video:
        check_drawing(run)
    drawn = path / "videos" / "evaluate.gif" if video else None
    with Comm(World(), device="cpu") as comm:
        evaluation = Evaluation(run, comm, policy.spec, policy, observations)
        try:
            played = evaluation.play(-1, beat=lambda: None)
            if drawn is not None:
                evaluation.record(drawn, -1, beat=lambda: None)
        finally:
            evaluation.close()
    returns = np.array(played.returns)
    return {
        "task": run.task,
        "eval_return_mean": float(returns.mean()),
        "eval_return_std": float(returns.std()),
        "eval_episodes": len(returns),
        "returns": played.returns,
        "lengths": played.lengths,
        "video": drawn,
    }
