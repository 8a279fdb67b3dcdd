"""Functions called inside ranks by `test_collectives.py`: each opens a Comm and does something to it."""

import atexit
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn

from lockstep import World
from lockstep.errors import ConfigError, MismatchError, PeerError
from lockstep.torch import comm as comm_module
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


def odd_inputs(rank: int, ports: dict[str, int]) -> dict[str, Any]:
    """What torch, or gloo, does not take by itself."""
    return {name: _odd_inputs(rank, name, port) for name, port in ports.items()}


def _odd_inputs(rank: int, name: str, port: int) -> dict[str, Any]:
    world = here(rank, port).with_shards(None if name == "plain" else 2)
    comm = Comm(world, device=torch.device("cpu"), timeout_s=20, shared_memory=name == "memory")
    before = said(comm, lambda: comm.sum(torch.ones(1)))
    with comm:
        table = nn.Embedding(3, 2, sparse=True)
        table.weight.data.fill_(0.0)
        table(torch.tensor([rank])).sum().backward()
        comm.average_gradients_(table)
        alone = nn.Parameter(torch.zeros(2))
        alone.grad = torch.full((2,), 1.0 + rank)
        comm.average_gradients_(alone)
        turned = nn.Parameter(torch.zeros(1, dtype=torch.complex64))
        turned.grad = torch.tensor([1.0 + 1j * rank])
        comm.average_gradients_([turned])
        small = torch.tensor([rank], dtype=torch.int16)
        comm.broadcast_([small], source=1)
        found = {
            "before": before,
            "sparse": table.weight.grad.to_dense().flatten().tolist(),
            "one": alone.grad.tolist(),
            "complex": turned.grad.tolist(),
            "complex mean": comm.mean(torch.tensor([2j * rank])).tolist(),
            "frozen": comm.average_gradients_(nn.Linear(1, 1).requires_grad_(False), weight=2.0).tolist(),
            "small": small.tolist(),
            "largest": comm.max(torch.tensor([-rank], dtype=torch.int16)).tolist(),
            "narrow": comm.sum_shards(torch.full((len(world.shards), 1), 0.5, dtype=torch.bfloat16)).tolist(),
            "narrow whole": [
                (str(total.dtype), total.tolist())
                for kind, number in ((torch.int8, 100), (torch.bool, 1), (torch.uint8, 200))
                for total in [comm.sum_shards(torch.full((len(world.shards), 1), number).to(kind))]
            ],
            "uint32": comm.max(torch.tensor([rank], dtype=torch.uint32)).tolist(),
            "negated later": comm.max(torch.tensor([rank * 1j]).conj().imag).tolist(),
            "statistics": comm.sum_statistics([[2**53]] * len(world.shards)).tolist(),
            "moments of nothing": comm.moments(torch.ones(2, 0))[1].tolist(),
            "source": said(comm, lambda: comm.broadcast_([torch.zeros(2)], source=2)),
            "object": said(comm, lambda: comm.broadcast_object(source=-1)),
            "weight": said(comm, lambda: comm.mean(torch.ones(1), weight=-1.0)),
            "weights": said(comm, lambda: comm.mean(torch.ones(2), weight=torch.ones(2))),
            "rows": said(comm, lambda: comm.sum_shards(torch.ones(len(world.shards) + 1, 2))),
            "computed": said(comm, lambda: comm.average_gradients_([alone * 2])),
            "still": comm.sum(torch.ones(1)).tolist(),
        }
    found["after"] = said(comm, lambda: comm.sum(torch.ones(1)))
    return found


def results_alone(rank: int, ports: dict[str, int]) -> dict[str, Any]:
    """Which results have a gradient, and the given tensor after they were overwritten."""
    found: dict[str, Any] = {}
    for name, port in ports.items():
        with opened(rank, port, name, 20) as comm:
            value = torch.tensor([[1.0, rank]], requires_grad=True)
            results = {
                "sum": comm.sum(value),
                "mean": comm.mean(value, weight=value[0, 0]),
                "max": comm.max(value),
                "sum_shards": comm.sum_shards(value),
                "moments": torch.stack(comm.moments(value, value[0, :1])[1:]),
            }
            found[name] = [key for key, result in results.items() if result.requires_grad]
            for result in results.values():
                result.detach().zero_()
            found[f"{name} given"] = value.tolist()
            far = torch.arange(5, dtype=torch.float64) + 5 * rank + 1.7e9
            ignored = comm.moments(torch.tensor([3.0 - 2 * rank, torch.nan]), torch.tensor([1.0, 0.0]))
            found[f"{name} moments"] = [float(comm.moments(far)[2]), *(float(x) for x in ignored)]
    return found


