"""Reading prepared data in global batches: which row comes when is a matter of seed and epoch, not of ranks.

Epoch e orders all rows anew. Batch b of an epoch is rows [b * B, (b + 1) * B) of that order; shard k of S takes every
S-th of them, from the k-th. So all ranks read the same number of batches, and together every row once in an epoch.
What is missing in the last batch is filled up with rows of weight 0.

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

_BYTES_AHEAD = 1 << 23
_ROWS_AHEAD = 1 << 14
_ROUNDS_BEFORE = 6
"""Of the orders that checkpoints without `rounds` were taken in."""


class NoEpisodes:
    """What a shard tells of played episodes: none. Attributes: `returns`, `lengths`, both empty."""

    def __init__(self) -> None:
        self.returns, self.lengths = np.zeros(0), np.zeros(0)


class Reader:
    """The batches of all epochs, one after another; the same on every rank but for the shards it serves.

    Where machines hold parts of their own (`Layout.kind` is `split`), the rows of a machine are ordered anew by
    themselves and read by the shards that live there; a machine that has read all its rows fills up with weight 0
    until the largest has.

    Args:
        dataset: what this machine holds.
        world: whose shards.
        layout: what the machines hold, from `agree`.
        batch_size: B.
        seed: of the order.
        epochs: how often every row is read.
        n_step: see `Dataset.rows`.
        gamma: likewise.

    Attributes:
        epoch: of the next batch, from 0; `epochs` at the end.
        batch: the next one of the epoch.
        rows_per_epoch: different rows, all machines together.
        batches_per_epoch: global batches.
        total_rows: in all epochs.
        warnings: what a user should know, one line each.
        episodes: none, for each local shard.

    Raises:
        ConfigError: there are fewer rows than shards, or the batch does not divide among the shards.
    """

    def __init__(  # noqa: PLR0913  # everything a reader needs, once, by keyword
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
        self._dataset, self._world, self._layout = dataset, world, layout
        self._batch_size, self._seed, self._epochs = batch_size, seed, epochs
        self._n_step, self._gamma = n_step, gamma
        self._size = world.shard_size(batch_size, "batch_size")
        self._deals = _deals(dataset, world, layout)
        self._deal = self._deals[layout.node if layout.kind == "split" else 0]
        self._dealt = [self._deal.shards.index(shard) for shard in world.shards]
        """Which of the shards that read the same rows each local one is."""
        self.rows_per_epoch = layout.num_rows
        self.batches_per_epoch = max(-(-deal.rows // (self._size * len(deal.shards))) for deal in self._deals)
        self.total_rows = epochs * self.rows_per_epoch
        self.epoch, self.batch = 0, 0
        self.episodes = [NoEpisodes() for _ in world.shards]
        self.warnings = _warnings(layout, batch_size)
        self._fingerprint = ""
        wanted = min(_BYTES_AHEAD // max(dataset.row_bytes, 1), _ROWS_AHEAD) // (self._size * len(world.shards))
        self._most_ahead = max(wanted, 1)
        self._ahead: list[list[Rows]] = []
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
        if not self._ahead:
            self._ahead = self._read()
        parts = self._ahead.pop(0)
        real = sum(deal.real(self.batch, self._size) for deal in self._deals)
        self.batch += 1
        if self.batch == self.batches_per_epoch:
            self._go_to(self.epoch + 1, 0)
        return parts, real

    def fingerprint(self) -> str:
        """Of the first batch that was read here: of its real rows and whose they are. Ranks must differ in it."""
        return self._fingerprint

    def shard_state(self, k: int) -> dict[str, Any]:
        """Where reading stands, and of what; the same for every local shard number `k`."""
        return {"epoch": self.epoch, "batch": self.batch, "rounds": self._rounds, **self._identity()}

    def restore_shard(self, k: int, state: Mapping[str, Any], step: int) -> bool:
        """Go on from what `shard_state` told; always exact.

        Raises:
            ConfigError: that was of other data, or of batches of another size, which begin elsewhere.
        """
        for name, value in self._identity().items():
            before = state.get(name, value)  # what an earlier version did not tell counts as the same
            if before != value:
                raise ConfigError(
                    f"the checkpoint was taken in the middle of other batches: {name} was {before} and is now "
                    f"{value}; resume with the data and settings of the run, or begin a new one with --init-from"
                )
        self._rounds = int(state.get("rounds", _ROUNDS_BEFORE))  # orders as the run began with
        self._go_to(int(state["epoch"]), int(state["batch"]))
        return True

    def _identity(self) -> dict[str, Any]:
        """What decides the batches, but for their number."""
        deal = {} if self._layout.kind == "same" else {"shards of the machines": [d.shards for d in self._deals]}
        return {
            "data": self._layout.digest,
            "normalization": self._dataset.features_digest,
            "options": self._dataset.info.rules.get("options"),
            "rows": self.rows_per_epoch,
            "batch_size": self._batch_size,
            "seed": self._seed,
        } | deal

    def _go_to(self, epoch: int, batch: int) -> None:
        self.epoch, self.batch = epoch, batch
        self._ahead, self._order = [], None

    def _read(self) -> list[list[Rows]]:
        """The parts of local shards for the next few batches of this epoch, gathered at once."""
        if self._order is None:
            name = "epoch" if self._layout.kind == "same" else f"epoch of node {self._layout.node}"
            self._order = Permutation(self._deal.rows, stream(self._seed, name, self.epoch), self._rounds)
        count = min(self._most_ahead, self.batches_per_epoch - self.batch)
        place = self._places(self.batch, count)
        padding = place >= self._deal.rows
        index = np.zeros(len(place), np.int64)
        index[~padding] = self._order(place[~padding])
        rows = self._dataset.rows(index, n_step=self._n_step, gamma=self._gamma)
        rows.weight[padding] = 0
        if not self._fingerprint:
            self._fingerprint = self._shown(rows, self._order)
        starts = np.arange(count * len(self._dealt)).reshape(count, -1) * self._size
        return [[rows.between(start, start + self._size) for start in batch.tolist()] for batch in starts]

    def _places(self, first: int, count: int) -> Index:
        """Places in the order [W * K * N] of the rows of `count` batches: by batch, then by shard."""
        shards = len(self._deal.shards)
        batch = np.arange(first, first + count, dtype=np.int64)[:, None, None] * (self._size * shards)
        return (batch + np.array(self._dealt)[:, None] + np.arange(self._size) * shards).ravel()

    def _shown(self, rows: Rows, order: Permutation) -> str:
        """A fingerprint of the real rows of the first batch, or of this epoch's first where a run goes on at padding.

        Their keys count, too: others may hold the same numbers.
        """
        count = self._size * len(self._dealt)
        real = rows.index[:count][rows.weight[:count] > 0]
        shown = real if len(real) else order(np.array(self._dealt, np.int64))
        return combine([digest(self._dataset.column("key")[shown]), digest(self._dataset.column("state")[shown])])


class _Deal:
    """Rows that some shards read together: all there are, or those of one machine."""

    def __init__(self, rows: int, shards: list[int]) -> None:
        self.rows, self.shards = rows, shards

    def real(self, batch: int, size: int) -> int:
        """How many rows of a batch, `size` of each shard, are not padding."""
        whole = size * len(self.shards)
        return min(max(self.rows - batch * whole, 0), whole)


def _deals(dataset: Dataset, world: World, layout: Layout) -> list[_Deal]:
    if layout.kind == "same":
        deals = [_Deal(layout.num_rows, list(range(world.num_shards)))]
    else:
        deals = [_Deal(n, layout.shards_of_node(node, world)) for node, n in enumerate(layout.rows_of_node)]
    for node, deal in enumerate(deals):
        if deal.rows < len(deal.shards):
            where = f"data={dataset.path}" + (f" of node {node}" if layout.kind == "split" else "")
            raise ConfigError(
                f"{where} holds {deal.rows} rows for {len(deal.shards)} shards ({world.size} ranks); use at most "
                f"{max(deal.rows, 1)} ranks, or more data"
            )
    return deals


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
