"""How numbers cross devices inside compiled code: not at all, over a mesh, or by this process' own messages."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, PartitionSpec, SingleDeviceSharding

from lockstep.distributed.tree import Node, owned_nodes, tree_sum
from lockstep.jax.collectives.callback import Callback
from lockstep.jax.collectives.mesh import AXIS, DeviceMap
from lockstep.jax.collectives.processes import Processes

Tree = Any
Function = Callable[[Tree, Tree], tuple[Tree, Tree]]
_NETWORK = ("Gloo", "gloo", "NCCL", "nccl", "ollective", "imed out", "DEADLINE_EXCEEDED")
Exchange = Callable[[np.ndarray, np.ndarray], None]


class Transport(Protocol):
    """What `Comm` needs of a way, inside compiled code."""

    def compiled(self, function: Function, *, donate: bool) -> Function:
        """The function of whole arrays and own slots, on every device."""
        ...

    def index(self) -> Array:
        """The number of the device that computes, int32."""
        ...

    def gather(self, flat: Array, tag: str) -> Array:
        """The arrays [n] of all devices, [devices, n]."""
        ...

    def sum_slots(self, rows: Array, tag: str) -> Array:
        """The sum [n] along the tree over the shards, of one row in each slot [num_slots, n]."""
        ...


class Alone:
    """One device is the whole world."""

    def __init__(self, places: DeviceMap, device: Any) -> None:
        self._places, self._device = places, device

    def compiled(self, function: Function, *, donate: bool) -> Function:
        """Compiled for the only device."""
        return _on_one_device(function, self._device, donate=donate)

    def index(self) -> Array:
        """It is the first."""
        return jnp.zeros((), jnp.int32)

    def gather(self, flat: Array, tag: str) -> Array:
        """What it has."""
        return flat[None]

    def sum_slots(self, rows: Array, tag: str) -> Array:
        """The sum of its own shards."""
        return total([dict(_slot_nodes(self._places.shards[0], rows))], self._places.num_shards)


class OverMesh:
    """Devices, of one or more processes, that JAX computes on together."""

    def __init__(self, places: DeviceMap, mesh: Mesh, processes: Processes | None = None) -> None:
        self._places, self._mesh, self._processes = places, mesh, processes

    def compiled(self, function: Function, *, donate: bool) -> Function:
        """One program for all devices; each sees the whole arrays and its own slots."""
        whole, own = PartitionSpec(), PartitionSpec(AXIS)
        # The first output is the same on all devices because its inputs are, which JAX cannot see.
        mapped = jax.shard_map(
            function, mesh=self._mesh, in_specs=(whole, own), out_specs=(whole, own), check_vma=False
        )
        compiled: Function = jax.jit(mapped, donate_argnums=(0,) if donate else ())
        return compiled if self._processes is None else _watched(compiled, self._processes, function)

    def index(self) -> Array:
        """Its place on the axis."""
        return lax.axis_index(AXIS)

    def gather(self, flat: Array, tag: str) -> Array:
        """By the backend."""
        return cast(Array, lax.all_gather(flat, AXIS))

    def sum_slots(self, rows: Array, tag: str) -> Array:
        """Each device sums what it can alone where all take the same steps; everyone finishes the tree."""
        nodes = self._places.nodes
        if nodes is None:
            every = self.gather(rows.reshape(-1), tag).reshape(-1, *rows.shape)
            known = [dict(_slot_nodes(held, every[device])) for device, held in enumerate(self._places.shards)]
            return total(known, self._places.num_shards)
        leaves = dict(_slot_nodes(self._places.shards[0], rows))  # all devices alike: as if it were the first
        mine = jnp.stack([tree_sum(leaves, node, jnp.add) for node in nodes[0]])
        every = self.gather(mine.reshape(-1), tag).reshape(-1, *mine.shape)
        known = [dict(zip(own, every[device], strict=True)) for device, own in enumerate(nodes)]
        return total(known, self._places.num_shards)


def finished(reported: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
    """The arrays, once they are computed."""
    return cast("tuple[Tree, Tree]", jax.block_until_ready(reported))


def _on_one_device(function: Function, device: Any, *, donate: bool) -> Function:
    """Compiled once for host arrays and for those on the device: without shardings JAX would compile for each."""
    place = SingleDeviceSharding(device)
    return jax.jit(function, in_shardings=place, donate_argnums=(0,) if donate else ())


def _watched(compiled: Function, processes: Processes, function: Function) -> Function:
    """Calls that tell other processes where this one is, and whose errors name who has ended."""
    tag = getattr(function, "__name__", "spread")

    def call(shared: Tree, own: Tree) -> tuple[Tree, Tree]:
        with processes.entered(tag), processes.waiting():
            try:
                return finished(compiled(shared, own))
            except (RuntimeError, ValueError) as error:  # JAX raises either
                if not any(sign in str(error) for sign in _NETWORK):
                    raise
                raise processes.lost(tag, error) from error

    return call


class ThroughProcesses:
    """CPU devices of one or more processes, each process by itself; between processes go its own messages.

    The additions are those of the tree, in numpy. Each use in a function has a tag of its own, so that two ranks whose
    compilers chose another order are told apart.
    """

    def __init__(self, places: DeviceMap, mesh: Mesh | None, device: Any, processes: Processes) -> None:
        self._places, self._device, self._processes = places, device, processes
        self._local = None if mesh is None else OverMesh(places, mesh)
        self._mesh = mesh
        first, last = places.shards[places.own.start], places.shards[places.own[-1]]
        self._held = range(first.start, last.stop)
        self._gates: list[CollectiveCall] = []
        self._uses: Counter[str] = Counter()

    def compiled(self, function: Function, *, donate: bool) -> Function:
        """Compiled for this process; an error of a collective is raised as it is."""

        def counted(shared: Tree, own: Tree) -> tuple[Tree, Tree]:
            self._uses.clear()
            return function(shared, own)

        counted.__name__ = getattr(function, "__name__", "spread")
        if self._local is None:
            compiled = _on_one_device(counted, self._device, donate=donate)
        else:
            compiled = self._local.compiled(counted, donate=donate)

        def call(shared: Tree, own: Tree) -> tuple[Tree, Tree]:
            try:
                # What runs on would meet the others at the same time as what this process sends next.
                return finished(compiled(shared, own))
            except (RuntimeError, ValueError) as error:  # JAX raises either
                for call in self._gates:
                    cause = call.error
                    if cause is not None:
                        raise cause from error
                raise
            finally:
                for call in self._gates:
                    self._processes.num_messages[call.tag] += call.taken()

        return call

    def index(self) -> Array:
        """Its number among all devices of the world."""
        first = jnp.full((), self._places.own.start, jnp.int32)
        return first if self._local is None else first + self._local.index()

    def gather(self, flat: Array, tag: str) -> Array:
        """By a message of each process, with the arrays of all its devices."""
        own = flat[None] if self._local is None else self._local.gather(flat, tag)
        reported = self._tag(tag)

        def exchange(value: np.ndarray, out: np.ndarray) -> None:
            np.copyto(out, self._processes.gather(value.reshape(-1), reported).reshape(out.shape))

        return self._call(exchange, reported)(own, (len(self._places.shards), *flat.shape))

    def sum_slots(self, rows: Array, tag: str) -> Array:
        """By a message of each process, with what it can sum alone."""
        if self._local is None:
            known = rows[: len(self._held)]
        else:
            every = self._local.gather(rows.reshape(-1), tag).reshape(-1, *rows.shape)
            held = [self._places.shards[device] for device in self._places.own]
            known = jnp.concatenate([every[device, : len(own)] for device, own in enumerate(held)])
        parts = lax.optimization_barrier(jnp.stack(own_sums(self._held, self._places.num_shards, known)))
        reported = self._tag(tag)

        def exchange(value: np.ndarray, out: np.ndarray) -> None:
            np.copyto(out, self._processes.sum(list(value), reported))

        call = self._call(exchange, reported)
        if self._local is None and parts.dtype == jnp.float32:
            call.use_native(self._processes, parts[0].size)
        return call(parts, rows.shape[1:])

    def _tag(self, tag: str) -> str:
        self._uses[tag] += 1
        return tag if self._uses[tag] == 1 else f"{tag} ({self._uses[tag]})"

    def _call(self, exchange: Exchange, tag: str) -> "CollectiveCall":
        call = CollectiveCall(exchange, tag, len(self._places.own))
        self._gates.append(call)
        return call


class CollectiveCall:
    """One use of a collective in a compiled function.

    Its threads, one per device, come with equal values, and one of them speaks for all.

    Args:
        exchange: fills the output of the process from its input.
        tag: its name.
        count: threads.
    """

    def __init__(self, exchange: Exchange, tag: str, count: int) -> None:
        self.tag = tag
        self._exchange, self._count = exchange, count
        self._ready = threading.Condition()
        self._waiting: list[np.ndarray] = []
        self._callback = Callback("exchange", exchange if count == 1 else self._meet)
        self._failure: BaseException | None = None

    @property
    def error(self) -> BaseException | None:
        """What the exchange raised, if it did."""
        return self._failure or self._callback.error

    def use_native(self, processes: Processes, length: int) -> None:
        """Let C make the exchange, a sum of `length` numbers by the only thread, where it can."""
        in_c = processes.sum_in_c(length, self.tag)
        if in_c is not None:
            self._callback.use_native(*in_c)

    def taken(self) -> int:
        """How many exchanges C has made since this was last asked."""
        return self._callback.taken()

    def __call__(self, value: Array, shape: tuple[int, ...]) -> Array:
        """The output [*shape]; inside compiled code."""
        return self._callback(value, shape)

    def _meet(self, value: np.ndarray, out: np.ndarray) -> None:
        """The last thread to come makes the exchange, and fills the outputs of all."""
        with self._ready:
            mine = self._waiting
            mine.append(out)
            if len(mine) < self._count:
                self._ready.wait_for(lambda: mine is not self._waiting)
                if self._failure is not None:
                    raise self._failure
                return
            try:
                self._exchange(value, out)
                for other in mine[:-1]:
                    np.copyto(other, out)
            except BaseException as error:
                self._failure = error
                raise
            finally:
                self._waiting = []
                self._ready.notify_all()


def total(known: Sequence[Mapping[Node, Array]], num_shards: int) -> Array:
    """The sum of all shards, from sums at nodes that each device knows."""
    values = {node: value for one in known for node, value in one.items()}
    return tree_sum(values, (0, num_shards), jnp.add)


def own_sums(held: range, num_shards: int, rows: Array) -> list[Array]:
    """What a device can sum alone, from one row for each of its shards."""
    leaves = dict(_slot_nodes(held, rows))
    return [tree_sum(leaves, node, jnp.add) for node in owned_nodes(held, num_shards)]


def _slot_nodes(held: range, rows: Array) -> list[tuple[Node, Array]]:
    return [((shard, shard + 1), rows[slot]) for slot, shard in enumerate(held)]