def said(comm: Comm, call: Callable[[], object]) -> str:
    """The error of a call."""
    try:
        call()
    except ConfigError as error:
        return str(error)
    return "nothing"


def module_gradients(rank: int, ports: dict[str, int]) -> dict[str, Any]:
    """Gradients of ordinary modules, and sums of narrow numbers; by type, for each way of exchange."""
    found: dict[str, Any] = {}
    for name, port in ports.items():
        world = here(rank, port).with_shards(None if name == "plain" else 2)
        with Comm(world, device="cpu", timeout_s=20, shared_memory=name == "memory") as comm:
            comm.broadcast_([torch.zeros(0)])
            rows = torch.tensor([0, 1]) if rank else torch.zeros(0, dtype=torch.int64)
            whole = {
                "bytes": comm.sum(torch.tensor([200], dtype=torch.uint8)).tolist(),
                "flags": comm.sum(torch.tensor([True])).tolist(),
                "mean": comm.mean(torch.tensor([rank]), weight=0.5).tolist(),
                "moments": [float(number) for number in comm.moments(rows)],
            }
            found[name] = {
                "integers": whole,
                "bfloat16 sum": comm.sum(torch.tensor([256.0, rank], dtype=torch.bfloat16)).tolist(),
            }
            found[name]["bfloat16 max"] = comm.max(torch.tensor([rank - 1.0], dtype=torch.bfloat16)).tolist()
            for kind, weight in ((torch.float16, 40000.0), (torch.bfloat16, 257.0)):
                parameter = nn.Parameter(torch.zeros(2, dtype=kind))
                parameter.grad = torch.tensor([0.5, float(rank)], dtype=kind)
                total = comm.average_gradients_([parameter], weight + 2 * rank)
                found[name][str(kind)] = [total.tolist(), parameter.grad.dtype == kind, parameter.grad.tolist()]
            used, of_rank_1, unused = (nn.Parameter(torch.zeros(1)) for _ in range(3))
            used.grad = torch.tensor([torch.nan if rank == 0 else 2.0])
            of_rank_1.grad = torch.ones(1) if rank == 1 else None
            total = comm.average_gradients_([used, of_rank_1, unused], float(rank))
            found[name]["masked"] = [total.item(), used.grad.item(), of_rank_1.grad.item(), unused.grad]
    return found


def go_on_after_a_failure(rank: int, ports: dict[str, int]) -> dict[str, Any]:
    """What the collective after one that failed says, where a loop catches RuntimeError."""
    found: dict[str, Any] = {}
    for name, port in ports.items():
        said = found[name] = []
        try:
            with Comm(here(rank, port), device="cpu", timeout_s=20, shared_memory=name == "memory") as comm:
                for tag in ("step", f"step of rank {rank}", "step", "step"):
                    try:
                        comm.sum(torch.ones(1), tag)
                    except RuntimeError as error:
                        said.append(str(error))
        except RuntimeError as error:
            said.append(str(error))
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
            flat.store_shard(k, torch.tensor([float(len(rows)), float(shard)]))
        told = comm.average_gradients_(flat)
        return {"gradient": flat.gradient.tolist(), "sums": told.tolist(), "messages": dict(comm.num_messages)}


def overlapped_gradients(rank: int, port: int, device: str = "cpu") -> dict[str, Any]:
    """Gradients in one message, and in buckets of one layer that the backward pass sends.

    For each case the gradient, the sums, the messages sent before the first layer's gradient, and all messages.
    """
    found: dict[str, Any] = {}
    where = {"local_rank": rank, "local_size": int(os.environ["WORLD_SIZE"])} if device == "cuda" else {}
    with (
        mock.patch.object(comm_module, "_BUCKET_BYTES", 64),
        mock.patch.object(comm_module, "_OVERLAPPED_BYTES", 0),
        Comm(here(rank, port, **where), device=device, timeout_s=20, shared_memory=False) as comm,
    ):
        torch.manual_seed(0)
        first, last = (nn.Linear(4, 4).to(comm.device) for _ in range(2))
        rest = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3))).to(comm.device)
        flat = FlatParameters(nn.ModuleList([first, rest, last]), 1, num_sums=2)
        data = torch.randn(3, 4).to(comm.device) * (1 + rank)

        def gradient(*, overlap: bool, skips_last: bool) -> Any:
            before = comm.num_messages["average_gradients"]
            flat.zero_gradient_()
            if overlap:
                comm.start_gradients_(flat)
            hidden = first(data)
            early: list[int] = []
            hidden.register_hook(lambda _: early.append(comm.num_messages["average_gradients"] - before))
            outputs = rest(hidden)
            (outputs if skips_last else last(outputs)).square().sum().backward()
            flat.store_shard(0, torch.tensor([3.0, rank + 1.0], device=comm.device))
            sums = comm.average_gradients_(flat)
            return flat.gradient.tolist(), sums.tolist(), early, comm.num_messages["average_gradients"] - before

        def sum_at_once(*arguments: Any) -> Callable[[], object]:
            start_sum(*arguments)()
            return lambda: None

        start_sum = comm._group.start_sum
        for skips_last in (False, True):
            found[f"whole {skips_last}"] = gradient(overlap=False, skips_last=skips_last)
            found[f"buckets {skips_last}"] = gradient(overlap=True, skips_last=skips_last)
            with mock.patch.object(comm._group, "start_sum", sum_at_once):  # what comes too late is not summed
                found[f"buckets at once {skips_last}"] = gradient(overlap=True, skips_last=skips_last)
        found["one leaves out"] = [gradient(overlap=overlap, skips_last=rank == 1)[:2] for overlap in (False, True)]
        comm.start_gradients_(flat)
        for _ in range(2):
            try:
                first(data).sum().backward()
            except ConfigError as error:
                found["twice"] = str(error)
        flat.store_shard(0, torch.zeros(2, device=comm.device))
        comm.average_gradients_(flat)
    return found


