"""Checks of a host, before memory is allocated: its GPUs, the memory and the disk space for replay buffers, paths."""

import os
import shutil
from pathlib import Path

import numpy as np

from lockstep.algorithms.replay import ReplayConfig
from lockstep.envs.spec import EnvSpec
from lockstep.errors import ConfigError
from lockstep.experience.memory import check_memory, format_bytes, replay_bytes
from lockstep.run import OfflineRun, Run
from lockstep.system.memory import usable_memory
from lockstep.world import World

MANY_ROWS = 100_000
"""Rows of a rollout from which its memory is compared with the host's: before, the spec of the task is not needed."""


def check_model_path(run: OfflineRun) -> None:
    """Raise `ConfigError` if the finished policy could not be written."""
    if run.model_path is not None and (why := _why_not_writable(Path(run.model_path))):
        raise ConfigError(f"model_path={run.model_path} cannot be written ({why}); use another directory")


def check_replay_device(run: Run, num_gpus: int) -> None:
    """Raise `ConfigError` for `replay_device=cuda` where no rank has a GPU for its replay buffers.

    Args:
        run: the config.
        num_gpus: GPUs that the ranks of this host can use.
    """
    config = run.algorithm
    if not isinstance(config, ReplayConfig) or config.replay_device != "cuda":
        return
    reason = None
    if run.device == "cpu":
        reason = "device=cpu computes on CPUs"
    elif num_gpus == 0:
        reason = f"there is no GPU that {run.ml_framework} can use (`lockstep doctor` says why)"
    if reason is not None:
        raise ConfigError(f"replay_device=cuda, but {reason}; use --set replay_device=auto")


def check_host(run: Run, spec: EnvSpec, world: World, *, on_device: bool = False) -> None:
    """Raise `ConfigError` if this host lacks the memory or the disk space for the replay buffers of its ranks.

    Args:
        run: the config.
        spec: of its environments.
        world: the ranks.
        on_device: whether observations are in the memory of devices.
    """
    config = run.algorithm
    if not isinstance(config, ReplayConfig):
        return
    memory = bytes_of_host(run, spec, world, mapped=on_device or None)
    whole = bytes_of_host(run, spec, world, mapped=False)
    from_device = whole - memory if on_device else 0  # copied to the host before they are copied for the checkpoint
    check_memory(
        config.capacity,
        memory,
        copy=whole + from_device if config.checkpoint_replay else 0,
        may_map=config.replay_path is None and not on_device,
        num_shards=world.num_shards,
        batch_size=config.batch_size,
    )
    if config.replay_path is not None:
        _check_disk(Path(config.replay_path), whole - memory)


def check_rollouts(run: Run, spec: EnvSpec, world: World) -> None:
    """Raise `ConfigError` if this host lacks the memory for the observations of one rollout, the least that it needs.

    Args:
        run: the config, whose rollouts are on the host.
        spec: of its environments.
        world: the ranks.
    """
    of_env = (run.algorithm.num_steps + 1) * spec.observation_size * np.dtype(spec.observation_dtype).itemsize
    needed = _shards_of_host(world) * world.shard_size(run.num_envs, "num_envs") * of_env
    free = usable_memory()
    if free is not None and needed > free:
        raise ConfigError(
            f"num_envs={run.num_envs} with num_steps={run.algorithm.num_steps} needs {format_bytes(needed)} of memory "
            f"on this host for the observations of a rollout alone, and {format_bytes(free)} are free; use fewer of "
            "either, or more hosts"
        )


def bytes_of_host(run: Run, spec: EnvSpec, world: World, *, mapped: bool | None = None) -> int:
    """Memory of all replay buffers on this rank's host.

    Args:
        run: the config, of an algorithm with a replay buffer.
        spec: of its environments.
        world: the ranks.
        mapped: exclude observations, which are in mapped files or on devices; default: those in files of the config.
    """
    config = run.algorithm
    assert isinstance(config, ReplayConfig)
    return _shards_of_host(world) * replay_bytes(
        spec,
        world.shard_size(run.num_envs, "num_envs"),
        world.shard_size(config.capacity, "capacity"),
        n_step=config.n_step,
        prioritized=config.prioritized,
        mapped=config.replay_path is not None if mapped is None else mapped,
    )


def _shards_of_host(world: World) -> int:
    """How many shards the ranks of this host have."""
    first = world.rank - world.local_rank
    return sum(len(world.shards_of(rank)) for rank in range(first, first + world.local_size))


def _check_disk(path: Path, wanted: int) -> None:
    """Raise `ConfigError` for a directory that is not writable or has too little space."""
    free = shutil.disk_usage(_nearest_existing(path)).free
    why = _why_not_writable(path) or (f"{format_bytes(free)} are free there" if wanted > free else None)
    if why is None:
        return
    raise ConfigError(
        f"algorithm.replay_path={path} cannot take {format_bytes(wanted)} ({why}); "
        "use another directory or a smaller algorithm.capacity"
    )


def _nearest_existing(path: Path) -> Path:
    """The path if it exists, else its nearest existing parent."""
    return next(folder for folder in (path, *path.absolute().parents) if folder.exists())


def _why_not_writable(path: Path) -> str | None:
    """Why a directory, existing or not, is not writable; `None` if it is."""
    there = _nearest_existing(path)
    if not there.is_dir():
        return f"{there} is a file"
    return None if os.access(there, os.W_OK | os.X_OK) else f"{there} cannot be written to"
