"""The collectives of PyTorch.

Every sum over shards is taken along the tree of `lockstep.distributed.tree`. CPU ranks of one host reduce through
shared memory, and hosts exchange one message (`lockstep.distributed.network.hosts`); otherwise each rank gathers the
partial sums of all ranks and completes the tree. With one rank every collective is the identity, or a copy, without
process group, server or thread.
"""

import contextlib
import math
from collections.abc import Callable, Generator, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self, cast

import numpy as np
import torch
from torch import Tensor, nn

from lockstep.distributed import messages, peers
from lockstep.distributed.agreement import check_different, layout_hash, mismatch_error
from lockstep.distributed.arguments import check_number, check_source, check_timeouts, check_weight
from lockstep.distributed.network.host_layout import open_hosts
from lockstep.distributed.shared_memory import ordered
from lockstep.distributed.timers import SYNC, Timers
from lockstep.distributed.tree import Node, owned_nodes, tree_sum
from lockstep.distributed.watch import Observed
from lockstep.errors import ConfigError
from lockstep.torch.collectives import arguments
from lockstep.torch.collectives.buckets import GradientBuckets
from lockstep.torch.collectives.checksum import checksum, identity, type_and_shape
from lockstep.torch.collectives.group import Group, is_on_gpu
from lockstep.torch.collectives.host_tensors import Add, HostTensors
from lockstep.torch.collectives.moments import moments_of, sums_of
from lockstep.torch.flat import FlatParameters, divisor, divisor_of_gradients
from lockstep.torch.hardware import backend_of, device_of
from lockstep.world import World

_BUCKET_BYTES = 25 << 20
"""Of gradients that are sent together during a backward pass; as DistributedDataParallel's default."""
_OVERLAPPED_BYTES = 2 * _BUCKET_BYTES
"""Smaller gradients are one message after the backward pass."""


