"""Functions called inside ranks by `test_pretended_gpu.py`: collectives of tensors on a pretended GPU."""

from typing import Any
from unittest import mock

import torch
from collectives import here
from torch import nn

from lockstep.errors import RunError
from lockstep.torch import comm as comm_module
from lockstep.torch.collectives import group
from lockstep.torch.comm import Comm
from lockstep.torch.flat import FlatParameters
from pretended_device import PretendedDevice


def sums(rank: int, ports: dict[str, int]) -> dict[str, Any]:
    """All collectives of tensors, as with NCCL and as with gloo; and what made the host wait for the GPU."""
    found: dict[str, Any] = {}
    for name, port in ports.items():
        backend, _, kind = name.partition(" ")
        world = here(rank, port).with_shards(4 if kind == "pinned" else None)
        with (
            Comm(world, device="cpu", timeout_s=20, shared_memory=False) as comm,
            PretendedDevice() as device,
            mock.patch.object(group, "is_on_gpu", device.holds),
            mock.patch.object(comm_module, "is_on_gpu", device.holds),
            mock.patch.object(comm._group, "_backend", backend),
        ):
            on_gpu = torch.device("cpu")
            module = nn.Linear(2, 1, bias=False)
            flat = FlatParameters(module.to(on_gpu), len(world.shards), num_sums=1)
            results: list[Any] = []
            waits = []
            for step in range(3):
                for k, shard in enumerate(world.shards):
                    flat.rows[k].copy_(torch.tensor([1.0 + shard, step, 2.0]).to(on_gpu, non_blocking=True))
                before = sum(device.waits.values())
                comm.start_gradients_(flat)
                sums = comm.average_gradients_(flat)
                waits.append(sum(device.waits.values()) - before)
                results.append([*flat.gradient.tolist(), *sums.tolist()])
            value = torch.arange(3, dtype=torch.int64).to(on_gpu) + rank
            results.append(comm.max(value).tolist())
            comm.broadcast_([value], source=1)
            results.append(value.tolist())
            on_device = all(map(device.holds, (value, flat.gradient, sums)))
            found[name] = {"results": results, "waits": waits, "on device": on_device}
    return found


def different(rank: int, port: int) -> str:
    """Ranks in different collectives of equal size, which NCCL would add without a word."""
    try:
        with (
            Comm(here(rank, port), device="cpu", timeout_s=20, shared_memory=False) as comm,
            PretendedDevice() as device,
            mock.patch.object(group, "is_on_gpu", device.holds),
            mock.patch.object(group, "_CHECK_EVERY", 1),
            mock.patch.object(comm._group, "_backend", "nccl"),
        ):
            value = torch.ones(2, device=torch.device("cpu"))
            comm.sum(value, "both")
            comm.sum(value, "one" if rank else "another")
    except RunError as error:
        return str(error)
    return "nothing"
