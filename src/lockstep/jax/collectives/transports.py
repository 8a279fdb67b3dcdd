"""Collectives inside compiled code: none on a single device, JAX's over a mesh, or messages between processes."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, PartitionSpec, SingleDeviceSharding

from lockstep.distributed.tree import Node, owned_nodes, tree_sum
from lockstep.jax.collectives.callback import Callback
from lockstep.jax.collectives.mesh import AXIS, DeviceMap
from lockstep.jax.collectives.processes import Processes
from lockstep.jax.collectives.same_program import LAYOUT_MARK, SameProgram

Tree = Any
Function = Callable[[Tree, Tree], tuple[Tree, Tree]]
Exchange = Callable[[np.ndarray, np.ndarray], None]
_NETWORK_ERRORS = ("Gloo", "gloo", "NCCL", "nccl", "ollective", "imed out", "DEADLINE_EXCEEDED")


class SingleDevice:
    """A world of one device: every collective is the identity."""

    def __init__(self, device_map: DeviceMap, device: Any) -> None:
        self._device_map = device_map
        self._device = device

    def compiled(self, function: Function, *, donate: tuple[int, ...]) -> Function:
        """Compile for the device."""
        return _compile_for_device(function, self._device, donate=donate)

    def index(self) -> Array:
        """0."""
        return jnp.zeros((), jnp.int32)

    def gather(self, flat: Array, tag: str, layout: int = 0) -> Array:
        """The array itself, [1, n]."""
        return flat[None]

    def sum_slots(self, rows: Array, tag: str) -> Array:
        """The sum of the device's shards."""
        return _sum_nodes([_leaves(self._device_map.shards[0], rows)], self._device_map.num_shards)


class MeshTransport:
    """JAX's collectives over a mesh of devices, of one or more processes."""

    def __init__(self, device_map: DeviceMap, mesh: Mesh, processes: Processes | None = None) -> None:
        self._device_map = device_map
        self._mesh = mesh
        self._processes = processes

    def compiled(self, function: Function, *, donate: tuple[int, ...]) -> Function:
        """Compile one SPMD program for all devices."""
        whole, own = PartitionSpec(), PartitionSpec(AXIS)
        # JAX cannot infer that the first output is replicated, hence `check_vma=False`.
        mapped = jax.shard_map(
            function, mesh=self._mesh, in_specs=(whole, own), out_specs=(whole, own), check_vma=False
        )
        compiled = _jit(mapped, donate=donate)
        return compiled if self._processes is None else _attribute_failures(compiled, self._processes, function)

    def index(self) -> Array:
        """The device's index on the mesh axis."""
        return lax.axis_index(AXIS)

    def gather(self, flat: Array, tag: str, layout: int = 0) -> Array:
        """JAX's all-gather; the name of its scope tells other processes the `layout_code` (see `SameProgram`)."""
        with jax.named_scope(f"{tag}{LAYOUT_MARK}{layout}" if layout else tag):
            return cast(Array, lax.all_gather(flat, AXIS))

    def sum_slots(self, rows: Array, tag: str) -> Array:
        """Each device sums its complete subtrees if all run the same program; every device finishes the tree."""
        shards, nodes = self._device_map.shards, self._device_map.nodes
        if nodes is None:
            every = _shaped(self.gather(rows.reshape(-1), tag), rows)
            known = [_leaves(owned, every[device]) for device, owned in enumerate(shards)]
            return _sum_nodes(known, self._device_map.num_shards)
        leaves = _leaves(shards[0], rows)  # the program is traced once, with the numbering of the first device
        partial_sums = jnp.stack([tree_sum(leaves, node, jnp.add) for node in nodes[0]])
        every = _shaped(self.gather(partial_sums.reshape(-1), tag), partial_sums)
        known = [dict(zip(own, every[device], strict=True)) for device, own in enumerate(nodes)]
        return _sum_nodes(known, self._device_map.num_shards)


