"""Whether a run fits the world that it is to be trained in."""

from typing import TYPE_CHECKING

from lockstep.errors import ConfigError

if TYPE_CHECKING:
    from lockstep.run import AnyRun, Run
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
    from lockstep.run import Run
    from lockstep.session.data_checks import check_enough_rows

    if not isinstance(run, Run):
        check_enough_rows(run, shards)
    else:
        _check_agents(run, shards)
        if world.launcher != "ray":  # its ranks are on other machines, and check those
            _check_memory(run, shards)
    check_gpus(run, world)


def _check_agents(run: "Run", shards: "World") -> None:
    """Refuse environments of several agents that would be divided between shards.

    Those are tasks of PettingZoo, or the user's classes. Others are not made here: that can take a simulator's start.
    """
    from lockstep.envs import pettingzoo
    from lockstep.envs.make import env_spec, is_jax_task, is_tensor_task
    from lockstep.session.task_checks import check_agents

    named = ":" in run.task or pettingzoo.is_task(run.task)
    may_have_agents = named and not is_jax_task(run.task) and not is_tensor_task(run.task)
    if run.algo == "ppo" and shards.num_shards > 1 and may_have_agents:
        check_agents(run.num_envs, shards.num_shards, env_spec(run.task, run.env))


def _check_memory(run: "Run", shards: "World") -> None:
    """Refuse replay buffers and rollouts that this host cannot hold."""
    from lockstep.algorithms.replay import ReplayConfig
    from lockstep.envs.make import env_spec
    from lockstep.session.host_checks import MANY_ROWS, check_host, check_replay_device, check_rollouts

    gpus = _gpus(run)
    if isinstance(run.algorithm, ReplayConfig):
        check_replay_device(run, gpus)
        # The ranks compare with the memory of their GPUs, and check again.
        may_be_on_gpus = gpus > 0 and run.algorithm.replay_device != "cpu" and run.algorithm.replay_path is None
        check_host(run, env_spec(run.task, run.env), shards, on_device=may_be_on_gpus)
    elif gpus == 0 and run.num_envs * run.algorithm.num_steps >= MANY_ROWS:
        check_rollouts(run, env_spec(run.task, run.env), shards)


def check_gpus(run: "AnyRun", world: "World") -> None:
    """Refuse more ranks of torch on this machine than it has GPUs, and a GPU that is asked for where there is none."""
    if run.device == "cpu" or run.ml_framework == "jax" or world.launcher != "none":
        return  # under a launcher, and in JAX, every rank checks its own device
    gpus = _gpus(run)
    if run.device == "cuda" or run.backend == "nccl":
        wanted = "device=cuda" if run.device == "cuda" else "backend=nccl"
        if gpus == 0:
            raise ConfigError(f"{wanted}, but there is no GPU that torch can use; `lockstep doctor` says why")
    if gpus and world.local_size > gpus and not run.share_gpus:
        flag = "--ranks" if world.local_size == world.size else "--nproc-per-node"
        raise ConfigError(
            f"{flag} {world.local_size} is more than the {gpus} GPU{'s' * (gpus > 1)} of this machine; use {flag} "
            f"{gpus} or --set device=cpu, or for tests --set share_gpus=true"
        )


def _gpus(run: "AnyRun") -> int:
    """GPUs of this machine that the run may use. The ranks ask their framework, whose import takes seconds."""
    from lockstep.launch.gpus import installed_gpus

    return 0 if run.device == "cpu" else installed_gpus(run.ml_framework)
