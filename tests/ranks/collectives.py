"""Functions called inside ranks by `test_collectives.py`: each opens a Comm and does something to it."""

import atexit
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from lockstep import World
from lockstep.errors import PeerError
from lockstep.torch.comm import Comm
from lockstep.torch.flat import FlatParameters


def here(rank: int, port: int, **kwargs: Any) -> World:
    return World(rank=rank, size=int(os.environ["WORLD_SIZE"]), address="127.0.0.1", port=port, **kwargs)


def leave_at_once() -> None:
    """Have this process end without tearing torch down: with a broken group that aborts now and then."""
    atexit.register(os._exit, 0)


def all_collectives(rank: int, ports: dict[str, int]) -> dict[str, Any]:
    """Every collective, through shared memory, through messages, and by the backend's own sum."""
    found: dict[str, Any] = {}
    for name, port in ports.items():
        world = here(rank, port).with_shards(None if name == "plain" else 5)
        with Comm(world, device="cpu", timeout_s=20, shared_memory=name == "memory") as comm:
            rows = torch.tensor([[10.0**shard, shard / 3] for shard in world.shards])
            value = torch.tensor([float(rank + 1), 2.0])
            data = torch.arange(6.0).view(3, 2) * (rank + 1)
            weight = torch.tensor([1.0, 0.0, 2.0])
            module = nn.Linear(2, 1, bias=False)
            module.weight.data.fill_(1.0)
            module.weight.grad = torch.full((1, 2), float(rank))
            total = comm.average_gradients_(module.parameters(), weight=1.0 + 3 * rank)
            found[name] = {
                "sum_shards": comm.sum_shards(rows).tolist(),
                "sum": comm.sum(value).tolist(),
                "mean": comm.mean(value).tolist(),
                "weighted": comm.mean(value, weight=3.0 if rank else 1.0).tolist(),
                "not weighed": comm.mean(value if rank == 0 else value * torch.nan, weight=1.0 - (rank > 0)).tolist(),
                "max": comm.max(value).tolist(),
                "any": [comm.any(rank == 1), comm.any(False)],
                "moments": [x.tolist() for x in comm.moments(data, weight)],
                "gather": comm.gather_object({"rank": rank, "array": np.arange(rank)}),
                "broadcast": comm.broadcast_object([rank, "é"] if rank == 1 else None, source=1),
                "gradient": module.weight.grad.tolist(),
                "weight": total.tolist(),
                "large": float(comm.sum(torch.full((300_000,), 1.0)).sum()),
                "double": comm.sum(torch.tensor([1e-17, 1.0], dtype=torch.float64)).tolist(),
                "messages": sum(comm.num_messages.values()),
            }
    return found


def flat_gradients(rank: int, port: int) -> dict[str, Any]:
    """Two local shards of unequal weight in each of two ranks."""
    world = here(rank, port).with_shards(4)
    with Comm(world, device="cpu", timeout_s=20) as comm:
        module = nn.Linear(3, 1)
        module.load_state_dict({"weight": torch.ones(1, 3), "bias": torch.zeros(1)})
        flat = FlatParameters(module, len(world.shards), num_sums=2)
        for k, shard in enumerate(world.shards):
            rows = torch.full((shard + 1, 3), float(shard))
            flat.zero_gradient_()
            module(rows).sum().backward()
            flat.keep(k, torch.tensor([float(len(rows)), float(shard)]))
        told = comm.average_gradients_(flat)
        return {"gradient": flat.gradient.tolist(), "sums": told.tolist(), "messages": dict(comm.num_messages)}


