"""The collectives of JAX; only this file and `collectives/` handle more than one device.

*Outside* compiled code, processes exchange numpy arrays and small objects. *Inside* a function compiled by `spmd`,
devices exchange arrays; every device is a rank of the data axis. Every sum over shards follows the tree of
`lockstep.distributed.tree`. In a world of one device every collective is the identity, and no server, connection or
thread exists. No gradient passes through a collective, on any number of devices.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh

from lockstep.distributed import agreement
from lockstep.distributed.arguments import check_number, check_source, check_timeouts, check_weight
from lockstep.distributed.timers import Timers
from lockstep.distributed.tree import Node, owned_nodes, tree_sum
from lockstep.distributed.watch import Observed
from lockstep.errors import RunError
from lockstep.jax import hardware
from lockstep.jax.collectives import arguments, mesh
from lockstep.jax.collectives.mesh import AXIS, DeviceArrays, DeviceMap, Tree, map_shards
from lockstep.jax.collectives.processes import Processes
from lockstep.jax.collectives.transports import Function, MeshTransport, ProcessTransport, SingleDevice, Transport
from lockstep.jax.collectives.waker import Waker
from lockstep.jax.flat import divisor
from lockstep.world import World


class Comm:
    """The collectives of a world, as a context manager.

    Every method marked *collective* must be called by all ranks in the same order, those inside compiled code included.

    Args:
        world: all processes, each of which drives `devices_per_process` devices.
        device: `auto` takes the GPUs of the local rank if the machine has some.
        backend: `auto` is nccl on GPUs and gloo on CPUs.
        devices_per_process: local devices, each of them a rank of the data axis.
        timeout_s: bound on every collective.
        startup_timeout_s: bound on waiting for the other ranks to start.
        timers: record when this rank synchronizes and waits.

    Attributes:
        device: description of this process' devices.
        devices: JAX devices of this process.
        num_slots: shards per device. A device with fewer repeats one in the remaining slots, which sums skip.
        num_messages: messages sent by this process, by tag.
        num_compilations: compilations of each function passed to `spmd`, by its name.
    """

    def __init__(
        self,
        world: World | None = None,
        *,
        device: str = "auto",
        backend: str = "auto",
        devices_per_process: int = 1,
        timeout_s: float = 120.0,
        startup_timeout_s: float = 300.0,
        timers: Timers | None = None,
    ) -> None:
        check_timeouts(timeout_s, startup_timeout_s)
        self.world = world or World.from_environment()
        self._kind = hardware.kind_of(device)
        self.backend = hardware.backend_of(self._kind, backend)
        self.timers = timers or Timers()
        self.num_compilations: Counter[str] = Counter()
        self._device_map: DeviceMap = map_shards(self.world, devices_per_process)
        self.num_slots = self._device_map.num_slots
        self._timeout_s = timeout_s
        self._startup_timeout_s = startup_timeout_s
        self._devices_per_process = devices_per_process
        self._use_gloo = backend == "gloo"
        self._tracing = 0
        """Functions of `spmd` that JAX traces now."""
        self._processes = Processes(self.world, self.timers, timeout_s, startup_timeout_s)
        self.num_messages = self._processes.num_messages

    def __enter__(self) -> Self:
        """Connect to the other ranks; *collective*. Raises `PeerError` if they do not arrive in time."""
        hardware.prepare(self._kind, self._devices_per_process, self._timeout_s)
        self._processes.open()
        try:
            self._open_devices()
        except BaseException as error:
            self._processes.close(error)
            raise
        return self

    def _open_devices(self) -> None:
        world, count = self.world, self._devices_per_process
        multi_process = world.size > 1 and (self._kind == "gpu" or self._use_gloo)
        if multi_process:
            self._processes.start_jax(hardware.local_gpu_ids(world, self._kind, count), self._startup_timeout_s)
        self.devices = hardware.local_devices(world, self._kind, count)
        self.device = hardware.describe(self.devices)
        axis = hardware.all_devices(self.devices, count) if multi_process else self.devices
        jax_mesh = Mesh(np.array(axis), (AXIS,)) if len(axis) > 1 else None
        self._arrays = DeviceArrays(self._device_map, self.devices, jax_mesh)
        if world.size > 1 and not multi_process:
            self._transport: Transport = ProcessTransport(self._device_map, jax_mesh, self.devices[0], self._processes)
        elif jax_mesh is not None:
            self._transport = MeshTransport(self._device_map, jax_mesh, self._processes if multi_process else None)
        else:
            self._transport = SingleDevice(self._device_map, self.devices[0])
        self._waker = Waker(self.devices)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Disconnect, also after an exception."""
        self._waker.close()
        self._processes.close(error)

    # -- arrays on devices ---------------------------------------------------------------------------------------------

    def replicate(self, tree: Tree) -> Tree:
        """Arrays on all devices, from host values that are equal on all ranks (not checked); nothing is sent."""
        return self._arrays.replicate(arguments.without_keys(tree, "replicate"))

    def inputs(self, tree: Tree) -> Tree:
        """Host values, equal on all ranks, for `shared` of one call of a function of `spmd`; do not use them after it.

        It takes a tenth of the time of `replicate` where a process compiles for one device.
        """
        return self._arrays.inputs(tree)

    def shard(self, parts: Sequence[Tree]) -> Tree:
        """Arrays [devices * num_slots, ...] over all devices, from one pytree of equal shapes per local shard."""
        arguments.check_parts(parts)
        return self._arrays.shard(parts)

    def join(self, parts: Sequence[Array]) -> Array:
        """One array over all devices from the part of each device of this process, of equal shapes; without a copy."""
        return self._arrays.join(parts)

    @property
    def places(self) -> list[tuple[int, int]]:
        """The index in `devices` and the slot of each local shard."""
        return self._arrays.places

    def unshard(self, own: Tree) -> list[Tree]:
        """The numpy pytree of each local shard; the inverse of `shard`."""
        return self._arrays.unshard(own)

    def unshard_one(self, own: Tree, k: int) -> Tree:
        """The numpy pytree of local shard number `k` alone."""
        return self._arrays.unshard_one(own, k)

    def read(self, tree: Tree) -> Tree:
        """Host copies of arrays that are the same on all devices."""
        return mesh.host_copies(arguments.without_keys(tree, "read"))

    def local(self, tree: Tree) -> Tree:
        """Replicated arrays on this process' first device, without a copy."""
        return jax.tree.map(lambda leaf: arguments.on_device(leaf, "local").addressable_data(0), tree)

    def spmd(self, function: Function, *, donate: bool = True, donate_own: bool = False) -> Function:
        """Compile `function(shared, own) -> (shared, own)` for all devices at once; calls are *collective*.

        Inside, leaves of `shared` are replicated on all devices and must be returned replicated; leaves of `own` have a
        leading axis of `num_slots` slots. The function may use the collectives of this object.

        Args:
            function: pure, of two pytrees.
            donate: whether the buffers of `shared` are donated to the output.
            donate_own: whether those of `own` are, which must then be returned with the same shapes.
        """
        name = getattr(function, "__name__", type(function).__name__)

        def counted(shared: Tree, own: Tree) -> tuple[Tree, Tree]:
            self.num_compilations[name] += 1  # JAX traces once per compilation
            self._tracing += 1
            try:
                return arguments.pair(function(shared, own), name)
            finally:
                self._tracing -= 1

        counted.__name__ = name
        donated = (0,) * donate + (1,) * donate_own
        return self._transport.compiled(counted, donate=donated)

    # -- inside compiled code ------------------------------------------------------------------------------------------

    def shard_numbers(self) -> Array:
        """[num_slots] int32: the shard in each slot of the executing device."""
        return jnp.asarray(self._device_map.slots)[self._inside("shard_numbers").index()]

    def sum_shards(self, rows: Array, tag: str = "sum_shards") -> Array:
        """The sum over all shards of one row [n] each, with the same bits on any number of ranks; *collective*.

        Not differentiable. Types as those of `sum`.

        Args:
            rows: [num_slots, n].
            tag: names the collective in errors.
        """
        rows = arguments.rows(rows, self.num_slots, tag)
        if _is_narrow(rows):
            return self.sum_shards(rows.astype(jnp.float32), tag).astype(rows.dtype)
        rows = _summed_type(rows)
        # Barriers keep XLA from fusing products into the additions, which would round once instead of twice.
        rows = lax.optimization_barrier(lax.stop_gradient(rows))
        return lax.optimization_barrier(self._inside(tag).sum_slots(rows, tag))

    def sum(self, value: Array, tag: str = "sum") -> Array:
        """The sum over devices; *collective*. Not differentiable.

        Booleans, and integers of fewer than 32 bits, are added, and returned, as int32.
        """
        value = _summed_type(jnp.asarray(value))  # a Python number, too
        return self._over_devices(value, jnp.add, tag)

    def max(self, value: Array, tag: str = "max") -> Array:
        """The largest value over devices; *collective*. Not differentiable."""
        value = jnp.asarray(value)  # a Python number, too
        if _is_narrow_integer(value):
            return self.max(value.astype(jnp.int32), tag).astype(value.dtype)
        return self._over_devices(value, jnp.maximum, tag)

    def mean(self, value: Array, weight: Array | float = 1.0, tag: str = "mean") -> Array:
        """The mean over devices, weighted by `weight`; a device of weight 0 is ignored; *collective*.

        That of integers is float32. On one device the result is the value, whatever the weight. Not differentiable.
        """
        check_weight(weight)
        arguments.check_float32(value, tag)
        value = lax.stop_gradient(value)
        value = value if jnp.issubdtype(value.dtype, jnp.floating) else value.astype(jnp.float32)
        if self._has_one_device:
            return value
        wide = value.astype(jnp.float32) if _is_narrow(value) else value
        return jnp.divide(*self._weighted_sum(wide, weight, tag)).reshape(value.shape).astype(value.dtype)

    def _weighted_sum(self, value: Array, weight: Array | float, tag: str, layout: int = 0) -> tuple[Array, Array]:
        weight = jnp.asarray(weight, value.dtype)
        part = jnp.where(weight > 0, value * weight, jnp.zeros_like(value))
        summed = self._over_devices(jnp.concatenate([part.reshape(-1), weight.reshape(1)]), jnp.add, tag, layout)
        return summed[:-1], summed[-1]

    def moments(self, value: Array, weight: Array | None = None, tag: str = "moments") -> tuple[Array, Array, Array]:
        """Count, mean and variance of the rows of `value` [N, *F] over all devices; *collective*, one message.

        The moments of each device are combined by the parallel algorithm (Chan et al., 1979), because float32 sums of
        squares would lose digits. Where the count is 0, so are mean and variance. Rows of weight 0 are
        ignored, even NaN. Moments of integers are float32. Not differentiable.

        Args:
            value: this device's rows.
            weight: of each row [N]; default 1.
            tag: names the collective in errors.
        """
        value = arguments.weighed(value, weight)
        arguments.check_float32(value, tag)
        flat = lax.stop_gradient(value).reshape(len(value), math.prod(value.shape[1:])).astype(jnp.float32)
        kind = value.dtype if jnp.issubdtype(value.dtype, jnp.floating) else jnp.float32
        weights = jnp.ones(len(flat), jnp.float32)
        if weight is not None:
            weights = lax.stop_gradient(weight).astype(jnp.float32)
            flat = jnp.where(weights[:, None] == 0, 0.0, flat)  # 0 times NaN is NaN
            flat = lax.optimization_barrier(flat)  # fused into the products below, it would change their bits
        own_mean = weights @ flat / divisor(weights.sum())
        squares = weights @ jnp.square(flat - own_mean[None])
        every = self._inside(tag).gather(jnp.concatenate([weights.sum()[None], own_mean, squares]), tag)
        counts, means, inner = jnp.split(every, [1, 1 + flat.shape[1]], axis=1)
        shape, count = value.shape[1:], counts.sum()
        mean = (counts * means).sum(0) / divisor(count)
        variance = (inner + counts * jnp.square(means - mean[None])).sum(0) / divisor(count)
        return count, mean.reshape(shape).astype(kind), variance.reshape(shape).astype(kind)

    def average_gradients(self, gradients: Tree, weight: Array | float = 1.0, tag: str = "average_gradients") -> Tree:
        """The mean gradient of the global batch, 0 if its weight is 0; *collective*, one message. Clip afterwards.

        Not differentiable.

        Args:
            gradients: a pytree, of the *mean* loss of this device's part of the batch.
            weight: of that part, such as its number of rows.
            tag: names the collective in errors.
        """
        check_weight(weight)
        arguments.check_float32(gradients, tag)
        leaves, structure = mesh.flat(gradients)
        if not leaves:
            return gradients
        flat = jnp.concatenate([leaf.reshape(-1).astype(jnp.float32) for leaf in leaves])
        total, weight = self._weighted_sum(flat, weight, tag, arguments.layout(gradients))
        means = jnp.split(total / divisor(weight), np.cumsum([leaf.size for leaf in leaves])[:-1])
        shaped = [mean.reshape(leaf.shape).astype(leaf.dtype) for mean, leaf in zip(means, leaves, strict=True)]
        return jax.tree.unflatten(structure, shaped)

    def _inside(self, tag: str) -> Transport:
        """The collectives of compiled code; raises `RunError` outside of it, where only one device needs none."""
        if not self._tracing and len(self._device_map.shards) > 1:
            raise RunError(
                f"{tag} was called outside of a function that comm.spmd compiles, where devices cannot exchange "
                "arrays: call it in function(shared, own), compiled by comm.spmd(function); outside, sum_statistics, "
                "any, broadcast and gather_object exchange what the processes hold"
            )
        return self._transport

    @property
    def _has_one_device(self) -> bool:
        return len(self._device_map.shards) == 1

    def _over_devices(self, value: Array, add: Any, tag: str, layout: int = 0) -> Array:
        arguments.check_exchanged(value, tag)
        value = lax.stop_gradient(value)
        if self._has_one_device:
            return value  # without a barrier, which XLA's CPU compiler does not take within some loops
        if _is_narrow(value):
            return self._over_devices(value.astype(jnp.float32), add, tag).astype(value.dtype)
        every = self._inside(tag).gather(lax.optimization_barrier(value.reshape(-1)), tag, layout)
        values: dict[Node, Array] = {(device, device + 1): row for device, row in enumerate(every)}
        return tree_sum(values, (0, len(self._device_map.shards)), add).reshape(value.shape)

    # -- outside compiled code -----------------------------------------------------------------------------------------

    def sum_statistics(self, rows: np.ndarray, tag: str = "sum_statistics") -> np.ndarray:
        """The float64 sum over all shards of one row [n] each, with the same bits on any number of ranks; *collective*.

        Args:
            rows: [K, n], one row for each shard of this process.
            tag: names the collective in errors.
        """
        check_number(len(rows), len(self.world.shards))
        rows = np.asarray(rows, np.float64)
        leaves = {(shard, shard + 1): row for shard, row in zip(self.world.shards, rows, strict=True)}
        nodes = owned_nodes(self.world.shards, self.world.num_shards)
        return self._processes.sum([tree_sum(leaves, node, np.add) for node in nodes], tag).copy()

    def any(self, flag: bool, tag: str = "any") -> bool:
        """Whether the flag is set on any rank: turns a clock or a signal into a global decision; *collective*."""
        mine = arguments.flag(flag)
        return any(self.gather_object(mine, tag)) if self.world.size > 1 else mine

    def broadcast(self, tree: Tree, source: int = 0, tag: str = "broadcast") -> Tree:
        """Arrays on all devices of all ranks, with the host values of process `source`; *collective*.

        Raises `MismatchError` if a tree has other names, shapes or types than that of `source`.
        """
        check_source(source, self.world.size)
        leaves, structure = mesh.flat(arguments.without_keys(tree, tag))
        if self.world.size == 1:
            return self.replicate(tree)
        mine = [np.asarray(leaf) for leaf in leaves] if self.world.rank == source else None
        every = self.gather_object([arguments.kinds(tree), mine], tag)
        if any(kinds != every[0][0] for kinds, _ in every):
            raise agreement.mismatch_error([kinds for kinds, _ in every])
        return self.replicate(jax.tree.unflatten(structure, every[source][1]))

    def broadcast_object(self, value: Any = None, source: int = 0, tag: str = "broadcast_object") -> Any:
        """The JSON-able value (arrays allowed) of process `source`; *collective*."""
        check_source(source, self.world.size)
        return self.gather_object(value if self.world.rank == source else None, tag)[source]

    def gather_object(self, value: Any, tag: str = "gather_object") -> list[Any]:
        """The JSON-able values (arrays allowed) of all processes, in rank order; *collective*."""
        return self._processes.gather_object(value, tag)

    def check_equal(self, tensors: Mapping[str, Any], tag: str = "check_equal") -> None:
        """Raise `MismatchError`, naming ranks and arrays, unless all devices hold the same bits; *collective*.

        One small message if they do; after a mismatch a second one, with a digest of each array.

        Args:
            tensors: arrays and numbers by name; may be nested, as parameters of Flax are.
            tag: the name of this collective in messages.
        """
        named = arguments.by_name(tensors, tag)
        ranks = len(self._device_map.shards)
        if ranks == 1:
            return
        if self.world.size > 1:
            self._processes.connected(tag)
        mine = self._arrays.digests(named)
        short = b"".join(bytes.fromhex(agreement.content_digest(json.dumps(one).encode())) for one in mine)
        every = self._processes.gather(np.frombuffer(short, np.int64), tag).reshape(ranks, -1)
        if (every != every[0]).any():
            raise agreement.mismatch_error([one for process in self.gather_object(mine, tag) for one in process])

    def check_different(self, fingerprint: str | Sequence[str], tag: str = "check_different") -> None:
        """Raise `RunError` if two ranks have the same fingerprint of data that must differ; *collective*."""
        agreement.check_different(self.gather_object, fingerprint, tag)

    def observe(self) -> list[Observed]:
        """The current phase and collective of each process of this host; not collective."""
        return self._processes.observe()

    def announce_failure(self, reason: str) -> None:
        """Send the other hosts the reason why this process exits; not collective, and from any thread."""
        self._processes.announce_failure(reason)

    def barrier(self, tag: str = "barrier") -> None:
        """Wait for all processes; *collective*."""
        self.gather_object(None, tag)


def _is_narrow(value: Array) -> bool:
    """Whether these are floating-point numbers of fewer than 32 bits, whose sums over devices would lose digits."""
    return jnp.issubdtype(value.dtype, jnp.floating) and value.dtype.itemsize < 4


def _is_narrow_integer(value: Array) -> bool:
    """Whether these are integers of fewer than 32 bits, whose sums over devices could overflow."""
    return jnp.issubdtype(value.dtype, jnp.integer) and value.dtype.itemsize < 4


def _summed_type(value: Array) -> Array:
    """Booleans and narrow integers as int32: their sums would overflow."""
    return value.astype(jnp.int32) if value.dtype == bool or _is_narrow_integer(value) else value
