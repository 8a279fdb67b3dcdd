"""Whether the observations of replay buffers are stored in the memory of the ranks' devices (`replay_device`)."""

from typing import NamedTuple

from lockstep.algorithms.replay import ReplayConfig
from lockstep.distributed.comm import Comm
from lockstep.envs.spec import EnvSpec
from lockstep.errors import ConfigError
from lockstep.experience.frames import observation_bytes, ring_rows
from lockstep.experience.memory import format_bytes, smaller_capacity
from lockstep.run import Run

_SHARE = 0.5
"""The most that `replay_device=auto` takes of a GPU's free memory: optimizer, activations and graphs need the rest."""


class Placement(NamedTuple):
    """Where observations are stored; equal on all ranks."""

    on_device: bool
    decision: str = ""
    """Why there, for the log; empty where there was nothing to decide."""


def place_observations(run: Run, spec: EnvSpec, comm: Comm, free: int | None, shards: int) -> Placement:
    """Decide where observations are stored, for all ranks alike; *collective* where ranks have GPUs.

    Args:
        run: the config, of an algorithm with a replay buffer.
        spec: of the environments.
        comm: the ranks.
        free: bytes of the memory of this rank's GPU that are free; None without a GPU.
        shards: whose observations are on one GPU.

    Raises:
        ConfigError: on all ranks, if `replay_device` is `cuda` and a rank's GPU has too little memory.
    """
    config, world = run.algorithm, comm.world
    assert isinstance(config, ReplayConfig)
    if free is None or config.replay_device == "cpu" or config.replay_path is not None:
        return Placement(on_device=False)
    num_envs, capacity = world.shard_size(run.num_envs, "num_envs"), world.shard_size(config.capacity, "capacity")
    rows = num_envs * ring_rows(spec, num_envs, capacity, config.n_step)
    # All ranks decide from the numbers of the rank that needs the largest part of its memory.
    every: list[tuple[int, int]] = comm.gather_object((shards * observation_bytes(spec, rows), free), "replay device")
    needed, free = max(every, key=lambda sizes: sizes[0] / max(sizes[1], 1))
    share = _SHARE if config.replay_device == "auto" else 1.0
    if needed <= share * free:
        decision = f"{format_bytes(needed)} of observations in each GPU's memory, of {format_bytes(free)} that are free"
        return Placement(on_device=True, decision=decision)
    if config.replay_device == "auto":
        return Placement(
            on_device=False,
            decision=f"in the host's memory, since {format_bytes(needed)} of observations are more than {_SHARE:.0%} "
            f"of the {format_bytes(free)} that are free on a GPU",
        )
    share = _SHARE * free / needed
    fitting = smaller_capacity(config.capacity, share, num_shards=world.num_shards, batch_size=config.batch_size)
    raise ConfigError(
        f"replay_device=cuda needs {format_bytes(needed)} for the observations of capacity={config.capacity}, and "
        f"{format_bytes(free)} are free on a GPU; use replay_device=auto"
        + (f", or capacity={fitting} or less" if fitting is not None else "")
    )


def no_room(device: object, reason: str) -> ConfigError:
    """The error of a device that lacks the memory after all."""
    return ConfigError(
        f"the replay buffer does not fit into the memory of {device} ({reason.splitlines()[0]}); "
        "use --set replay_device=cpu or a smaller capacity"
    )