class ProcessTransport:
    """Messages between processes, each of which compiles for its own CPU devices.

    Sums follow the shard tree, in numpy. Each use in a function takes the output of the use before as an operand, so
    that all compilers keep their order, also within `jax.grad`; a unique tag detects ranks that have another. What a
    loop sends follows what comes before the loop. What comes after it follows it only if it uses one of the loop's
    results: an output within the loop is no operand outside.
    """

    def __init__(self, device_map: DeviceMap, mesh: Mesh | None, device: Any, processes: Processes) -> None:
        self._device_map = device_map
        self._device = device
        self._processes = processes
        self._local = None if mesh is None else MeshTransport(device_map, mesh)
        own_shards = device_map.own_shards
        self._shards = range(own_shards[0].start, own_shards[-1].stop)
        self._calls: list[CollectiveCall] = []
        self._tag_counts: Counter[str] = Counter()
        self._last: dict[Any, Array] = {}
        """The output of the last use of a collective in the function that is traced, and in each loop within it."""

    def compiled(self, function: Function, *, donate: tuple[int, ...]) -> Function:
        """Compile for this process; errors of a collective are raised with their own type."""

        def counted(shared: Tree, own: Tree) -> tuple[Tree, Tree]:
            self._tag_counts.clear()
            self._last.clear()
            try:
                return function(shared, own)
            finally:
                self._last.clear()

        counted.__name__ = getattr(function, "__name__", "spmd")
        if self._local is None:
            compiled = _compile_for_device(counted, self._device, donate=donate)
        else:
            compiled = self._local.compiled(counted, donate=donate)

        def call(shared: Tree, own: Tree) -> tuple[Tree, Tree]:
            self._processes.connected(counted.__name__)
            try:
                # A program still running could send at the same time as this process' next message.
                return block_until_ready(compiled(shared, own))
            except (RuntimeError, ValueError) as error:  # JAX raises either
                for collective in self._calls:
                    cause = collective.error
                    if cause is not None:
                        self._processes.mark_failed(collective.tag)
                        raise cause from error
                raise
            finally:
                for collective in self._calls:
                    self._processes.num_messages[collective.tag] += collective.callback.take_native_calls()

        return call

    def index(self) -> Array:
        """The device's index among all devices of the world."""
        first = jnp.full((), self._device_map.own.start, jnp.int32)
        return first if self._local is None else first + self._local.index()

    def gather(self, flat: Array, tag: str, layout: int = 0) -> Array:
        """One message per process, with the arrays of all its devices; processes compare the `layout_code`."""
        own = flat[None] if self._local is None else self._local.gather(flat, tag)
        unique_tag = self._unique_tag(tag)

        def exchange(value: np.ndarray, out: np.ndarray) -> None:
            np.copyto(out, self._processes.gather(value.reshape(-1), unique_tag, layout).reshape(out.shape))

        return self._in_order(self._call(exchange, unique_tag), own, (len(self._device_map.shards), *flat.shape))

    def sum_slots(self, rows: Array, tag: str) -> Array:
        """One message per process, with the sums of its complete subtrees."""
        if self._local is None:
            known = rows[: len(self._shards)]
        else:
            every = _shaped(self._local.gather(rows.reshape(-1), tag), rows)
            own_shards = enumerate(self._device_map.own_shards)
            known = jnp.concatenate([every[device, : len(shards)] for device, shards in own_shards])
        leaves, nodes = _leaves(self._shards, known), owned_nodes(self._shards, self._device_map.num_shards)
        parts = lax.optimization_barrier(jnp.stack([tree_sum(leaves, node, jnp.add) for node in nodes]))
        unique_tag = self._unique_tag(tag)

        def exchange(value: np.ndarray, out: np.ndarray) -> None:
            np.copyto(out, self._processes.sum(list(value), unique_tag))

        call = self._call(exchange, unique_tag)
        if self._local is None and parts.dtype == jnp.float32:
            call.use_native(self._processes, parts[0].size)
        return self._in_order(call, parts, rows.shape[1:])

    def _in_order(self, call: "CollectiveCall", value: Array, shape: tuple[int, ...]) -> Array:
        """The output of a call, which follows the last one in the same loop; the first there, the one before the loop.

        Within `jax.grad` the output belongs to the function around it, as collectives have no tangent.
        """
        last = next(([self._last[trace]] for trace in _traces() if trace in self._last), [])
        output = call.callback(value, shape, last)
        self._last[cast(Any, output)._trace] = output
        return output

    def _unique_tag(self, tag: str) -> str:
        self._tag_counts[tag] += 1
        return tag if self._tag_counts[tag] == 1 else f"{tag} ({self._tag_counts[tag]})"

    def _call(self, exchange: Exchange, tag: str) -> "CollectiveCall":
        call = CollectiveCall(exchange, tag, len(self._device_map.own))
        self._calls.append(call)
        return call


