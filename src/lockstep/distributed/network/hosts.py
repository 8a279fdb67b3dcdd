"""Collectives of CPU ranks: shared memory within a host, one message between every two hosts.

Within a host every rank writes the sums over its own subtrees; the first rank finishes the subtrees of the host's block
of shards, sends these to the first ranks of the other hosts and writes theirs into the host's memory. All finish the
same tree: the bits are those of one host. A rank whose memory the others of its host cannot open counts as a host.

Between few hosts, and for small buffers, every host sends its sums to every other: half a round trip. A large buffer
among three or more hosts is reduced in slices (reduce-scatter, then all-gather): each host sums one slice along the
same tree, and sends the result to all. That takes a whole round trip, but moves 2 buffers per host instead of one per
other host. Ranks of a single host share the work on a large buffer likewise: each sums one slice, and all read it.
"""

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, cast

import numpy as np

from lockstep.distributed.network.links import Links, in_slices
from lockstep.distributed.network.slots import Slots
from lockstep.distributed.signature import message_signature
from lockstep.distributed.timers import WAIT, Timers
from lockstep.distributed.tree import Node, owned_nodes, tree_sum
from lockstep.errors import RunError
from lockstep.world import World, block

Add = Callable[[np.ndarray, np.ndarray], np.ndarray]
_LARGE = 1 << 22
"""Bytes saved from which on summing in slices, with one more barrier, is faster for the ranks of one host."""
_PIECE = 1 << 18
"""Numbers summed at a time, so that intermediate sums stay in the cache."""


@dataclass(frozen=True, slots=True)
class Host:
    """Ranks that share memory."""

    name: str
    ranks: range

    def __str__(self) -> str:
        first, last = self.ranks[0], self.ranks[-1]
        return f"host {self.name} ({f'rank {first}' if first == last else f'ranks {first}-{last}'})"


