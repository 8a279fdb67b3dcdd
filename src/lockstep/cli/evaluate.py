"""`lockstep evaluate`: play new episodes with a trained policy, on one or several ranks of either backend."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from lockstep.config.env import EnvConfig
from lockstep.errors import ConfigError
from lockstep.run import AnyRun, Run, load
from lockstep.session import policy_file
from lockstep.session.evaluation import Evaluation
from lockstep.session.package_checks import check_package
from lockstep.session.task_checks import check_drawing
from lockstep.session.which_policy import FoundPolicy, read_policy
from lockstep.world import World


@dataclass(frozen=True, slots=True)
class _Job:
    run: AnyRun
    policy: Path
    metadata: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]
    """The policy as it was read: a run that trains may have removed its file since."""
    drawn: Path | None
    """The file of a video of one more episode."""


def evaluate_run(  # noqa: PLR0913  # keyword arguments of one evaluation
    path: Path,
    *,
    episodes: int,
    greedy: bool = True,
    seed: int | None = None,
    video: bool = False,
    ml_framework: Literal["torch", "jax"] | None = None,
    ranks: int = 1,
    best: bool = False,
    last: bool = False,
    step: str | int | None = None,
) -> dict[str, Any]:
    """Evaluate a policy. Returns `task`, `policy`, `eval_return_mean`, `eval_return_std`, `eval_episodes` and more.

    With `num_shards` pinned in the run, the result is the same on any number of ranks; otherwise each rank is a shard.

    Args:
        path: a run directory, one of its checkpoints, or a policy file.
        episodes: number of episodes, all ranks together; rounded up so that each of several agents plays equally many.
        greedy: take the most likely actions instead of sampled ones.
        seed: of the episodes; default: one more than the run's.
        video: render one more episode to `videos/evaluate.gif` next to the policy; `video` of the result is its path.
        ml_framework: the backend that computes the actions; default: that of the run.
        ranks: number of processes to start, unless a launcher started this one.
        best: use the policy of the run's best evaluation.
        last: use the final policy, or that of the newest checkpoint; the default.
        step: use the policy of the checkpoint of this step.
    """
    found, metadata, arrays = read_policy(path, best=best, last=last, step=step)
    run = _run_of(found, metadata, arrays)
    if run.task is None:
        raise policy_file.no_simulator_error(path)
    name = ml_framework or run.ml_framework
    check_package(name)
    # Not the seed of the evaluations during training, which selected the best policy and the stop.
    changes = {"evaluate_episodes": episodes, "seed": run.seed + 1 if seed is None else seed}
    run = replace(_on_cpu(run, name), **cast(Any, changes), evaluate_greedy=greedy)
    drawn = (found.run_dir or found.path.parent) / "videos" / "evaluate.gif" if video else None
    world = World.from_environment()
    played = _on_ranks(_Job(run, found.path, metadata, arrays, drawn), ranks, world)
    returns = np.array(played["returns"])
    return {
        "task": run.task,
        "policy": found.description,
        "rank": world.rank,
        "eval_return_mean": float(returns.mean()),
        "eval_return_std": float(returns.std()),
        "eval_episodes": len(returns),
        **played,
        "video": drawn,
    }


def _on_cpu(run: AnyRun, ml_framework: Literal["torch", "jax"]) -> AnyRun:
    """The config with a backend that need not be that of the training, and without what only learning uses."""
    changes: dict[str, Any] = {"ml_framework": ml_framework, "device": "cpu", "backend": "auto", "share_gpus": False}
    changes |= {"compile": False, "compile_mode": "default", "capture": False}
    changes |= {"devices_per_process": 1, "shard_threads": 1}
    if isinstance(run, Run):
        return replace(run, **changes, network=replace(run.network, channels_last=False))
    return replace(run, **changes, model_path=None)


def _on_ranks(job: _Job, ranks: int, world: World) -> dict[str, Any]:
    """Evaluate on the ranks that a launcher started, else on `ranks` new ones."""
    started, shards = world.launcher != "none", job.run.num_shards
    if started and ranks > 1:
        raise ConfigError(f"--ranks {ranks}: {world.launcher} started these ranks already; leave --ranks out")
    size = world.size if started else ranks
    if shards is not None and size > shards:
        raise ConfigError(f"--ranks {size} is more than num_shards={shards} of the run; use at most --ranks {shards}")
    if started or ranks == 1:
        return _play(world.rank, job)
    from lockstep.launch.local import spawn

    return spawn(_play, ranks, (job,))[0]


def _run_of(found: FoundPolicy, metadata: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> AnyRun:
    """The config of the policy's run; for a policy file without run, the task with default settings."""
    if found.run_dir is not None:
        return load(found.run_dir / "run.yaml")
    if found.path.is_dir() or not found.path.is_file():
        raise ConfigError(f"{found.path} is not below a run directory: there is no run.yaml; give a policy file")
    if policy_file.from_log(metadata):
        raise ConfigError(f"{found.path} learned from a log; evaluate the run directory that it comes from")
    policy, _, _ = policy_file.split_policy(found.path, metadata, arrays)
    print(
        f"lockstep: note: {found.path} does not hold its run's settings of the environment (env), but for "
        "clip_observation: the task's are used; evaluate the run directory for others",
        file=sys.stderr,
    )
    env = EnvConfig(clip_observation=policy.spec.clip_observation)
    return Run(task=policy.task, algo=cast(Any, policy.algo), env=env)


def _play(rank: int, job: _Job) -> dict[str, Any]:
    run = job.run
    if run.ml_framework == "jax":
        from lockstep.jax.comm import Comm
        from lockstep.jax.export import player_from
        from lockstep.jax.hardware import pin
    else:
        from lockstep.torch.comm import Comm
        from lockstep.torch.export import player_from
        from lockstep.torch.hardware import pin

    world = run.with_shards(World.from_environment())
    pin(run, world)
    # `Comm` comes first: it decides where JAX computes.
    with Comm(world, device="cpu", timeout_s=run.timeout_s, startup_timeout_s=run.startup_timeout_s) as comm:
        # That of rank 0 on all ranks: each has looked for it, and a run that trains may have gone on in between.
        metadata, arrays = comm.broadcast_object([job.metadata, job.arrays], tag="policy")
        spec, player = player_from(job.policy, metadata, arrays)
        if job.drawn is not None:
            check_drawing(run)
        evaluation = Evaluation(run, comm, spec, player)
        try:
            played = evaluation.play(-1, heartbeat=lambda: None, video=job.drawn)
        finally:
            evaluation.close()
    return {"returns": played.returns, "lengths": played.lengths, "ranks": world.size}
