"""The devices of a world, which shards lie on which, and how arrays get there and back.

Every device is a rank of the one axis that data is spread over. The shards of a process are dealt to its devices in
contiguous blocks; a device with fewer shards than another repeats its last one in the slots left over, and what comes
of these is left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lockstep.distributed import agreement
from lockstep.distributed.tree import Node, owned_nodes
from lockstep.errors import ConfigError
from lockstep.world import World, block

AXIS = "data"
Tree = Any


@dataclass(frozen=True, slots=True)
class DeviceMap:
    """Where the shards of a world lie.

    Attributes:
        shards: of each device of the world, in rank order.
        own: which devices are this process'.
        num_slots: of every device.
    """

    shards: tuple[range, ...]
    own: range
    num_slots: int
    num_shards: int

    @property
    def slots(self) -> np.ndarray:
        """[devices, num_slots]: the shard in each slot."""
        rows = [[held[min(slot, len(held) - 1)] for slot in range(self.num_slots)] for held in self.shards]
        return np.array(rows, np.int32)

    @property
    def nodes(self) -> list[list[Node]] | None:
        """What each device can sum alone, if all take the same steps; None if they do not."""
        nodes = [owned_nodes(held, self.num_shards) for held in self.shards]
        alike = {
            tuple((low - held.start, high - held.start) for low, high in own)
            for own, held in zip(nodes, self.shards, strict=True)
        }
        return nodes if len(alike) == 1 and all(_steps(own) == _steps(nodes[0]) for own in nodes) else None


def _steps(nodes: list[Node]) -> list[Any]:
    """How the sum at each node is split, as far as it does not depend on where the node is."""

    def split(node: Node) -> Any:
        low, high = node
        middle = (low + high) // 2
        return 1 if high - low == 1 else (split((low, middle)), split((middle, high)))

    return [split(node) for node in nodes]


def places(world: World, devices: int) -> DeviceMap:
    """Deal the shards of every process to its devices. Raises `ConfigError` where a device gets none."""
    if world.num_shards < world.size * devices:
        raise ConfigError(
            f"num_shards={world.num_shards} is fewer than the {world.size * devices} devices "
            f"({world.size} processes x devices_per_process={devices}); use fewer devices, "
            f"or --set num_shards={world.size * devices}"
        )
    shards: list[range] = []
    for rank in range(world.size):
        held = world.shards_of(rank)
        parts = [block(len(held), devices, device) for device in range(devices)]
        shards += [range(held.start + part.start, held.start + part.stop) for part in parts]
    own = range(world.rank * devices, (world.rank + 1) * devices)
    return DeviceMap(tuple(shards), own, max(map(len, shards)), world.num_shards)


class Spread:
    """Arrays over devices: the same on all (`replicate`), or slots in rank order (`shard`).

    Args:
        places: which shards lie where.
        devices: of this process.
        mesh: of all devices; None where each process computes by itself.
    """

    def __init__(self, places: DeviceMap, devices: Sequence[Any], mesh: Mesh | None) -> None:
        self._places, self._devices, self._mesh = places, list(devices), mesh

    def replicate(self, tree: Tree) -> Tree:
        """Copies of host values on all devices."""
        return jax.tree.map(self._share, tree)

    def _share(self, value: Any) -> Array:
        host = np.array(value)  # a copy of its own: a CPU device may use the memory as it is
        if self._mesh is None:
            return jax.device_put(host, self._devices[0])
        sharding = NamedSharding(self._mesh, PartitionSpec())
        return jax.make_array_from_single_device_arrays(
            host.shape, sharding, [jax.device_put(host, device) for device in self._devices]
        )

    def shard(self, parts: Sequence[Tree]) -> Tree:
        """One pytree of equal shapes for each local shard -> arrays [devices * num_slots, ...]."""
        held = [self._places.shards[device] for device in self._places.own]
        assert len(parts) == held[-1].stop - held[0].start, f"{len(parts)} parts for shards {held}"
        return jax.tree.map(lambda *leaves: self._deal(leaves), *parts)

    def _deal(self, leaves: Sequence[Any]) -> Array:
        first = self._places.shards[self._places.own.start].start
        chosen = [
            np.stack([leaves[shard - first] for shard in self._places.slots[device]]) for device in self._places.own
        ]
        if self._mesh is None:  # as it is: a compiled function takes it in a tenth of the time of `device_put`
            return cast(Array, chosen[0])
        shape = (self._mesh.size * self._places.num_slots, *chosen[0].shape[1:])
        sharding = NamedSharding(self._mesh, PartitionSpec(AXIS))
        arrays = [jax.device_put(rows, device) for rows, device in zip(chosen, self._devices, strict=True)]
        return jax.make_array_from_single_device_arrays(shape, sharding, arrays)

    def collect(self, own: Tree) -> list[Tree]:
        """What lies in the slots of each local shard, as numpy pytrees."""
        leaves, structure = flat(own)
        read = [self._slots(leaf) for leaf in leaves]
        counts = [len(self._places.shards[device]) for device in self._places.own]
        return [
            jax.tree.unflatten(structure, [rows[device][slot] for rows in read])
            for device, count in enumerate(counts)
            for slot in range(count)
        ]

    def digests(self, tensors: Mapping[str, Any]) -> list[dict[str, list[str]]]:
        """For each own device, name -> type and shape, and a digest of the bits it holds; a host array is on all."""
        copies = {name: self._copies(value) for name, value in sorted(tensors.items())}
        return [
            {name: _identity(held[device]) for name, held in copies.items()} for device in range(len(self._devices))
        ]

    def _copies(self, value: Any) -> list[np.ndarray]:
        if isinstance(value, Array) and len(value.addressable_shards) > 1:
            return self._slots(value)
        return [np.asarray(value)] * len(self._devices)

    def _slots(self, leaf: Array | np.ndarray) -> list[np.ndarray]:
        """What each own device holds, in their order."""
        if isinstance(leaf, np.ndarray):  # dealt to the only device, and not computed with yet
            return [leaf]
        order = {device: number for number, device in enumerate(self._devices)}
        parts = sorted(leaf.addressable_shards, key=lambda part: order[part.device])
        return [np.array(part.data) for part in parts]


def _identity(array: np.ndarray) -> list[str]:
    return [agreement.dtype_and_shape(str(array.dtype), array.shape), agreement.content_digest(array.tobytes())]


def read(tree: Tree) -> Tree:
    """Host copies of arrays that are the same on all devices."""
    return jax.tree.map(_read, tree)


def local(tree: Tree) -> Tree:
    """The copies on the first device of this process, not copied again."""
    return jax.tree.map(_local, tree)


def flat(tree: Tree) -> tuple[list[Any], Any]:
    """Its leaves and its structure."""
    return cast(Any, jax.tree.flatten(tree))


def _read(leaf: Array) -> np.ndarray:
    return np.array(_local(leaf))


def _local(leaf: Array) -> Array:
    return leaf.addressable_data(0)
