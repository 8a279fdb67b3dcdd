"""Whether a run fits the world that it is to be trained in."""

from typing import TYPE_CHECKING

from lockstep.errors import ConfigError

if TYPE_CHECKING:
    from lockstep.run import AnyRun
    from lockstep.world import World


def check_output(run: "AnyRun", world: "World") -> None:
    """Refuse a place for the finished policy that its writer, rank 0, cannot write to."""
    from lockstep.run import OfflineRun
    from lockstep.session.checks import check_model_path

    if isinstance(run, OfflineRun) and world.rank == 0:
        check_model_path(run)


def check_world(run: "AnyRun", world: "World", num_shards: int | None = None) -> None:
    """Refuse counts that do not divide among shards (a checkpoint's, if any), what takes too much, too many ranks."""
    from lockstep.launch.restarts import may_restart_ranks

    if may_restart_ranks(world):
        return  # a run that goes on has the shards of its checkpoint, and a launcher says too late what it will start
    shards = run.cut(world, num_shards)
    run.minibatch_rows(shards)
    from lockstep.run import Run
    from lockstep.session.checks import check_host, check_rows

    if not isinstance(run, Run):
        check_rows(run, shards)
    elif run.algo == "dqn":
        from lockstep.envs.make import env_spec

        check_host(run, env_spec(run.task, run.env), shards)
    if run.device == "cpu" or world.launcher != "none" or run.ml_framework == "jax":
        return  # under a launcher, and in JAX, every rank asks for its own device
    from lockstep.launch.gpus import installed_gpus

    gpus = installed_gpus()  # torch itself is asked by the ranks: loading it here would keep the user waiting
    if run.device == "cuda" or run.backend == "nccl":
        wanted = "device=cuda" if run.device == "cuda" else "backend=nccl"
        if gpus == 0:
            raise ConfigError(f"{wanted}, but there is no GPU that torch can use; `lockstep doctor` says why")
    if gpus and world.size > gpus:
        raise ConfigError(f"--ranks {world.size} is more than the {gpus} GPUs; use --ranks {gpus} or --set device=cpu")