class CollectiveCall:
    """One use of a collective in a compiled function.

    All devices of the process call it with equal inputs, each in its own thread. The last thread runs the exchange and
    copies the output to the others.

    Args:
        exchange: fills the output of the process from its input.
        tag: its name.
        count: devices of the process.

    Attributes:
        callback: the operation in compiled code.
    """

    def __init__(self, exchange: Exchange, tag: str, count: int) -> None:
        self.tag = tag
        self._exchange = exchange
        self._count = count
        self._ready = threading.Condition()
        self._waiting: list[np.ndarray] = []
        self.callback = Callback("exchange", exchange if count == 1 else self._exchange_once)
        self._failure: BaseException | None = None

    @property
    def error(self) -> BaseException | None:
        """The exception that the exchange raised, if any."""
        return self._failure or self.callback.error

    def use_native(self, processes: Processes, length: int) -> None:
        """Use the C implementation of a sum of `length` numbers where it is available; for one device only."""
        in_c = processes.native_sum(length, self.tag)
        if in_c is not None:
            self.callback.use_native(*in_c)

    def _exchange_once(self, value: np.ndarray, out: np.ndarray) -> None:
        with self._ready:
            outputs = self._waiting
            outputs.append(out)
            if len(outputs) < self._count:
                self._ready.wait_for(lambda: outputs is not self._waiting)
                if self._failure is not None:
                    raise self._failure
                return
            try:
                self._exchange(value, out)
                for other in outputs[:-1]:
                    np.copyto(other, out)
            except BaseException as error:
                self._failure = error
                raise
            finally:
                self._waiting = []
                self._ready.notify_all()


def block_until_ready(outputs: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
    """`jax.block_until_ready`, typed."""
    return cast("tuple[Tree, Tree]", jax.block_until_ready(outputs))


def _traces() -> Iterator[Any]:
    """What is traced now, the innermost first: a gradient, a loop, the function. JAX has no public way to tell."""
    from jax._src import core

    trace: Any = core.trace_ctx.trace
    while trace is not None:
        yield trace
        trace = getattr(trace, "parent_trace", None)


Transport = SingleDevice | MeshTransport | ProcessTransport
"""The collectives that `Comm` uses inside compiled code."""


def _compile_for_device(function: Function, device: Any, *, donate: tuple[int, ...]) -> Function:
    # With explicit shardings, host arrays and device arrays share one compilation.
    return _jit(function, donate=donate, in_shardings=SingleDeviceSharding(device))


def _jit(function: Any, *, donate: tuple[int, ...], **options: Any) -> Function:
    """Compile a function; buffers that are donated each become the output of the same name.

    JAX leaves out arguments that a function ignores. Every later buffer would then be given to the output before its
    own, as on a GPU (jaxlib 0.11.2) that copied networks to their targets: Adam's first moments became the networks.
    """
    return jax.jit(function, donate_argnums=donate, keep_unused=True, **options)


def _attribute_failures(compiled: Function, processes: Processes, function: Function) -> Function:
    """Publish the call to the other processes while it runs, and raise network errors as errors that name the rank."""
    tag = getattr(function, "__name__", "spmd")
    program = SameProgram(compiled, tag, processes)

    def call(shared: Tree, own: Tree) -> tuple[Tree, Tree]:
        with processes.entered(tag), processes.waiting():
            program.check(shared, own)
            try:
                return block_until_ready(compiled(shared, own))
            except (RuntimeError, ValueError) as error:  # JAX raises either
                if not any(sign in str(error) for sign in _NETWORK_ERRORS):
                    raise
                raise processes.peer_error(tag, error) from error

    return call


def _sum_nodes(known: Sequence[Mapping[Node, Array]], num_shards: int) -> Array:
    values = {node: value for sums in known for node, value in sums.items()}
    return tree_sum(values, (0, num_shards), jnp.add)


def _shaped(every: Array, like: Array) -> Array:
    """The flat arrays of all devices, each of the shape of `like`, which may be empty."""
    return every.reshape(len(every), *like.shape)


def _leaves(shards: range, rows: Array) -> dict[Node, Array]:
    """The tree's leaves for `shards`, whose rows are in the first slots."""
    return {(shard, shard + 1): rows[slot] for slot, shard in enumerate(shards)}
