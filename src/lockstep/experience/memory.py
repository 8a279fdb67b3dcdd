"""Memory that a replay buffer needs, compared with the memory that is available."""

from lockstep.envs.spec import EnvSpec
from lockstep.errors import ConfigError
from lockstep.experience.frames import observation_bytes, ring_rows
from lockstep.system.memory import usable_memory

_ROW = 4 + 3  # bytes of a row beside observation and action: reward; age, what followed and validity


def replay_bytes(
    spec: EnvSpec, num_envs: int, capacity: int, *, n_step: int, prioritized: bool, mapped: bool = False
) -> int:
    """Memory of the replay buffer of one shard (`lockstep.experience.replay.Replay`, same arguments).

    `mapped` excludes the observations, which are in a file.
    """
    rows = num_envs * ring_rows(spec, num_envs, capacity, n_step)
    action = 4 * spec.action.width if spec.action.kind == "continuous" else 8 * spec.action.width
    priorities = rows * 8 * 64 // 63 if prioritized else 0  # and the sums above them
    return rows * (action + _ROW) + priorities + (0 if mapped else observation_bytes(spec, rows))


def format_bytes(num_bytes: float) -> str:
    """A readable size: `1.20 GB`, `36.5 MB`."""
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"


def smaller_capacity(capacity: int, share: float, *, num_shards: int, batch_size: int) -> int | None:
    """The largest valid `capacity` of at most this share of it; None if it would be less than a minibatch."""
    fitting = int(capacity * share) // num_shards * num_shards
    return fitting if fitting >= batch_size else None


def check_memory(
    capacity: int, wanted: int, *, copy: int, may_map: bool = True, num_shards: int = 1, batch_size: int = 1
) -> None:
    """Check that the replay buffers of this host fit in memory; called on every rank before any allocates.

    Args:
        capacity: the setting.
        wanted: bytes of all parts on this host, by `replay_bytes`.
        copy: bytes that checkpoints copy before writing: all of these parts, mapped or not, or 0 without them.
        may_map: whether the observations, which take memory, could be in files.
        num_shards: of which a smaller capacity has to be a multiple.
        batch_size: the least capacity.

    Raises:
        ConfigError: they do not fit.
    """
    free, needed = usable_memory(), wanted + copy
    if free is None or needed <= free:
        return
    ways = ["algorithm.checkpoint_replay=false"] if copy and wanted <= free else []
    fitting = smaller_capacity(capacity, free / needed, num_shards=num_shards, batch_size=batch_size)
    if fitting is not None:
        ways.append(f"algorithm.capacity={fitting} or less")
    if may_map:
        ways.append("algorithm.replay_path for files instead" + (", with checkpoint_replay=false" if copy else ""))
    raise ConfigError(
        f"algorithm.capacity={capacity} needs {format_bytes(needed)} of memory on this host"
        f"{' with the copy for checkpoints' if copy else ''}, and {format_bytes(free)} are free; use "
        f"{', or '.join(ways) or 'a machine with more'}"
    )
