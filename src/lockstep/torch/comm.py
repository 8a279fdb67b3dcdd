"""What crosses ranks in PyTorch. The only file that names `torch.distributed`.

Every sum over shards is taken along the tree of `lockstep.tree`. CPU ranks of one host reduce through shared memory;
otherwise each rank sends the sums it can take alone and everyone finishes the tree. In a world of one every collective is
the identity, and no process group, server or thread exists.
"""

import datetime
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lockstep import messages
from lockstep.cores import usable_cores
from lockstep.errors import ConfigError, PeerError, RunError
from lockstep.fingerprint import digest
from lockstep.record.timers import SYNC, WAIT, Timers
from lockstep.segment import Segment, supported
from lockstep.torch.flat import FlatParameters, named_tensors
from lockstep.torch.slots import Slots
from lockstep.tree import Node, owned_nodes, tree_sum
from lockstep.watch import Observed, observed
from lockstep.world import World

_DEATH_NOTICE_S = 1.0  # how long after a broken connection to look which process ended


class Comm:
    """The collectives of a world, as a context manager.

    Every method marked *collective* must be called by all ranks in the same order. Collectives are numbered and tagged: two
    ranks in different ones are told apart even when their sizes agree.

    Args:
        world: who takes part.
        device: `auto` takes the GPU of the local rank if the machine has one.
        backend: `auto` is nccl on GPUs and gloo on CPUs.
        timeout_s: bound on every collective.
        startup_timeout_s: bound on waiting for the other ranks to start.
        timers: told when this rank synchronises and waits.
        shared_memory: whether CPU ranks of one host may reduce through shared memory.

    Attributes:
        device: where this rank's tensors live.
        num_messages: how many messages each tag has sent.
    """

    def __init__(
        self,
        world: World | None = None,
        *,
        device: str = "auto",
        backend: str = "auto",
        timeout_s: float = 120.0,
        startup_timeout_s: float = 300.0,
        timers: Timers | None = None,
        shared_memory: bool = True,
    ) -> None:
        self.world = world or World.from_environment()
        self.device = device_of(self.world, device)
        self.backend = _backend_of(self.device, backend)
        self.timers = timers or Timers()
        self.num_messages: Counter[str] = Counter()
        self._timeout_s, self._startup_timeout_s = timeout_s, startup_timeout_s
        self._nodes = [owned_nodes(self.world.shards_of(rank), self.world.num_shards) for rank in range(self.world.size)]
        self._root: Node = (0, self.world.num_shards)
        self._shared_memory = shared_memory and self.device.type == "cpu" and self.world.local_size == self.world.size
        self._segment: Segment | None = None
        self._slots: Slots | None = None
        self._number = 0
        self._tag = ""

    def __enter__(self) -> Self:
        """Open the group; *collective*. Raises `PeerError` when the others do not come."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        if self.world.size > 1:
            self._open_group()
            if self._shared_memory:
                self._open_segment()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the group, also after an exception."""
        if self._segment is not None:
            if error is None:
                self.barrier("close")  # nobody leaves while others may still ask whether it lives
            self._segment.close()
            self._segment = self._slots = None
        if self.world.size > 1 and dist.is_initialized():
            dist.destroy_process_group()

    # -- sums ----------------------------------------------------------------------------------------------------------

    def sum_shards(self, rows: Tensor, tag: str = "sum_shards") -> Tensor:
        """The sum over all shards of one row [n] each, the same bits on any number of ranks; *collective*, one message.

        Args:
            rows: [K, n], one row for each shard of this rank.
            tag: what is summed; for messages about ranks that are elsewhere.
        """
        assert len(rows) == len(self.world.shards), f"{len(rows)} rows for {len(self.world.shards)} shards"
        leaves = {(shard, shard + 1): row for shard, row in zip(self.world.shards, rows, strict=True)}
        mine = [tree_sum(leaves, node, torch.add) for node in self._nodes[self.world.rank]]
        if self.world.size == 1:
            return mine[0]
        if self._slots is None and not self.world.pinned:
            return self._all_reduce(mine, tag)
        return tree_sum(self._exchange(mine, tag), self._root, torch.add)

    def sum(self, value: Tensor, tag: str = "sum") -> Tensor:
        """The sum over ranks; *collective*."""
        if self.world.size == 1:
            return value
        rows = value.new_zeros(len(self.world.shards), value.numel())
        rows[0] = value.reshape(-1)
        return self.sum_shards(rows, tag).view(value.shape)

    def mean(self, value: Tensor, weight: Tensor | float = 1.0, tag: str = "mean") -> Tensor:
        """The mean over ranks, each weighing `weight`; a rank of weight 0 has no say. *Collective.*"""
        if self.world.size == 1:
            return value
        weight = torch.as_tensor(weight, dtype=value.dtype, device=value.device)
        part = torch.where(weight > 0, value * weight, torch.zeros_like(value))
        total = self.sum(torch.cat([part.reshape(-1), weight.reshape(1)]), tag)
        return (total[:-1] / total[-1]).view(value.shape)

    def max(self, value: Tensor, tag: str = "max") -> Tensor:
        """The largest value over ranks; *collective*."""
        if self.world.size == 1:
            return value
        spare = [torch.zeros_like(value.reshape(-1)) for _ in self._nodes[self.world.rank][1:]]
        parts = self._exchange([value.reshape(-1), *spare], tag)
        return torch.stack([parts[nodes[0]] for nodes in self._nodes]).amax(0).view(value.shape)

    def any(self, flag: bool, tag: str = "any") -> bool:
        """Whether any rank says so: how a local fact (a clock, a signal) becomes a common decision. *Collective.*"""
        if self.world.size == 1:
            return flag
        return bool(self.sum(torch.tensor([float(flag)], device=self.device), tag) > 0)

    def moments(self, value: Tensor, weight: Tensor | None = None, tag: str = "moments") -> tuple[Tensor, Tensor, Tensor]:
        """Count, mean and variance of the rows of `value` [N, *F] of all ranks together; *collective*, one message.

        Args:
            value: this rank's rows.
            weight: [N], how much each row counts; default 1.
        """
        wide = value.double().reshape(len(value), -1)
        weights = torch.ones(len(value), dtype=torch.float64, device=value.device) if weight is None else weight.double()
        sums = torch.cat([weights.sum().reshape(1), weights @ wide, weights @ wide.square()])
        total = self.sum(sums, tag)
        count, features = total[0], wide.shape[1]
        mean = total[1 : 1 + features] / count
        variance = (total[1 + features :] / count - mean.square()).clamp_min(0)
        return count, mean.view(value.shape[1:]).to(value.dtype), variance.view(value.shape[1:]).to(value.dtype)

    def average_gradients_(
        self, parameters: FlatParameters | Iterable[nn.Parameter], weight: float = 1.0, tag: str = "average_gradients"
    ) -> Tensor:
        """Give every rank the mean gradient of the global batch; *collective*, one message. Clip afterwards, not before.

        With `FlatParameters`, every local shard has been `keep`-ed: its gradient *sum* and its sums, the weight first; the
        total gradient is divided by the total weight, and all total sums are returned. With the parameters of an ordinary
        module, `.grad` holds this rank's *mean* over its part of the batch, which counts `weight` (rows, say).
        """
        if isinstance(parameters, FlatParameters):
            total = self.sum_shards(parameters.rows, tag)
            sums = total[parameters.num_parameters :].clone()
            torch.div(total[: parameters.num_parameters], sums[0], out=parameters.gradient)
            return sums
        owners = [p for p in parameters if p.requires_grad]
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in owners]
        if self.world.size > 1:
            flat = torch.cat([g.reshape(-1) for g in gradients]).mul_(weight)
            total = self.sum(torch.cat([flat, flat.new_full((1,), weight)]), tag)
            means = (total[:-1] / total[-1]).split([g.numel() for g in gradients])
            for owner, mean in zip(owners, means, strict=True):
                owner.grad = mean.view_as(owner)
            weight = float(total[-1])
        return torch.tensor([weight])

    # -- equal on all ranks --------------------------------------------------------------------------------------------

    def broadcast_(self, tensors: nn.Module | Iterable[Tensor], source: int = 0) -> None:
        """Give every rank the tensors (of a module: parameters and buffers) of rank `source`, in place; *collective*."""
        if self.world.size == 1:
            return
        listed = [t for _, t in named_tensors(tensors)] if isinstance(tensors, nn.Module) else list(tensors)
        by_kind: dict[torch.dtype, list[Tensor]] = {}
        for tensor in listed:
            by_kind.setdefault(tensor.dtype, []).append(tensor.detach())
        for group in by_kind.values():
            flat = torch.cat([t.reshape(-1) for t in group])
            self._call("broadcast", dist.broadcast, flat, src=source)
            for tensor, part in zip(group, flat.split([t.numel() for t in group]), strict=True):
                tensor.copy_(part.view_as(tensor))

    def broadcast_object(self, value: Any = None, source: int = 0, tag: str = "broadcast_object") -> Any:
        """The JSON-able value (arrays allowed) of rank `source`; *collective*."""
        return self.gather_object(value if self.world.rank == source else None, tag)[source]

    def gather_object(self, value: Any, tag: str = "gather_object") -> list[Any]:
        """The JSON-able values (arrays allowed) of all ranks, in rank order, on every rank; *collective*."""
        if self.world.size == 1:
            return [messages.decode(messages.encode(value))]
        body = torch.frombuffer(bytearray(messages.encode(value)), dtype=torch.uint8)
        self._number += 1
        head = torch.tensor([self._number, zlib.crc32(tag.encode()), len(body)])
        heads = [torch.empty_like(head) for _ in range(self.world.size)]
        self._call(tag, dist.all_gather, heads, head)
        self._same_collective(tag, [h[:2].tolist() for h in heads])
        sizes = [int(h[2]) for h in heads]
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(body)] = body
        bodies = [torch.empty_like(padded) for _ in sizes]
        self._call(tag, dist.all_gather, bodies, padded)
        return [messages.decode(b[:size].numpy().tobytes()) for b, size in zip(bodies, sizes, strict=True)]

    def barrier(self, tag: str = "barrier") -> None:
        """Wait for all ranks; *collective*."""
        self.gather_object(None, tag)

    def check_equal(self, tensors: nn.Module | Mapping[str, Tensor], tag: str = "check_equal") -> None:
        """Stop with a `RunError` that names rank and tensor unless all ranks hold the same bits; *collective*."""
        named = named_tensors(tensors) if isinstance(tensors, nn.Module) else sorted(tensors.items())
        mine = {name: digest(t.detach().cpu().numpy(), name) for name, t in named}
        every = self.gather_object(mine, tag)
        for name in mine:
            held = [theirs.get(name) for theirs in every]
            common = max(held, key=held.count)
            odd = [str(rank) for rank, theirs in enumerate(held) if theirs != common]
            if odd:
                raise RunError(
                    f"ranks no longer hold the same {name}: rank {', '.join(odd)} differs from the others; "
                    "something changed it outside the collectives, or a rank skipped one"
                )

    def observe(self) -> list[Observed]:
        """What the ranks of this host do at this moment; not collective."""
        if self._segment is None:
            return [observed(self.world.rank, self.timers.row, alive=True, tag=self._tag)]
        segment, first = self._segment, self.world.rank - self.world.local_rank
        return [
            observed(first + index, segment.row(index), alive=segment.alive(index), tag=segment.tag(index))
            for index in range(segment.count)
        ]

    # -- below the collectives -----------------------------------------------------------------------------------------

    def _exchange(self, parts: list[Tensor], tag: str) -> Mapping[Node, Tensor]:
        """Every rank's tensors, one for each of its nodes."""
        if self._slots is not None:
            self.num_messages[tag] += 1
            previous = self.timers.enter(SYNC)
            nodes = self._slots.exchange(parts, tag)
            self.timers.enter(previous)
            return nodes
        width = max(len(nodes) for nodes in self._nodes)
        self._number += 1
        head = parts[0].new_tensor([self._number % 4096, zlib.crc32(tag.encode()) % 4096])
        flat = torch.cat([*parts, parts[0].new_zeros((width - len(parts)) * parts[0].numel()), head])
        every = flat.new_empty(self.world.size, flat.numel())
        self._call(tag, dist.all_gather, list(every.unbind()), flat)
        if self.device.type == "cpu" or self._number % 100 == 0:  # on a GPU this look is a host sync
            self._same_collective(tag, every[:, -2:].tolist())
        split = every[:, :-2].view(self.world.size, width, -1)
        return {node: split[rank, i] for rank, nodes in enumerate(self._nodes) for i, node in enumerate(nodes)}

    def _all_reduce(self, parts: list[Tensor], tag: str) -> Tensor:
        """The plain sum of the backend; order of additions is its own, so only for runs that are not pinned."""
        self._number += 1
        mark = (self._number * 31 + zlib.crc32(tag.encode())) % 251
        # The mean of marks and of their squares equal this rank's own only if all marks are equal, seen from some rank.
        flat = torch.cat([torch.stack(parts).sum(0), parts[0].new_tensor([mark, mark * mark])])
        self._call(tag, dist.all_reduce, flat)
        if self.device.type == "cpu" or self._number % 100 == 0:
            seen = (flat[-2:] / self.world.size).tolist()
            if seen != [mark, mark * mark]:
                raise RunError(f"ranks are in different collectives: rank {self.world.rank} is in {tag}")
        return flat[:-2]

    def _same_collective(self, tag: str, heads: list[list[float]]) -> None:
        odd = [rank for rank, head in enumerate(heads) if head != heads[self.world.rank]]
        if odd:
            raise RunError(
                f"ranks are in different collectives: rank {self.world.rank} is in {tag} "
                f"(number {self._number}), rank {', '.join(map(str, odd))} in another"
            )

    def _call(self, tag: str, collective: Any, *args: Any, **kwargs: Any) -> None:
        """Run a collective of torch; a failure names the rank that ended instead of a TCP port."""
        self.num_messages[tag] += 1
        self._tag = tag
        previous = self.timers.enter(WAIT)
        try:
            collective(*args, **kwargs)
        except RuntimeError as error:
            raise self._lost(tag, error) from error
        self.timers.enter(previous)

    def _lost(self, tag: str, error: RuntimeError) -> PeerError:
        if "imed out" in str(error):
            return PeerError(f"no answer in {tag} within timeout_s={self._timeout_s:g}")
        until = time.monotonic() + _DEATH_NOTICE_S
        while self._segment is not None and time.monotonic() < until:
            dead = [index for index in range(self._segment.count) if not self._segment.alive(index)]
            if dead:
                return PeerError(f"rank {dead[0]} has ended while rank {self.world.rank} waited in {tag}", dead[0])
            time.sleep(0.02)
        return PeerError(f"another rank ended while rank {self.world.rank} waited in {tag} ({str(error).splitlines()[0]})")

    def _open_group(self) -> None:
        world, startup = self.world, datetime.timedelta(seconds=self._startup_timeout_s)
        address = f"tcp://{world.address}:{world.port}"
        url = "env://" if world.launcher != "none" else address
        try:
            store, _, _ = next(dist.rendezvous(url, rank=world.rank, world_size=world.size, timeout=startup))
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if self.backend == "nccl" else "gloo",
                store=dist.PrefixStore("lockstep", store),
                rank=world.rank,
                world_size=world.size,
                timeout=datetime.timedelta(seconds=self._timeout_s),
            )
        except (RuntimeError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise PeerError(
                f"rank {world.rank} could not meet the other {world.size - 1} ranks at {world.address}:{world.port} "
                f"within startup_timeout_s={self._startup_timeout_s:g}: {reason}"
            ) from error

    def _open_segment(self) -> None:
        """Share memory with the other ranks; if one of them may not open it, none uses it."""
        world = self.world
        spin = usable_cores() >= world.local_size
        made = Segment.create(0, world.size, spin=spin) if world.rank == 0 and supported() else None
        address = self.broadcast_object(made.address if made else None)
        if made is None and address:
            try:
                made = Segment.attach(address, world.rank, world.size, spin=spin)
            except OSError:
                made = None
        if not all(self.gather_object(made is not None)):
            if made is not None:
                made.close()
            return
        assert made is not None
        self.timers.publish(made.row(world.local_rank))
        self._segment = made
        self._slots = Slots(made, self._nodes, self.broadcast_object, self.barrier, self._timeout_s, self.timers)


def device_of(world: World, device: str) -> torch.device:
    """The device of this rank. Raises `ConfigError` on *every* rank of a host with more ranks than GPUs."""
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if count == 0:
        raise ConfigError("device=cuda, but torch sees no GPU; use --set device=cpu, or `lockstep doctor` to see why")
    if world.local_size > count:
        raise ConfigError(
            f"{world.local_size} processes on a machine where torch sees {count} GPU(s); "
            f"use --nproc_per_node={count} (--ranks {count}), or --set device=cpu"
        )
    return torch.device("cuda", world.local_rank)


def _backend_of(device: torch.device, backend: str) -> str:
    if backend == "nccl" and device.type == "cpu":
        raise ConfigError("backend=nccl needs GPUs, but this rank computes on the CPU; use --set backend=gloo")
    return backend if backend != "auto" else "nccl" if device.type == "cuda" else "gloo"
