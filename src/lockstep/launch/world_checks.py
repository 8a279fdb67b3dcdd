"""Whether a run fits the world that it is to be trained in."""

from typing import TYPE_CHECKING

from lockstep.errors import ConfigError

if TYPE_CHECKING:
    from lockstep.run import AnyRun
    from lockstep.world import World


def check_no_launcher(command: str) -> None:
    """Refuse a command that starts ranks itself in a process that a launcher started."""
    from lockstep.world import World

    launcher = World.from_environment().launcher
    if launcher != "none":
        raise ConfigError(f"{command} starts ranks itself, and {launcher} started this process; run it alone")


def check_world(run: "AnyRun", world: "World", num_shards: int | None = None) -> None:
    """Refuse counts that do not divide among the (checkpoint's) shards, too much memory, and more ranks than GPUs."""
    from lockstep.launch.restarts import may_restart_ranks

    if may_restart_ranks(world):
        return  # a restarted run has the shards of its checkpoint, and this start may be a restart
    shards = run.with_shards(world, num_shards)
    run.minibatch_rows(shards)
    from lockstep.algorithms.replay import ReplayConfig
    from lockstep.launch.gpus import installed_gpus
    from lockstep.run import Run
    from lockstep.session.data_checks import check_rows
    from lockstep.session.host_checks import MANY_ROWS, check_host, check_replay_device, check_rollouts

    on_gpus = run.device != "cpu"
    # Without the framework, whose import takes seconds; the ranks ask it.
    gpus = installed_gpus(run.ml_framework) if on_gpus else 0
    if not isinstance(run, Run):
        check_rows(run, shards)
    elif isinstance(run.algorithm, ReplayConfig):
        from lockstep.envs.make import env_spec

        check_replay_device(run, gpus)
        # The ranks compare with the memory of their GPUs, and check again.
        may_be_on_gpus = gpus > 0 and run.algorithm.replay_device != "cpu" and run.algorithm.replay_path is None
        check_host(run, env_spec(run.task, run.env), shards, on_device=may_be_on_gpus)
    elif gpus == 0 and world.launcher != "ray" and run.num_envs * run.algorithm.num_steps >= MANY_ROWS:
        from lockstep.envs.make import env_spec

        check_rollouts(run, env_spec(run.task, run.env), shards)
    if not on_gpus or run.ml_framework == "jax" or world.launcher != "none":
        return  # under a launcher, and in JAX, every rank checks its own device
    if run.device == "cuda" or run.backend == "nccl":
        wanted = "device=cuda" if run.device == "cuda" else "backend=nccl"
        if gpus == 0:
            raise ConfigError(f"{wanted}, but there is no GPU that torch can use; `lockstep doctor` says why")
    if gpus and world.size > gpus and not run.share_gpus:
        raise ConfigError(
            f"--ranks {world.size} is more than the {gpus} GPU{'s' * (gpus > 1)} of this machine; use --ranks {gpus} "
            "or --set device=cpu, or for tests --set share_gpus=true"
        )
