"""`lockstep evaluate`: a trained policy on episodes of its own, in this process, by either backend."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from lockstep.demands import check_drawing, check_package
from lockstep.errors import ConfigError
from lockstep.evaluation import Evaluation
from lockstep.run import AnyRun, load
from lockstep.world import World


def evaluate_run(
    path: Path,
    *,
    episodes: int,
    greedy: bool = True,
    seed: int | None = None,
    video: bool = False,
    ml_framework: Literal["torch", "jax"] | None = None,
) -> dict[str, Any]:
    """Play the final policy of a run directory. Returns `task`, `eval_return_mean`, `..._std`, `eval_episodes`.

    Args:
        path: the run directory.
        episodes: how many.
        greedy: take the most likely actions; otherwise they are drawn.
        seed: of the episodes; default: one more than the run's.
        video: one more episode is drawn, into `videos/evaluate.gif` of that directory; `video` says where it is.
        ml_framework: what computes the actions; default: what the run was trained by.
    """
    if not (path / "run.yaml").is_file():
        raise ConfigError(f"{path} is not a run directory: it has no run.yaml; give a directory below runs/")
    run = load(path / "run.yaml")
    name = ml_framework or run.ml_framework
    check_package(name)
    # Another stream than any evaluation during training: those chose when to stop and which policy is the best.
    run = replace(run, evaluate_episodes=episodes, evaluate_greedy=greedy, seed=run.seed + 1 if seed is None else seed)
    drawn = path / "videos" / "evaluate.gif" if video else None
    played = _by_jax(run, path, drawn) if name == "jax" else _by_torch(run, path, drawn)
    returns = np.array(played["returns"])
    return {
        "task": run.task,
        "eval_return_mean": float(returns.mean()),
        "eval_return_std": float(returns.std()),
        "eval_episodes": len(returns),
        **played,
        "video": drawn,
    }


def _by_torch(run: AnyRun, path: Path, drawn: Path | None) -> dict[str, Any]:
    from lockstep.torch.comm import Comm
    from lockstep.torch.export import load_player

    spec, player = load_player(path)
    if drawn is not None:
        check_drawing(run)
    with Comm(World(), device="cpu") as comm:
        return _played(Evaluation(run, comm, spec, player), drawn)


def _by_jax(run: AnyRun, path: Path, drawn: Path | None) -> dict[str, Any]:
    from lockstep.jax.comm import Comm
    from lockstep.jax.export import load_player

    with Comm(World(), device="cpu") as comm:  # first: it decides where JAX computes
        spec, player = load_player(path, comm)
        if drawn is not None:
            check_drawing(run)
        return _played(Evaluation(run, comm, spec, player), drawn)


def _played(evaluation: Evaluation, drawn: Path | None) -> dict[str, Any]:
    try:
        played = evaluation.play(-1, beat=lambda: None)
        if drawn is not None:
            evaluation.record(drawn, -1, beat=lambda: None)
    finally:
        evaluation.close()
    return {"returns": played.returns, "lengths": played.lengths}
