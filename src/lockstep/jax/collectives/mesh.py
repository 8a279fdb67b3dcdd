"""The devices of a world, the shards assigned to each, and transfers between host and devices.

Every device is a rank of the data axis. The shards of a process are assigned to its devices in contiguous blocks. A
device with fewer shards than another repeats its last one in the remaining slots; sums skip the repeats.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lockstep.distributed import agreement
from lockstep.distributed.arguments import check_number
from lockstep.distributed.tree import Node, owned_nodes
from lockstep.errors import ConfigError
from lockstep.jax.collectives import arguments
from lockstep.world import World, block

AXIS = "data"
Tree = Any


@dataclass(frozen=True, slots=True)
class DeviceMap:
    """The assignment of a world's shards to its devices.

    Attributes:
        shards: of each device of the world, in rank order.
        own: the devices of this process.
        num_slots: of every device.
        num_shards: of the world.
    """

    shards: tuple[range, ...]
    own: range
    num_slots: int
    num_shards: int

    @property
    def slots(self) -> np.ndarray:
        """[devices, num_slots]: the shard in each slot."""
        slots = np.arange(self.num_slots)
        rows = [np.minimum(shards.start + slots, shards.stop - 1) for shards in self.shards]
        return np.array(rows, np.int32)

    @property
    def own_shards(self) -> list[range]:
        """The shards of each device of this process."""
        return [self.shards[device] for device in self.own]

    @property
    def nodes(self) -> list[list[Node]] | None:
        """The tree nodes that each device can sum locally; None if devices would need different programs."""
        nodes = [owned_nodes(shards, self.num_shards) for shards in self.shards]
        alike = {
            tuple((low - shards.start, high - shards.start) for low, high in own)
            for own, shards in zip(nodes, self.shards, strict=True)
        }
        if len(alike) > 1 or any(_split_shapes(own) != _split_shapes(nodes[0]) for own in nodes):
            return None
        return nodes


def _split_shapes(nodes: list[Node]) -> list[Any]:
    """The shape of the subtree below each node, independent of its position."""

    def split(node: Node) -> Any:
        low, high = node
        middle = (low + high) // 2
        return 1 if high - low == 1 else (split((low, middle)), split((middle, high)))

    return [split(node) for node in nodes]


def map_shards(world: World, devices: int) -> DeviceMap:
    """Assign the shards of every process to its devices. Raises `ConfigError` if there are fewer shards than devices.

    Args:
        world: all processes.
        devices: per process.
    """
    if world.num_shards < world.size * devices:
        raise ConfigError(
            f"num_shards={world.num_shards} is fewer than the {world.size * devices} devices "
            f"({world.size} processes x devices_per_process={devices}); use fewer devices, "
            f"or --set num_shards={world.size * devices}"
        )
    shards: list[range] = []
    for rank in range(world.size):
        owned = world.shards_of(rank)
        parts = [block(len(owned), devices, device) for device in range(devices)]
        shards += [range(owned.start + part.start, owned.start + part.stop) for part in parts]
    own = range(world.rank * devices, (world.rank + 1) * devices)
    return DeviceMap(tuple(shards), own, max(map(len, shards)), world.num_shards)


class DeviceArrays:
    """Transfers arrays between host and devices: replicated (`replicate`) or sharded by slot (`shard`).

    Args:
        device_map: the shards of each device.
        devices: of this process.
        mesh: of all devices; None if each process compiles for one device only.
    """

    def __init__(self, device_map: DeviceMap, devices: Sequence[Any], mesh: Mesh | None) -> None:
        self._device_map = device_map
        self._devices = list(devices)
        self._mesh = mesh

    def replicate(self, tree: Tree) -> Tree:
        """Copies of host values on all devices, of all leaves at once."""
        host = jax.tree.map(np.array, tree)  # copies: a CPU device may alias the host memory
        copies = [jax.device_put(host, device) for device in self._devices]
        if self._mesh is None:
            return copies[0]
        sharding = NamedSharding(self._mesh, PartitionSpec())

        def join(leaf: np.ndarray, *parts: Array) -> Array:
            return jax.make_array_from_single_device_arrays(leaf.shape, sharding, list(parts))

        return jax.tree.map(join, host, *copies)

    def inputs(self, tree: Tree) -> Tree:
        """Host values as inputs of one call: as they are if a process compiles for one device, else `replicate`d."""
        return tree if self._mesh is None else self.replicate(tree)

    def shard(self, parts: Sequence[Tree]) -> Tree:
        """Arrays [devices * num_slots, ...] from one pytree of equal shapes per local shard."""
        shards = self._device_map.own_shards
        check_number(len(parts), shards[-1].stop - shards[0].start, "parts")
        return jax.tree.map(lambda *leaves: self._shard_leaf(leaves), *parts)

    def _shard_leaf(self, leaves: Sequence[Any]) -> Array:
        first = self._device_map.own_shards[0].start
        slots = self._device_map.slots[list(self._device_map.own)]
        # A rollout on a device stays there.
        stack: Any = jnp.stack if isinstance(leaves[0], Array) else np.stack
        parts = [stack([leaves[shard - first] for shard in device_slots]) for device_slots in slots]
        if self._mesh is None:  # passing numpy to a compiled function takes a tenth of the time of `device_put`
            return cast(Array, parts[0])
        return self.join([jax.device_put(part, device) for part, device in zip(parts, self._devices, strict=True)])

    def join(self, parts: Sequence[Array]) -> Array:
        """One array over all devices from the part of each device of this process, of equal shapes; without a copy."""
        if self._mesh is None:
            return parts[0]
        shape = (self._mesh.size * len(parts[0]), *parts[0].shape[1:])
        sharding = NamedSharding(self._mesh, PartitionSpec(AXIS))
        return jax.make_array_from_single_device_arrays(shape, sharding, list(parts))

    @property
    def places(self) -> list[tuple[int, int]]:
        """The number of the device and the slot of each local shard."""
        owned = enumerate(self._device_map.own_shards)
        return [(device, slot) for device, shards in owned for slot in range(len(shards))]

    def unshard(self, own: Tree) -> list[Tree]:
        """The numpy pytree of each local shard; the inverse of `shard`."""
        leaves, structure = flat(own)
        on_host = [self._slots(leaf) for leaf in leaves]
        return [jax.tree.unflatten(structure, [rows[device][slot] for rows in on_host]) for device, slot in self.places]

    def unshard_one(self, own: Tree, k: int) -> Tree:
        """The numpy pytree of local shard number `k`; the others are not copied."""
        device, slot = self.places[k]
        return jax.tree.map(lambda leaf: self._slot(leaf, device, slot), own)

    def _slot(self, leaf: Array | np.ndarray, device: int, slot: int) -> np.ndarray:
        if isinstance(leaf, np.ndarray):  # from `shard` without a mesh
            return leaf[slot]
        (part,) = (one.data for one in leaf.addressable_shards if one.device == self._devices[device])
        return np.asarray(part[slot])

    def digests(self, tensors: Mapping[str, Any]) -> list[dict[str, list[str]]]:
        """For each local device: name -> dtype and shape, and a digest of the bits; host arrays are on all."""
        copies = {name: self._copies(value) for name, value in sorted(tensors.items())}
        return [{name: _digest(copy[d]) for name, copy in copies.items()} for d in range(len(self._devices))]

    def _copies(self, value: Any) -> list[np.ndarray]:
        if isinstance(value, Array) and len(value.addressable_shards) > 1:
            return self._slots(value)
        return [np.asarray(value)] * len(self._devices)

    def _slots(self, leaf: Array | np.ndarray) -> list[np.ndarray]:
        """The part of each local device, in device order."""
        if isinstance(leaf, np.ndarray):  # from `shard` without a mesh
            return [leaf]
        order = {device: number for number, device in enumerate(self._devices)}
        parts = sorted(leaf.addressable_shards, key=lambda part: order[part.device])
        return [np.array(part.data) for part in parts]


def _digest(array: np.ndarray) -> list[str]:
    return [agreement.dtype_and_shape(str(array.dtype), array.shape), agreement.content_digest(array.tobytes())]


def host_copies(tree: Tree) -> Tree:
    """Host copies of replicated arrays. Raises `ConfigError` for what is not on a device."""
    return jax.tree.map(lambda leaf: np.array(arguments.on_device(leaf, "read").addressable_data(0)), tree)


def flat(tree: Tree) -> tuple[list[Any], Any]:
    """Leaves and structure of a pytree, typed."""
    return cast(Any, jax.tree.flatten(tree))
