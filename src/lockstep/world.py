"""The process group as a value (`World`), the shards of each rank, and random streams.

A `World` opens no connection.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from lockstep.errors import WHAT_SHARDS_ARE, ConfigError
from lockstep.system.launchers import rank_fields

_MIN_EXACT_ENVS = 4
_LARGEST_PORT = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """All ranks of a run, as seen by one of them.

    Works inside any launcher (`World.from_environment()`) and inside your own processes
    (`World(rank=rank, size=4, address="127.0.0.1", port=29500)`).
    """

    rank: int = 0
    """Index of this learner process over all hosts, from 0 to `size - 1`."""
    size: int = 1
    """Number of learner processes: ranks in torch; in JAX each drives `devices_per_process` devices, one rank each."""
    local_rank: int = -1
    """Index of this process on its host; selects the device. Default: `rank`."""
    local_size: int = -1
    """Number of processes on this host. Default: `size`."""
    node_rank: int = 0
    """Index of this host."""
    address: str = "127.0.0.1"
    """Address of rank 0."""
    port: int = 0
    """Port of the rendezvous at `address`; needed only when `size > 1`."""
    init_file: str = ""
    """A file on a shared file system in which rank 0 publishes its address, instead of `address` and `port`."""
    token: str = field(default="", repr=False)
    """Secret shared by the ranks of this run; connections without it are refused."""
    num_shards: int = 0
    """Number of shards of the run. Default: `size`."""
    pinned: bool = False
    """Whether the user fixed `num_shards`, and with it every bit of the result."""
    launcher: str = "none"
    """The program that started this process, `none` without one."""

    def __post_init__(self) -> None:
        """Fill the defaults that depend on other fields, and validate."""
        for name, default in (("local_rank", self.rank), ("local_size", self.size)):
            if getattr(self, name) == -1:
                object.__setattr__(self, name, default)
        if self.num_shards == 0:
            object.__setattr__(self, "num_shards", self.size)
        if self.size < 1 or not 0 <= self.rank < self.size:
            raise ConfigError(f"rank={self.rank} does not exist in a world of size={self.size}; ranks count from 0")
        if not 0 <= self.local_rank < self.local_size <= self.size:
            raise ConfigError(
                f"local_rank={self.local_rank}, local_size={self.local_size} do not fit a world of size={self.size}; "
                "the local rank counts the processes of one host from 0"
            )
        if not 0 <= self.port <= _LARGEST_PORT:
            raise ConfigError(
                f"port={self.port} is not a port; use a number from 1024 to {_LARGEST_PORT} "
                "(in MASTER_PORT, or World(port=...))"
            )
        if self.num_shards < self.size:
            raise ConfigError(
                f"num_shards={self.num_shards} is fewer than the {self.size} ranks; use --ranks {self.num_shards} "
                f"or --set num_shards={self.size} ({WHAT_SHARDS_ARE})"
            )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "World":
        """The world that a launcher describes in environment variables; a world of one without a launcher.

        Reads the variables of torchrun (ours are the same), launchers of JAX scripts, Open MPI, MPICH and SLURM.
        """
        fields = rank_fields(environment)
        return cls() if fields is None else cls(**fields)

    def with_shards(self, num_shards: int | None) -> "World":
        """The same world with `num_shards` pinned shards; `None`: one shard per rank, not pinned."""
        return replace(self, num_shards=num_shards or self.size, pinned=num_shards is not None)

    @property
    def shards(self) -> range:
        """The shards of this rank: a contiguous block; sizes differ by at most one between ranks."""
        return self.shards_of(self.rank)

    def shards_of(self, rank: int) -> range:
        """The shards of `rank`."""
        return block(self.num_shards, self.size, rank)

    def shard_size(self, total: int, name: str) -> int:
        """The part of one shard in a global count; `ConfigError`, which names the setting, if it does not divide."""
        return part_of_shard(total, self.num_shards, name)

    def shard_warnings(self, shard_envs: int) -> list[str]:
        """Warnings about a run with `shard_envs` environments in a shard, one line each."""
        found: list[str] = []
        if self.pinned and shard_envs < _MIN_EXACT_ENVS:
            found.append(
                f"{shard_envs} environment{'s' * (shard_envs != 1)} in a shard: kernels for fewer than "
                f"{_MIN_EXACT_ENVS} rows may give other bits in another version of a library; use num_envs >= "
                f"{_MIN_EXACT_ENVS * self.num_shards} or fewer shards"
            )
        if self.num_shards % self.size:
            found.append(
                f"{self.num_shards} shards do not divide among {self.size} ranks: some ranks do more work than others"
            )
        return found

    def share(self, total: int, name: str = "total") -> int:
        """The part of this rank in a global count: that of all its shards."""
        return self.shard_size(total, name) * len(self.shards)


def part_of_shard(total: int, num_shards: int, name: str) -> int:
    """The part of one shard in a global count.

    Raises:
        ConfigError: it does not divide among the shards; the message names the setting and the nearest numbers that do.
    """
    part, left = divmod(total, num_shards)
    if left or not part:
        use = f"{part * num_shards} or {(part + 1) * num_shards}" if part else str(num_shards)
        raise ConfigError(f"{name}={total} does not divide among {num_shards} shards; use {use} ({WHAT_SHARDS_ARE})")
    return part


def block(total: int, parts: int, index: int) -> range:
    """The `index`-th of `parts` contiguous blocks of `range(total)`; the first ones are longer by one if needed."""
    size, rest = divmod(total, parts)
    start = index * size + min(index, rest)
    return range(start, start + size + (index < rest))


def stream(seed: int, name: str, index: int = 0) -> np.random.Generator:
    """An independent random stream for a purpose (`name`), never keyed by rank.

    Counter-based (Philox; Salmon et al., 2011): streams of different `(seed, name, index)` do not overlap, and a stream
    does not depend on the rank that holds its shard.

    Args:
        seed: of the run.
        name: the purpose of the stream.
        index: a shard, or the global index of an environment.
    """
    digest = hashlib.blake2b(f"{seed}/{name}/{index}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


def stream_seed(seed: int, name: str, index: int = 0) -> int:
    """A 31-bit seed for libraries that take a number, from the same key space as `stream`."""
    digest = hashlib.blake2b(f"{seed}/{name}/{index}/seed".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") & 0x7FFFFFFF


def env_seeds(seed: int, name: str, shard: int, size: int) -> list[int]:
    """The seeds of a shard's `size` environments, each by its global index.

    Args:
        seed: of the run.
        name: the purpose, as of `stream`.
        shard: index of the shard.
        size: environments of each shard.
    """
    return [stream_seed(seed, name, shard * size + i) for i in range(size)]