def differ(rank: int, ports: dict[str, int]) -> dict[str, str]:
    """Collectives of equal size, but not the same one: what each way of exchange says."""
    found: dict[str, str] = {}
    for name, port in ports.items():
        pinned = here(rank, port).with_shards(None if name == "plain" else 2)
        try:
            with Comm(pinned, device="cpu", timeout_s=3, shared_memory=name == "memory") as comm:
                rows = torch.ones(1, 8)
                comm.sum_shards(rows, "moments")
                comm.sum_shards(rows, "average_gradients" if rank == 0 else "log")
            found[name] = "nothing"
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def objects_differ(rank: int, port: int) -> str:
    try:
        with Comm(here(rank, port), device="cpu", timeout_s=3) as comm:
            comm.gather_object(1, "evaluate" if rank == 0 else "summary")
        return "nothing"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def unequal(rank: int, port: int) -> list[str]:
    """One bit of one tensor differs on rank 1; a second one is a negative zero there."""
    found: list[str] = []
    with Comm(here(rank, port), device="cpu", timeout_s=20) as comm:
        tensors = {"policy.weight": torch.ones(3), "optimizer.exp_avg": torch.zeros(2)}
        tensors["learning_rate"] = torch.tensor(1.0)
        comm.check_equal(tensors)
        for name in ("policy.weight", "optimizer.exp_avg"):
            changed = {key: value.clone() for key, value in tensors.items()}
            if rank == 1:
                changed[name][1] = torch.nextafter(torch.tensor(1.0), torch.tensor(2.0)) if name[0] == "p" else -0.0
            try:
                comm.check_equal(changed)
                found.append("nothing")
            except Exception as error:
                found.append(f"{type(error).__name__}: {error}")
    return found


def peer_dies(rank: int, port: int, folder: str, how: str) -> None:
    """Rank 1 is killed while rank 0 waits for it; rank 0 writes down what it learned and after how long."""
    # The launcher would stop the others at once; here they are to find out alone.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with Comm(here(rank, port).with_shards(2), device="cpu", timeout_s=30, shared_memory=how == "memory") as comm:
        comm.sum_shards(torch.ones(1, 2), "moments")
        if rank == 1:
            time.sleep(0.5)
            Path(folder, "died_at").write_text(str(time.monotonic()))
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            comm.sum_shards(torch.ones(1, 2), "average_gradients")
            said, number = "nothing", None
        except Exception as error:
            noticed = time.monotonic()
            said, number = f"{type(error).__name__}: {error}", error.rank if isinstance(error, PeerError) else None
            Path(folder, "told").write_text(f"{noticed}\n{number}\n{said}")
            raise


def peer_stalls(rank: int, port: int, way: str) -> tuple[float, str]:
    """Rank 1 does not come to the collective within the timeout."""
    leave_at_once()
    start = 0.0
    try:
        with Comm(here(rank, port).with_shards(2), device="cpu", timeout_s=1, shared_memory=way == "memory") as comm:
            comm.sum_shards(torch.ones(1, 2), "moments")
            start = time.monotonic()
            if rank == 1:
                time.sleep(3.5)
            comm.sum_shards(torch.ones(1, 2), "average_gradients")
    except Exception as error:
        return time.monotonic() - start, f"{type(error).__name__}: {error}"
    return 0.0, "nothing"


def comm_dies_with_an_error(rank: int, ports: list[int]) -> list[bool]:
    """After an exception inside, the group is destroyed and another Comm can be opened."""
    import torch.distributed as dist

    found: list[bool] = []
    try:
        with Comm(here(rank, ports[0]), device="cpu", timeout_s=20):
            raise KeyError("mine")
    except KeyError:
        found.append(dist.is_initialized())
    with Comm(here(rank, ports[1]), device="cpu", timeout_s=20) as comm:
        found.append(comm.any(rank == 0))
    found.append(dist.is_initialized())
    return found


def one_gpu(rank: int, port: int) -> str:
    """Two processes where torch would see one GPU."""
    from unittest import mock

    available = mock.patch.object(torch.cuda, "is_available", return_value=True)
    with available, mock.patch.object(torch.cuda, "device_count", return_value=1):
        try:
            Comm(here(rank, port))
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return "nothing"


def start_unequal(rank: int, port: int, folder: str) -> str:
    """Rank 1 was started with another config."""
    from running import small

    from lockstep.train import train

    try:
        train(small("lockstep/Corridor-v0", learning_rate=1e-3 * (1 + rank)), run_dir=folder, world=here(rank, port))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def one_after_another(rank: int, calls: list[tuple[str, tuple[Any, ...]]]) -> dict[str, Any]:
    """Several of the above in the same processes: starting them costs more than what they do."""
    leave_at_once()
    return {name: globals()[name](rank, *args) for name, args in calls}