class Comm:
    """The collectives of a world, as a context manager.

    Every method marked *collective* must be called by all ranks in the same order. Collectives are numbered and tagged:
    ranks in different ones are detected even if the sizes are equal.

    Args:
        world: the ranks.
        device: `auto` takes the GPU of the local rank if the machine has one.
        backend: `auto` is nccl on GPUs and gloo on CPUs.
        timeout_s: timeout of every collective.
        startup_timeout_s: timeout of the rendezvous.
        timers: record when this rank synchronises and waits.
        shared_memory: whether CPU ranks of one host may reduce through shared memory. Ranks of one host, also those on
            GPUs, share their status in any case.
        share_gpus: allow several ranks on one GPU; collectives are then gloo's.

    Attributes:
        device: of this rank's tensors.
        num_messages: number of messages sent, by tag.
    """

    def __init__(  # noqa: PLR0913  # the settings of all collectives, once, by keyword
        self,
        world: World | None = None,
        *,
        device: str | torch.device = "auto",
        backend: str = "auto",
        timeout_s: float = 120.0,
        startup_timeout_s: float = 300.0,
        timers: Timers | None = None,
        shared_memory: bool = True,
        share_gpus: bool = False,
    ) -> None:
        check_timeouts(timeout_s, startup_timeout_s)
        self.world = world or World.from_environment()
        self.device = device_of(self.world, device, share_gpus=share_gpus)
        self.backend = backend_of(self.device, backend, share_gpus=share_gpus)
        self.timers = timers or Timers()
        self._group = Group(self.world, self.backend, self.timers, timeout_s, startup_timeout_s)
        self.num_messages = self._group.num_messages
        self._timeout_s = timeout_s
        self._nodes = [
            owned_nodes(self.world.shards_of(rank), self.world.num_shards) for rank in range(self.world.size)
        ]
        self._root: Node = (0, self.world.num_shards)
        self._shared_memory = shared_memory and ordered()
        self._hosts: HostTensors | None = None
        self._objects: Group | HostTensors = self._group
        self._open = False
        self._inside = False
        self._failed: str | None = None
        """The first collective that failed on this rank."""
        self._buckets: dict[FlatParameters, GradientBuckets] = {}

    def __enter__(self) -> Self:
        """Open the process group; *collective*. Raises `PeerError` if other ranks do not join."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
            self.timers.use_events(partial(torch.cuda.Event, enable_timing=True))
        if self.world.size > 1:
            self._group.open()
            self._open = True
            try:
                self._open_hosts()
            except BaseException:
                self._open = False
                self._group.close()  # else this process could not open another one
                raise
        return self

    def _open_hosts(self) -> None:
        self._group.segment, hosts = open_hosts(
            self.world, self.gather_object, self.timers, self.num_messages, self._shared_memory, self._timeout_s
        )
        tensors = None if hosts is None else HostTensors(hosts)
        self._objects = tensors or self._group
        self._hosts = tensors if self.device.type == "cpu" else None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the group, also after an exception."""
        try:
            if error is None and self.world.size > 1:
                self.barrier("close")  # no rank exits while others may still check whether it is alive
        except BaseException as failed:
            error = failed
            raise
        finally:
            if isinstance(self._objects, HostTensors):
                self._objects.hosts.close(error)
            self._hosts, self._objects = None, self._group
            self._open = False
            self._group.close()

    def announce_failure(self, reason: str) -> None:
        """Send the other hosts the reason why this process exits; not collective, and from any thread."""
        if isinstance(self._objects, HostTensors):
            self._objects.hosts.announce_failure(reason)

    # -- sums ----------------------------------------------------------------------------------------------------------

    def sum_shards(self, rows: Tensor, tag: str = "sum_shards") -> Tensor:
        """The sum over all shards of one row [n] each, the same bits on any number of ranks; *collective*, one message.

        Not differentiable; returns a new tensor. Types as those of `sum`.

        Args:
            rows: [K, n], one row for each shard of this rank.
            tag: name of the sum, for errors about ranks in different collectives.
        """
        return self._sum_rows(_summed_type(arguments.rows(rows)), tag).clone()

    def sum_statistics(self, rows: np.ndarray, tag: str = "sum_statistics") -> np.ndarray:
        """`sum_shards` of numpy numbers, [K, n] float64; *collective*, one message."""
        return self.sum_shards(torch.from_numpy(np.array(rows, np.float64)), tag).numpy()

    def _sum_rows(self, rows: Tensor, tag: str, layout: int = 0) -> Tensor:
        """As `sum_shards`; the next collective may overwrite the result. Ranks compare the `layout_code`."""
        check_number(len(rows), len(self.world.shards))
        if _is_narrow(rows):
            return self._sum_rows(rows.float(), tag, layout).to(rows.dtype)
        leaves = {(shard, shard + 1): row for shard, row in zip(self.world.shards, rows, strict=True)}
        partial = [tree_sum(leaves, node, torch.add) for node in self._nodes[self.world.rank]]
        if self.world.size == 1:
            return partial[0]
        if self._hosts is None and not self.world.pinned:
            with self._entered(tag):
                return self._group.sum(torch.stack(partial).sum(0), tag, layout)
        return tree_sum(self._exchange(partial, tag, torch.add, layout), self._root, torch.add)

    def sum(self, value: Tensor, tag: str = "sum") -> Tensor:
        """The sum over ranks; *collective*. Not differentiable; returns a new tensor.

        Floating-point numbers of fewer than 32 bits are added as float32. Integers and booleans are added, and
        returned, as int64.
        """
        value = _summed_type(arguments.tensor(value))
        if self.world.size == 1:
            return value.clone()
        return self._sum_over_ranks(value.reshape(-1), tag).clone().view(value.shape)

    def _sum_over_ranks(self, value: Tensor, tag: str, layout: int = 0) -> Tensor:
        """As `_sum_rows`, of one row [n] for each rank."""
        rows = value.new_zeros(len(self.world.shards), value.numel())
        rows[0] = value
        return self._sum_rows(rows, tag, layout)

    def mean(self, value: Tensor, weight: Tensor | float = 1.0, tag: str = "mean") -> Tensor:
        """The mean over ranks weighted by `weight`; values of weight 0 are ignored, even NaN; *collective*.

        That of integers is float32. One rank has the mean of its own value, whatever the weight; of several whose
        weights are all 0 the mean is NaN. Not differentiable; returns a new tensor.
        """
        check_weight(weight)
        value = arguments.tensor(value)
        value = value if value.is_floating_point() or value.is_complex() else value.float()
        if self.world.size == 1:
            return value.clone()
        if _is_narrow(value):
            return self.mean(value.float(), weight, tag).to(value.dtype)
        weight = torch.as_tensor(weight, dtype=value.real.dtype, device=value.device)
        part = torch.where(weight > 0, value * weight, torch.zeros_like(value))
        total = self.sum(torch.cat([part.reshape(-1), weight.reshape(1)]), tag)
        return (total[:-1] / total[-1].real).view(value.shape)

    def max(self, value: Tensor, tag: str = "max") -> Tensor:
        """The largest value over ranks; *collective*. Not differentiable; returns a new tensor."""
        value = arguments.real(value, "max")
        if self.world.size == 1:
            return value.clone()
        if (
            value.element_size() < 4 or value.dtype == torch.uint32
        ):  # neither torch nor gloo compares all of these types
            return self.max(value.float() if _is_narrow(value) else value.long(), tag).to(value.dtype)
        parts = self._exchange([value.reshape(-1) for _ in self._nodes[self.world.rank]], tag, torch.maximum)
        return tree_sum(parts, self._root, torch.maximum).clone().view(value.shape)

    def any(self, flag: bool, tag: str = "any") -> bool:
        """Whether `flag` is true on any rank, to turn a local condition into a common decision; *collective*."""
        flag = arguments.flag(flag)
        if self.world.size == 1:
            return flag
        return bool(self.sum(torch.tensor([float(flag)], device=self.device), tag) > 0)

    def moments(
        self, value: Tensor, weight: Tensor | None = None, tag: str = "moments"
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Count, mean and variance of the rows of `value` [N, *F] of all ranks together; *collective*, one message.

        A rank may have no rows. Rows of weight 0 are ignored, even NaN. Moments of integers are float32. Not
        differentiable; returns new tensors.

        Args:
            value: this rank's rows.
            weight: [N], of each row; default 1. If all are 0, so are mean and variance.
            tag: name of the collective, for errors about ranks in different collectives.
        """
        value, weight = arguments.weighed(value, weight)
        shape = value.shape[1:]
        kind = value.dtype if value.is_floating_point() else torch.float32
        rows = value.double().reshape(len(value), math.prod(shape))
        total = self.sum(sums_of(rows, weight, self.world.rank, self.world.size), tag)
        count, mean, variance = moments_of(total, self.world.size)
        return count, mean.view(shape).to(kind), variance.view(shape).to(kind)

    def start_gradients_(self, flat: FlatParameters, tag: str = "average_gradients") -> None:
        """Let the next backward pass send large gradients for `average_gradients_` while it computes the rest.

        Call it before that one backward pass, on every rank. It has an effect on gradients of at least 50 MB, with one
        local shard, where the backend takes the sum: nccl, or gloo on CPUs without shared memory, in a run that is not
        pinned.
        Gradients that no backward pass computes, as those of compiled and captured steps, are sent by
        `average_gradients_`.
        """
        if not self.overlaps_gradients(flat):
            return
        if flat not in self._buckets:

            def start_sum(part: Tensor, first: bool) -> Callable[[], object]:
                with self._entered(tag):
                    return self._group.start_sum(part, tag, flat.rows.nbytes if first else None, flat.layout)

            self._buckets[flat] = GradientBuckets(flat, start_sum, _BUCKET_BYTES)
        self._buckets[flat].start()

    def overlaps_gradients(self, flat: FlatParameters) -> bool:
        """Whether `start_gradients_` has an effect on these gradients."""
        world = self.world
        several = world.num_shards != world.size or len(flat.rows) > 1  # the first is equal on all ranks
        if world.size == 1 or world.pinned or self._hosts is not None or several:
            return False
        if self.backend == "gloo" and is_on_gpu(flat.params):
            return False
        return flat.rows.nbytes >= _OVERLAPPED_BYTES

    def average_gradients_(
        self,
        parameters: nn.Module | Tensor | FlatParameters | Iterable[Tensor],
        weight: Tensor | float = 1.0,
        tag: str = "average_gradients",
    ) -> Tensor:
        """Give every rank the mean gradient of the global batch; *collective*, one message. Clip afterwards.

        With `FlatParameters`, after `store_shard` of every local shard: the sum of all gradients is divided by the sum
        of all weights, and the sums over all shards are returned. With an ordinary module, or its parameters, `.grad`
        holds this rank's *mean* over its part of the batch, which counts `weight` (rows, say). A rank of weight 0 is
        ignored. Where the total weight is 0, so is the gradient: skip such a step. `.grad` stays None where it is None
        on all ranks. Ranks whose parameters have other names, shapes or another order are detected.
        """
        if isinstance(parameters, FlatParameters):
            arguments.no_weight(weight)
            return self._average_flat(parameters, tag)
        check_weight(weight)
        weight = weight.item() if isinstance(weight, Tensor) else float(weight)
        check_weight(weight)  # of a tensor on a GPU, too
        return torch.tensor([self._average_module(arguments.parameters(parameters), weight, tag)])

    def _average_flat(self, flat: FlatParameters, tag: str) -> Tensor:
        """`average_gradients_` of flat parameters. Returns the sums over all shards."""
        flat.check_views()
        flat.check_stored()
        buckets = self._buckets.get(flat)
        if buckets is None or not buckets.started:
            total = self._sum_rows(flat.rows, tag, flat.layout)
        else:
            total = self._sum_rest(flat, buckets, tag)
        sums = total[flat.num_parameters :].clone()
        torch.div(total[: flat.num_parameters], divisor_of_gradients(sums[0]), out=flat.gradient)
        return sums

    def _average_module(self, named: arguments.Named, weight: float, tag: str) -> float:
        """`average_gradients_` of parameters with gradients of their own. Returns the total weight."""
        trained = [parameter for _, parameter in named]
        if self.world.size == 1:
            for parameter in trained:
                if weight == 0 and parameter.grad is not None:
                    parameter.grad.zero_()
            return weight
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in trained]
        flat = torch.cat([g.reshape(-1) for g in gradients]) if trained else torch.zeros(0, device=self.device)
        flat = flat.float() if _is_narrow(flat) else flat
        flat = flat * weight if weight > 0 else torch.zeros_like(flat)  # 0 times NaN is NaN
        rest = flat.new_tensor([weight, *(float(p.grad is not None) for p in trained)])
        total = self._sum_over_ranks(torch.cat([flat, rest]), tag, arguments.layout(named))
        count, total_weight = flat.numel(), total[flat.numel()].real
        means = torch.split(total[:count] / divisor(total_weight), [g.numel() for g in gradients])
        holders = cast("list[float]", total[count + 1 :].real.tolist())
        for parameter, mean, held in zip(trained, means, holders, strict=True):
            parameter.grad = mean.view_as(parameter).to(parameter.dtype) if held else None
        return float(total_weight)

    def _sum_rest(self, flat: FlatParameters, buckets: GradientBuckets, tag: str) -> Tensor:
        """The sum over ranks of the only row, of which buckets were sent during the backward pass."""
        row = flat.rows[0]
        with self._entered(tag):
            count = buckets.stop()
            rest = self._group.sum(torch.cat([row[:count], row[flat.num_parameters :]]), tag, flat.layout)
            buckets.wait()
            row[:count] = rest[:count]
            row[flat.num_parameters :] = rest[count:]
        return row

    # -- equal on all ranks --------------------------------------------------------------------------------------------

    def broadcast_(self, tensors: nn.Module | Tensor | Iterable[Tensor], source: int = 0) -> None:
        """Broadcast tensors, or the parameters and buffers of a module, from rank `source`, in place; *collective*.

        Ranks whose tensors have other names, shapes or another order are detected.
        """
        check_source(source, self.world.size)
        named = arguments.tensors(tensors)
        if self.world.size == 1:
            return
        layout = arguments.layout(named)
        alike: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        for _, tensor in named:
            alike.setdefault((tensor.dtype, tensor.device), []).append(tensor.detach())
        for group in alike.values():
            flat = torch.cat([t.reshape(-1) for t in group])
            with self._entered("broadcast"):
                channel = self._objects if flat.device.type == "cpu" else self._group
                channel.broadcast_(flat, source, "broadcast", layout)
            for tensor, part in zip(group, torch.split(flat, [t.numel() for t in group]), strict=True):
                tensor.copy_(part.view_as(tensor))

    def broadcast_object(self, value: Any = None, source: int = 0, tag: str = "broadcast_object") -> Any:
        """Broadcast the JSON-able value (arrays allowed) of rank `source`; *collective*."""
        check_source(source, self.world.size)
        return self.gather_object(value if self.world.rank == source else None, tag)[source]

    def gather_object(self, value: Any, tag: str = "gather_object") -> list[Any]:
        """Gather the JSON-able values (arrays allowed) of all ranks, in rank order, on every rank; *collective*."""
        if self.world.size == 1:
            return [messages.decode(messages.encode(value))]
        body = torch.frombuffer(bytearray(messages.encode(value)), dtype=torch.uint8)
        with self._entered(tag):
            sizes = [int(size) for size in self._objects.gather(torch.tensor([len(body)]), tag)]
            padded = torch.zeros(max(sizes), dtype=torch.uint8)
            padded[: len(body)] = body
            bodies = self._objects.gather(padded, tag)
        return [messages.decode(b[:size].numpy().tobytes()) for b, size in zip(bodies, sizes, strict=True)]

    def barrier(self, tag: str = "barrier") -> None:
        """Wait for all ranks; *collective*."""
        self.gather_object(None, tag)

    def check_equal(self, tensors: nn.Module | Mapping[str, Any], tag: str = "check_equal") -> None:
        """Raise `MismatchError`, naming ranks and tensors, unless all hold the same bits; *collective*.

        One message; only on a mismatch a second one, with a digest of each tensor. Tensors, arrays and numbers by name
        may be nested.
        """
        named = arguments.by_name(tensors)
        if self.world.size == 1:
            return
        shapes = torch.tensor(layout_hash({name: type_and_shape(tensor) for name, tensor in named.items()}))
        mine = torch.stack([checksum(named.values()).to(self.device), shapes.to(self.device)])
        # One message of four integers. ~x decreases in x, so max(~x) = ~min(x): every rank decides from the same four.
        largest = cast("list[int]", self.max(torch.cat([mine, ~mine]), tag).tolist())
        if largest[0] != ~largest[2] or largest[1] != ~largest[3]:
            raise mismatch_error(self.gather_object({name: identity(tensor) for name, tensor in named.items()}, tag))

    def check_different(self, fingerprint: str, tag: str = "check_different") -> None:
        """Raise `RunError` if two ranks have the same fingerprint, as of their data; *collective*."""
        check_different(self.gather_object, fingerprint, tag)

    def observe(self) -> list[Observed]:
        """The current status of the ranks of this host; not collective."""
        return peers.observe(self._group.segment, self.world.rank, self.timers.row, self._group.tag)

    def _exchange(self, parts: list[Tensor], tag: str, add: Add, layout: int = 0) -> Mapping[Node, Tensor]:
        """Gather the tensors of each rank's nodes; returns enough nodes to complete the tree."""
        with self._entered(tag):
            if self._hosts is not None:
                return self._hosts.exchange(parts, tag, add, layout)
            width = max(len(nodes) for nodes in self._nodes)  # a rank with fewer nodes than others pads with zeros
            padding = parts[0].new_zeros((width - len(parts)) * parts[0].numel())
            every = self._group.gather(torch.cat([*parts, padding]), tag, layout)
            gathered = every.view(self.world.size, width, -1)
            return {node: gathered[rank, i] for rank, nodes in enumerate(self._nodes) for i, node in enumerate(nodes)}

    @contextlib.contextmanager
    def _entered(self, tag: str) -> Generator[None]:
        """Mark this rank as inside a collective; within another one, the outer collective stays marked.

        After one that failed, the ranks may be in different ones of equal size and tag: none can follow.
        """
        if self._inside:
            yield
            return
        if not self._open:
            raise ConfigError(f"{tag} was called before or after `with Comm(...) as comm:`; call it inside")
        if self._failed is not None:
            raise peers.after_failure(tag, self._failed)
        self._inside = True
        self._group.enter(tag)
        previous = self.timers.enter(SYNC)
        try:
            yield
        except BaseException:
            self._failed = tag
            raise
        finally:
            self._inside = False
        self.timers.enter(previous)  # not after an error, so that its message names the phase


def _is_narrow(value: Tensor) -> bool:
    """Whether these are floating-point numbers of fewer than 32 bits, whose sums over ranks would lose digits."""
    return value.is_floating_point() and value.element_size() < 4


def _summed_type(value: Tensor) -> Tensor:
    """Integers and booleans as int64: sums of narrow ones would overflow."""
    return value if value.is_floating_point() or value.is_complex() else value.long()