def check_overlapped_gradients(ranks: list[dict[str, Any]], *, skips_last: bool) -> None:
    """Five layers are five buckets: four are sent as soon as they are complete, the first layer's with the sums."""
    for rank in ranks:
        gradient, sums, early, messages = rank[f"whole {skips_last}"]
        assert (early, messages) == ([0], 1)
        for way in ("buckets", "buckets at once"):
            assert rank[f"{way} {skips_last}"][0] == gradient, "a bucket was sent before its gradient was complete"
            assert rank[f"{way} {skips_last}"][1:] == (sums, [0 if skips_last else 4], 5)


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


def two_heads(trained: int) -> nn.ModuleList:
    """Two networks of equal shapes, one of them frozen."""
    heads = nn.ModuleList([nn.Linear(2, 1), nn.Linear(2, 1)])
    heads[1 - trained].requires_grad_(False)
    return heads


MIXED = {
    "order of gradients": ("gradients in order", "gradients in another"),
    "frozen": ("gradients of the first", "gradients of the second"),
    "flat": ("flat gradients of the first", "flat gradients of the second"),
    "order of a broadcast": ("broadcast in order", "broadcast in another"),
}
"""Collectives of equal tag, size and type, whose tensors would be mixed."""


def call(comm: Comm, name: str) -> None:
    """One collective of ordinary use, by its tag."""
    module = nn.Linear(4, 64)
    calls: dict[str, Callable[[], object]] = {
        "broadcast": lambda: comm.broadcast_(module),
        "average_gradients": lambda: comm.average_gradients_(module),
        "gather_object": lambda: comm.gather_object("of another size"),
        "sum": lambda: comm.sum(torch.ones(3)),
        "large sum": lambda: comm.sum(torch.ones(3000)),
        "sum of float32": lambda: comm.sum_shards(torch.ones(1, 6)),
        "sum of float64": lambda: comm.sum_shards(torch.ones(1, 3, dtype=torch.float64)),
        "sum of int64": lambda: comm.sum_shards(torch.ones(1, 3, dtype=torch.int64)),
        "broadcast of float32": lambda: comm.broadcast_([torch.ones(6)]),
        "broadcast of int32": lambda: comm.broadcast_([torch.ones(6, dtype=torch.int32)]),
        "gradients in order": lambda: comm.average_gradients_(list(module.parameters())),
        "gradients in another": lambda: comm.average_gradients_(list(module.parameters())[::-1]),
        "gradients of the first": lambda: comm.average_gradients_(two_heads(trained=0)),
        "gradients of the second": lambda: comm.average_gradients_(two_heads(trained=1)),
        "flat gradients of the first": lambda: comm.average_gradients_(FlatParameters(two_heads(trained=0))),
        "flat gradients of the second": lambda: comm.average_gradients_(FlatParameters(two_heads(trained=1))),
        "broadcast in order": lambda: comm.broadcast_(list(module.parameters())),
        "broadcast in another": lambda: comm.broadcast_(list(module.parameters())[::-1]),
    }
    calls[name]()


def opened(rank: int, port: int, way: str, timeout_s: float) -> Comm:
    world = here(rank, port).with_shards(None if way == "plain" else 2)
    return Comm(world, device="cpu", timeout_s=timeout_s, shared_memory=way == "memory")