class Hosts:
    """The exact collectives of arrays: sums in tree order, gather and broadcast.

    `slots` is the memory of this host, None where it has one rank; `links` lead from the first rank of a host to the
    other hosts, if there are any.
    """

    def __init__(
        self,
        world: World,
        hosts: Sequence[Host],
        slots: Slots | None,
        links: Links | None,
        timers: Timers,
        num_messages: Counter[str],
    ) -> None:
        self._world = world
        self._hosts = hosts
        self._slots = slots
        self._links = links
        self._timers = timers
        self._num_messages = num_messages
        self._mine = next(number for number, host in enumerate(hosts) if world.rank in host.ranks)
        self._own_nodes = owned_nodes(world.shards, world.num_shards)
        self._nodes_here = [
            node for rank in hosts[self._mine].ranks for node in owned_nodes(world.shards_of(rank), world.num_shards)
        ]
        shards = [range(world.shards_of(h.ranks[0]).start, world.shards_of(h.ranks[-1]).stop) for h in hosts]
        self._nodes_of_hosts = [owned_nodes(held, world.num_shards) for held in shards]
        self._bounds = list(accumulate((len(nodes) for nodes in self._nodes_of_hosts), initial=0))
        self._announced = False

    @property
    def has_other_hosts(self) -> bool:
        """Whether there is any host but this one."""
        return len(self._hosts) > 1

    def shared_by(self, size: int) -> tuple[Slots, Sequence[Node], Sequence[Node]] | None:
        """The memory, the tree nodes that have a row in it, and those of this rank, for a sum of `size` bytes.

        None unless `exchange` only writes, waits for all ranks, and lets each add by itself.
        """
        if self.has_other_hosts or self._slots is None or not self._sums_on_every_rank(size):
            return None
        return self._slots, self._nodes_here, self._own_nodes

    def _sums_on_every_rank(self, size: int) -> bool:
        return (len(self._nodes_here) - 1) * size < _LARGE

    def exchange(self, parts: Sequence[np.ndarray], tag: str, add: Add, layout: int = 0) -> Mapping[Node, np.ndarray]:
        """From this rank's sum at each of its tree nodes, sums at nodes that make up the tree, equal on all ranks.

        The arrays may be in shared memory: read them before the next exchange. Ranks compare the `layout_code`.
        """
        length, dtype = parts[0].size, parts[0].dtype
        size, root = length * dtype.itemsize, (0, self._world.num_shards)
        signature = message_signature(size, dtype, layout)
        num_here = len(self._nodes_here)
        num_of_hosts = self._bounds[-1] if self.has_other_hosts else 0
        table = self._table(num_here + num_of_hosts + 1, length, dtype, tag)
        values_here = dict(zip(self._nodes_here, table, strict=False))
        for node, part in zip(self._own_nodes, parts, strict=True):
            np.copyto(values_here[node], part)
        self._wait_for_local_ranks(tag, signature)
        if not self.has_other_hosts:
            if self._sums_on_every_rank(size):
                return values_here
            self._sum_slice(values_here, table[0], tag, add)
            return {root: table[0]}
        rows, total = table[num_here:-1], table[-1]
        slices = in_slices(len(self._hosts), size)

        def exchange_with_hosts(links: Links) -> None:
            start = self._bounds[self._mine]
            for row, node in enumerate(self._nodes_of_hosts[self._mine], start):
                np.copyto(rows[row], tree_sum(values_here, node, add))
            if slices:
                self._reduce_in_slices(links, rows, total, tag, add, signature)
            else:
                self._exchange_rows(links, rows, self._bounds, tag, signature)

        self._between_hosts(exchange_with_hosts, tag)
        if slices:
            return {root: total}
        return dict(zip((node for nodes in self._nodes_of_hosts for node in nodes), rows, strict=True))

    def _sum_slice(self, values: Mapping[Node, np.ndarray], total: np.ndarray, tag: str, add: Add) -> None:
        """Sum this rank's slice of columns for all ranks of the only host, and wait for their slices.

        `total` may be one of the rows: no other rank reads their columns of this slice.
        """
        ranks = self._hosts[self._mine].ranks
        own = block(len(total), len(ranks), self._world.rank - ranks.start)
        for start in range(own.start, own.stop, _PIECE):
            piece = slice(start, min(start + _PIECE, own.stop))
            parts = {node: row[piece] for node, row in values.items()}
            np.copyto(total[piece], tree_sum(parts, (0, self._world.num_shards), add))
        self._wait_for_local_ranks(tag, message_signature(total.nbytes, total.dtype), messages=0)

    def gather(self, flat: np.ndarray, tag: str, layout: int = 0) -> np.ndarray:
        """The arrays [n] of all ranks, [size, n]."""
        signature = message_signature(flat.nbytes, flat.dtype, layout)
        table = self._table(self._world.size, flat.size, flat.dtype, tag)
        np.copyto(table[self._world.rank], flat)
        self._wait_for_local_ranks(tag, signature)
        bounds = [host.ranks.start for host in self._hosts] + [self._world.size]
        self._between_hosts(lambda links: self._exchange_rows(links, table, bounds, tag, signature), tag)
        return table.copy()

    def broadcast(self, flat: np.ndarray, source: int, tag: str, dtype: str, layout: int = 0) -> None:
        """Broadcast the array of rank `source`, in place; `dtype` is the type of the numbers in its bytes."""
        signature = message_signature(flat.nbytes, dtype, layout)
        table = self._table(1, flat.size, flat.dtype, tag)
        if self._world.rank == source:
            np.copyto(table[0], flat)
        self._wait_for_local_ranks(tag, signature)
        bounds = [int(source < host.ranks.start) for host in self._hosts] + [1]  # one row, sent by the host of `source`
        self._between_hosts(lambda links: self._exchange_rows(links, table, bounds, tag, signature), tag)
        np.copyto(flat, table[0])

    def close(self, error: BaseException | None) -> None:
        """Close the connections, after sending an error to the other hosts."""
        if self._links is not None:
            if error is not None:
                what = f"{type(error).__name__}: {' '.join(str(error).split())}"
                self._announce_to_all(f"rank {self._world.rank} on {self._hosts[self._mine]} failed: {what}")
            self._links.close()

    def announce_failure(self, reason: str) -> None:
        """Send the other hosts, once, why this rank exits, if it is the first of its host. From any thread."""
        if self._links is not None and not self._announced:
            self._announced = True
            self._links.send_failure(reason)

    def _announce_to_all(self, reason: str) -> None:
        if self._links is not None and self._slots is not None and not self._announced:
            self._slots.announce_failure(reason)
        self.announce_failure(reason)

    def _table(self, rows: int, length: int, dtype: np.dtype[Any], tag: str) -> np.ndarray:
        if self._slots is None:
            return np.empty((rows, length), dtype)
        with self._announced_failures():
            return self._slots.table(rows, length, dtype, tag)

    def _wait_for_local_ranks(self, tag: str, signature: int, messages: int = 1) -> None:
        """Wait until all ranks of this host have written their part of a message with this signature."""
        self._num_messages[tag] += messages
        if self._slots is not None:
            with self._announced_failures():
                self._slots.wait_for_all(tag, signature)

    @contextmanager
    def _announced_failures(self) -> Generator[None]:
        """Send an error that ends this rank to the other hosts."""
        try:
            yield
        except RunError as error:
            self._announce_to_all(str(error))
            raise

    def _between_hosts(self, exchange: Callable[[Links], None], tag: str) -> None:
        """Have the first rank of this host exchange with other hosts while the other ranks wait."""
        if not self.has_other_hosts:
            return
        if self._links is None:
            if self._slots is not None:
                self._slots.wait_for_first(tag)
            return
        with self._announced_failures():
            exchange(self._links)
        if self._slots is not None:
            self._slots.publish_from_hosts()

    def _exchange_rows(self, links: Links, rows: np.ndarray, bounds: Sequence[int], tag: str, signature: int) -> None:
        ranges = dict(enumerate(pairwise(bounds)))
        low, high = ranges.pop(self._mine)
        mine = _bytes(rows[low:high])
        theirs = {host: _bytes(rows[first:last]) for host, (first, last) in ranges.items()}
        self._exchange(links, dict.fromkeys(ranges, mine), theirs, tag, signature)

    def _reduce_in_slices(
        self, links: Links, rows: np.ndarray, total: np.ndarray, tag: str, add: Add, signature: int
    ) -> None:
        """Sum one slice of columns of all hosts here, send the sum to all, and receive the sums of the other slices."""
        columns = [block(len(total), len(self._hosts), host) for host in range(len(self._hosts))]
        ranges = list(pairwise(self._bounds))
        own, (first, last) = columns[self._mine], ranges[self._mine]
        others = [host for host in range(len(self._hosts)) if host != self._mine]
        values = np.ascontiguousarray(rows[:, own.start : own.stop])
        self._exchange(
            links,
            {
                host: _bytes(np.ascontiguousarray(rows[first:last, columns[host].start : columns[host].stop]))
                for host in others
            },
            {host: _bytes(values[slice(*ranges[host])]) for host in others},
            tag,
            signature,
        )
        nodes = [node for nodes in self._nodes_of_hosts for node in nodes]
        summed = tree_sum(dict(zip(nodes, values, strict=True)), (0, self._world.num_shards), add)
        total[own.start : own.stop] = summed
        mine = _bytes(summed)
        theirs = {host: _bytes(total[columns[host].start : columns[host].stop]) for host in others}
        self._exchange(links, dict.fromkeys(others, mine), theirs, tag, signature)

    def _exchange(
        self,
        links: Links,
        outgoing: Mapping[int, memoryview],
        incoming: Mapping[int, memoryview],
        tag: str,
        signature: int,
    ) -> None:
        previous = self._timers.enter(WAIT)
        links.exchange(outgoing, incoming, tag, signature, self._check_local_ranks)
        self._timers.enter(previous)

    def _check_local_ranks(self) -> None:
        if self._slots is not None:
            self._slots.check(self._slots.index)


def _bytes(array: np.ndarray) -> memoryview:
    return memoryview(cast(Any, array.reshape(-1).view(np.uint8)))
