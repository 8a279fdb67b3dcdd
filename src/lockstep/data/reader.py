"""Global batches of prepared data. Their order depends on seed and epoch, not on the number of ranks.

Each epoch has a new permutation of all rows. Batch b of an epoch is rows [b * B, (b + 1) * B) of it; shard k of S takes
every S-th of them, from the k-th. All ranks read the same number of batches, and together every row once per epoch.
The last batch is padded with rows of weight 0.

Shapes: B rows of a global batch, N = B / S rows of a shard's part, K shards of this rank, W batches read at once.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from lockstep.data.columns import Index
from lockstep.data.dataset import Dataset
from lockstep.data.layout import Layout
from lockstep.data.permutation import ROUNDS, Permutation
from lockstep.data.rows import Rows
from lockstep.distributed.fingerprint import combine, digest
from lockstep.errors import ConfigError
from lockstep.world import World, stream

_PREFETCH_BYTES = 1 << 23
_PREFETCH_ROWS = 1 << 14
_OLD_ROUNDS = 6
"""Rounds of the permutation in checkpoints that do not name them."""


class NoEpisodes:
    """Empty episode statistics of a shard."""

    def __init__(self) -> None:
        self.returns, self.lengths = np.zeros(0), np.zeros(0)


class Reader:
    """The batches of all epochs. Every rank iterates in the same order and reads the rows of its shards.

    Where nodes hold different parts of the data (`Layout.kind` is `split`), each node permutes its own rows, and its
    shards read them. A node that has read all its rows pads with weight 0 until the largest node has read its own.
    `n_step` and `gamma` as `Dataset.rows`.

    Attributes:
        epoch: of the next batch, from 0; `epochs` at the end.
        batch: the next one of the epoch.
        rows_per_epoch: distinct rows of all nodes.
        batches_per_epoch: global batches.
        total_rows: in all epochs.
        warnings: for the user, one line each.
        episodes: none, for each local shard.
        fingerprints: of the rows of each local shard in the first batch that was read.

    Raises:
        ConfigError: there are fewer rows than shards, or the batch does not divide among the shards.
    """

    def __init__(  # noqa: PLR0913  # all by keyword
        self,
        dataset: Dataset,
        world: World,
        layout: Layout,
        *,
        batch_size: int,
        seed: int,
        epochs: int,
        n_step: int = 1,
        gamma: float = 1.0,
    ) -> None:
        self._dataset = dataset
        self._layout = layout
        self._batch_size = batch_size
        self._seed = seed
        self._epochs = epochs
        self._n_step = n_step
        self._gamma = gamma
        self._size = world.shard_size(batch_size, "batch_size")
        self._partitions = _partitions(dataset, world, layout)
        self._partition = self._partitions[layout.node if layout.kind == "split" else 0]
        self._positions = [self._partition.shards.index(shard) for shard in world.shards]
        """Index of each local shard among the shards of its partition."""
        self.rows_per_epoch = layout.num_rows
        self.batches_per_epoch = max(
            -(-partition.rows // (self._size * len(partition.shards))) for partition in self._partitions
        )
        self.total_rows = epochs * self.rows_per_epoch
        self.epoch, self.batch = 0, 0
        self.episodes = [NoEpisodes() for _ in world.shards]
        self.warnings = _warnings(layout, batch_size)
        self.fingerprints: list[str] = []
        wanted = min(_PREFETCH_BYTES // max(dataset.row_bytes, 1), _PREFETCH_ROWS) // (self._size * len(world.shards))
        self._batches_per_read = max(wanted, 1)
        self._prefetched: list[list[Rows]] = []
        self._order: Permutation | None = None
        self._rounds = ROUNDS

    @property
    def finished(self) -> bool:
        """Whether all epochs have been read."""
        return self.epoch >= self._epochs

    def next(self) -> tuple[list[Rows], int]:
        """The next global batch.

        Returns:
            Its part [N] for each local shard; and how many of its rows are real, on all ranks together.
        """
        if self.finished:
            raise ValueError(f"all {self._epochs} epochs have been read")
        if not self._prefetched:
            self._prefetched = self._read()
        parts = self._prefetched.pop(0)
        real = sum(partition.real(self.batch, self._size) for partition in self._partitions)
        self.batch += 1
        if self.batch == self.batches_per_epoch:
            self._seek(self.epoch + 1, 0)
        return parts, real

    def fingerprint(self) -> str:
        """Fingerprint of the real rows of the first batch that this rank read. It must differ between ranks."""
        return combine(self.fingerprints)

    def shard_state(self, k: int) -> dict[str, Any]:
        """Position in the data and identity of the data; the same for every local shard `k`."""
        return {"epoch": self.epoch, "batch": self.batch, "rounds": self._rounds, **self._identity()}

    def restore_shard(self, k: int, state: Mapping[str, Any], step: int) -> bool:
        """Continue exactly at a position from `shard_state`.

        Raises:
            ConfigError: the state is of other data or another batch size.
        """
        for name, value in self._identity().items():
            before = state.get(name, value)  # earlier versions wrote fewer names
            if before != value:
                raise ConfigError(
                    f"the checkpoint was taken in the middle of other batches: {name} was {before} and is now "
                    f"{value}; resume with the data and settings of the run, or begin a new one with --init-from"
                )
        self._rounds = int(state.get("rounds", _OLD_ROUNDS))
        self._seek(int(state["epoch"]), int(state["batch"]))
        return True

    def _identity(self) -> dict[str, Any]:
        """Everything that determines the contents of the batches."""
        partition = (
            {} if self._layout.kind == "same" else {"shards of the machines": [d.shards for d in self._partitions]}
        )
        return {
            "data": self._layout.digest,
            "normalization": self._dataset.features_digest,
            "options": self._dataset.info.rules.get("options"),
            "rows": self.rows_per_epoch,
            "batch_size": self._batch_size,
            "seed": self._seed,
        } | partition

    def _seek(self, epoch: int, batch: int) -> None:
        self.epoch, self.batch = epoch, batch
        self._prefetched, self._order = [], None

    def _read(self) -> list[list[Rows]]:
        """Gather the parts of local shards for the next few batches of this epoch."""
        if self._order is None:
            name = "epoch" if self._layout.kind == "same" else f"epoch of node {self._layout.node}"
            self._order = Permutation(self._partition.rows, stream(self._seed, name, self.epoch), self._rounds)
        count = min(self._batches_per_read, self.batches_per_epoch - self.batch)
        place = self._order_positions(self.batch, count)
        padding = place >= self._partition.rows
        index = np.zeros(len(place), np.int64)
        index[~padding] = self._order(place[~padding])
        rows = self._dataset.rows(index, n_step=self._n_step, gamma=self._gamma)
        rows.weight[padding] = 0
        if not self.fingerprints:
            self.fingerprints = [self._fingerprint_of(k, rows, self._order) for k in range(len(self._positions))]
        starts = np.arange(count * len(self._positions)).reshape(count, -1) * self._size
        return [[rows.between(start, start + self._size) for start in batch.tolist()] for batch in starts]

    def _order_positions(self, first: int, count: int) -> Index:
        """Positions in the permutation [W * K * N] of the rows of `count` batches: by batch, then by shard."""
        shards = len(self._partition.shards)
        batch = np.arange(first, first + count, dtype=np.int64)[:, None, None] * (self._size * shards)
        return (batch + np.array(self._positions)[:, None] + np.arange(self._size) * shards).ravel()

    def _fingerprint_of(self, k: int, rows: Rows, order: Permutation) -> str:
        """Fingerprint of the real rows of local shard `k` in the first batch; if all are padding, of one of the epoch.

        Keys are included: rows of other ranks may hold equal numbers.
        """
        own = slice(k * self._size, (k + 1) * self._size)
        real = rows.index[own][rows.weight[own] > 0]
        shown = real if len(real) else order(np.array(self._positions[k : k + 1], np.int64))
        return combine([digest(self._dataset.column("key")[shown]), digest(self._dataset.column("state")[shown])])


class _Partition:
    """Rows that a group of shards reads: all rows, or those of one node."""

    def __init__(self, rows: int, shards: list[int]) -> None:
        self.rows, self.shards = rows, shards

    def real(self, batch: int, size: int) -> int:
        """Number of rows of a batch that are not padding, with `size` rows per shard."""
        whole = size * len(self.shards)
        return min(max(self.rows - batch * whole, 0), whole)


def _partitions(dataset: Dataset, world: World, layout: Layout) -> list[_Partition]:
    if layout.kind == "same":
        partitions = [_Partition(layout.num_rows, list(range(world.num_shards)))]
    else:
        partitions = [_Partition(n, layout.shards_of_node(node, world)) for node, n in enumerate(layout.rows_of_node)]
    for node, partition in enumerate(partitions):
        if partition.rows < len(partition.shards):
            where = f"data={dataset.path}" + (f" of node {node}" if layout.kind == "split" else "")
            what = "shards (num_shards)" if world.num_shards > world.size else "ranks"
            raise ConfigError(
                f"{where} holds {partition.rows} rows for {len(partition.shards)} shards ({world.size} "
                f"rank{'s' if world.size > 1 else ''}); use at most {max(partition.rows, 1)} {what}, or more data"
            )
    return partitions


def _warnings(layout: Layout, batch_size: int) -> list[str]:
    found: list[str] = []
    if batch_size > layout.num_rows:
        found.append(
            f"batch_size={batch_size} is more than the {layout.num_rows} rows that there are: every batch is an epoch "
            "and is filled up with padding"
        )
    if layout.kind == "split":
        found.append(
            "every machine holds its own part of the data: batches, and so results, depend on how many machines there "
            "are"
        )
    return found