def call_different_things(rank: int, ports: dict[str, list[int]]) -> dict[str, str]:
    """The first collective of rank 0 is another one than that of rank 1, or one of another size or type."""
    cases = {
        "broadcast": ("broadcast", "sum"),
        "average_gradients": ("average_gradients", "gather_object"),
        "gather_object": ("gather_object", "broadcast"),
        "size": ("sum", "large sum"),
        "type": ("sum of float64", "sum of int64"),
        "width": ("sum of float64", "sum of float32"),
        "type of a broadcast": ("broadcast of float32", "broadcast of int32"),
        **MIXED,
    }
    found: dict[str, str] = {}
    for way, numbers in ports.items():
        for (case, names), port in zip(cases.items(), numbers, strict=True):
            try:
                with opened(rank, port, way, 3) as comm:
                    call(comm, names[rank])
                found[f"{way} {case}"] = "nothing"
            except Exception as error:
                found[f"{way} {case}"] = f"{type(error).__name__}: {error}"
    return found


def first_is_missed(rank: int, ports: dict[str, list[int]]) -> dict[str, str]:
    """Rank 1 opens the Comm and then does something else."""
    found: dict[str, str] = {}
    for way, numbers in ports.items():
        for name, port in zip(("broadcast", "sum", "gather_object"), numbers, strict=True):
            try:
                with opened(rank, port, way, 1) as comm:
                    if rank == 1:
                        time.sleep(4.5)
                        raise KeyError("this rank was elsewhere")
                    call(comm, name)
            except Exception as error:
                found[f"{way} {name}"] = f"{type(error).__name__}: {error}"
    return found


def objects_differ(rank: int, port: int) -> str:
    try:
        with Comm(here(rank, port), device="cpu", timeout_s=3) as comm:
            comm.gather_object(1, "evaluate" if rank == 0 else "summary")
        return "nothing"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def held() -> dict[str, torch.Tensor]:
    return {
        "policy.weight": torch.ones(3),
        "policy.bias": torch.zeros(2, dtype=torch.bfloat16),
        "optimizer.exp_avg": torch.zeros(2),
        "observations.count": torch.tensor(7, dtype=torch.int64),
        "learning_rate": torch.tensor(1.0),
    }


def spoil(tensors: dict[str, torch.Tensor], case: str, rank: int) -> None:
    """What went wrong on this rank."""
    last = int(os.environ["WORLD_SIZE"]) - 1
    if case == "one bit" and rank == last:
        tensors["policy.weight"][1] = torch.nextafter(torch.tensor(1.0), torch.tensor(2.0))
    elif case == "negative zero" and rank == last:
        tensors["optimizer.exp_avg"][1] = -0.0
    elif case == "several" and rank == last:
        for name in ("policy.bias", "learning_rate", "observations.count"):
            tensors[name].add_(1)
    elif case == "missing" and rank == last:
        del tensors["observations.count"]
    elif case == "shape" and rank == last:
        tensors["policy.weight"] = torch.ones(1, 3)
    elif case == "type" and rank == last:
        tensors["learning_rate"] = tensors["learning_rate"].double()
    elif case == "halves" and rank % 2:
        tensors["policy.weight"][0] = 2
    elif case == "all":
        tensors["policy.weight"][0] = rank


UNEQUAL = ("one bit", "negative zero", "several", "missing", "shape", "type", "halves", "all")


def unequal(rank: int, ports: dict[str, int]) -> dict[str, Any]:
    """What each rank learns when tensors differ; and that the collectives go on working after it."""
    found: dict[str, Any] = {}
    for name, port in ports.items():
        world = here(rank, port).with_shards(None if name == "plain" else 5)
        with Comm(world, device="cpu", timeout_s=20, shared_memory=name == "memory") as comm:
            comm.check_equal(held())
            found[f"{name} messages"] = dict(comm.num_messages)
            for case in UNEQUAL:
                tensors = held()
                spoil(tensors, case, rank)
                try:
                    comm.check_equal(tensors)
                    found[f"{name} {case}"] = "nothing"
                except MismatchError as error:
                    found[f"{name} {case}"] = [str(error), error.ranks, error.tensors]
            found[f"{name} after"] = float(comm.sum(torch.ones(1)))
    return found


def one_port(rank: int, port: int) -> list[Any]:
    """Five Comms one after another, where the second ends with an error on one rank while the other waits for it."""
    found: list[Any] = []
    for time_ in range(5):
        try:
            world = here(rank, port).with_shards(2)
            with Comm(world, device="cpu", timeout_s=20, startup_timeout_s=20, shared_memory=time_ % 2 == 0) as comm:
                if time_ == 1 and rank == 1:
                    raise KeyError("mine")
                try:
                    found.append(float(comm.sum(torch.tensor([rank + time_ + 1.0]))))
                except PeerError:
                    time.sleep(1.0)  # rank 1 is in a hurry to meet again, while this one still has the last group open
                    raise
        except Exception as error:
            found.append(type(error).__name__)
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
                time.sleep(6.0)
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
