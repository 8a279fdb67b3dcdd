"""Functions called inside ranks by `test_host_blocks.py`: ranks of this machine that say they are of several hosts."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from collectives import leave_at_once

from lockstep import RunError, World
from lockstep.distributed.timers import ENV, Timers
from lockstep.distributed.watch import Watch
from lockstep.launch.rank_environment import free_port
from lockstep.torch.comm import Comm


def on_hosts(rank: int, port: int, sizes: tuple[int, ...], **kwargs: Any) -> World:
    """The world of `rank` where hosts have so many ranks each."""
    node_rank, first = 0, 0
    while rank >= first + sizes[node_rank]:
        first += sizes[node_rank]
        node_rank += 1
    return World(
        rank=rank,
        size=sum(sizes),
        local_rank=rank - first,
        local_size=sizes[node_rank],
        node_rank=node_rank,
        address="127.0.0.1",
        port=port,
        **kwargs,
    )


def rows_of(world: World, length: int, kind: torch.dtype = torch.float32) -> torch.Tensor:
    """Numbers whose sum depends on the order of additions, one row for each shard of this rank."""
    generator = torch.Generator().manual_seed(1)
    every = torch.randn(world.num_shards, length, generator=generator, dtype=torch.float64)
    every *= 10.0 ** torch.randint(-6, 7, every.shape, generator=generator)
    return every.to(kind)[world.shards.start : world.shards.stop]


SUMS = {"small": (7, torch.float32), "double": (3, torch.float64), "large": (300_000, torch.float32)}


def sums(rank: int, port: int, sizes: tuple[int, ...], num_shards: int | None, memory: bool = True) -> dict[str, Any]:
    """The bits of sums, and what else goes between hosts; and how many messages it took."""
    world = on_hosts(rank, port, sizes).with_shards(num_shards)
    found: dict[str, Any] = {}
    with Comm(world, device="cpu", timeout_s=20, shared_memory=memory) as comm:
        for _ in range(3):  # both turns of the memory, and one again
            for name, (length, kind) in SUMS.items():
                total = comm.sum_shards(rows_of(world, length, kind), name)
                found.setdefault(name, []).append(total.numpy().tobytes())
        bits = torch.tensor([-0.0, float("nan"), 3.0, rank], dtype=torch.float32)
        comm.broadcast_([bits, torch.tensor([rank])], source=world.size - 1)
        found["rest"] = {
            "max": comm.max(torch.tensor([float(rank), -float(rank)])).tolist(),
            "any": [comm.any(rank == world.size - 1), comm.any(False)],
            "objects": comm.gather_object("x" * rank),
            "told": comm.broadcast_object([rank, "é"], source=world.size - 1),
            "broadcast": bits.numpy().tobytes().hex(),
            "integers": comm.sum(torch.tensor([2**40 + rank])).tolist(),
            "seen": [(o.rank, o.tag) for o in comm.observe()] if memory else [],
        }
        found["unequal"] = ""
        try:
            comm.check_equal({"bits": bits})
        except RunError as error:
            found["unequal"] = str(error)
        found["messages"] = dict(comm.num_messages)
        found["hosts"] = [str(host) for host in comm._hosts.hosts._hosts] if comm._hosts else []
        found["links"] = comm._hosts is not None and comm._hosts.hosts._links is not None
    return found


def at_once(rank: int, calls: list[tuple[str, str, tuple[Any, ...]]], folder: str) -> dict[str, Any]:
    leave_at_once()
    return {name: globals()[function](rank, agreed_port(rank, folder, name), *args) for name, function, args in calls}


def agreed_port(rank: int, folder: str, name: str) -> int:
    """Chosen by rank 0 just before it is used: one chosen earlier may be taken by then."""
    path = Path(folder, name)
    if rank == 0:
        path.with_suffix(".new").write_text(str(free_port()))
        path.with_suffix(".new").rename(path)
    while not path.exists():
        time.sleep(0.005)
    return int(path.read_text())


def differ(rank: int, port: int, sizes: tuple[int, ...], how: str) -> str:
    """The ranks of the last host are in another collective, or in the same with another size."""
    world = on_hosts(rank, port, sizes).with_shards(None)
    odd = world.node_rank == len(sizes) - 1

    try:
        with Comm(world, device="cpu", timeout_s=5) as comm:
            comm.sum_shards(torch.ones(1, 8), "moments")
            tag = "log" if odd and how == "tag" else "average_gradients"
            comm.sum_shards(torch.ones(1, 2000 if odd and how == "size" else 8), tag)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def other_order(rank: int, port: int, length: int) -> str:
    """The last of four hosts averages the gradients of its parameters in another order."""
    world = on_hosts(rank, port, (1, 1, 1, 1)).with_shards(None)
    module = torch.nn.Module()
    for name in "ab" if rank < 3 else "ba":
        parameter = torch.nn.Parameter(torch.zeros(length))
        parameter.grad = torch.ones(length)
        module.register_parameter(name, parameter)
    try:
        with Comm(world, device="cpu", timeout_s=5) as comm:
            comm.average_gradients_(module)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def fails(rank: int, port: int, sizes: tuple[int, ...], how: str, folder: str) -> None:
    """The last host does something to the run; every rank that lives writes down what it learned, and how soon."""
    world = on_hosts(rank, port, sizes).with_shards(None)
    odd = world.node_rank == len(sizes) - 1

    start, said = time.monotonic(), "nothing"
    try:
        timers = Timers()
        with Comm(world, device="cpu", timeout_s=2.0, timers=timers) as comm:
            comm.sum_shards(torch.ones(1, 2), "moments")
            timers.updated(1)
            timers.enter(ENV)
            start = time.monotonic()
            if odd:
                if how == "another is stuck":
                    Watch(
                        comm.observe,
                        ignore,
                        lambda: None,
                        timeout_s=1,
                        startup_timeout_s=20,
                        before_exit=comm.announce_failure,
                    )
                give_up(how, world.local_rank)
            comm.sum_shards(torch.ones(1, 2), "average_gradients")
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    Path(folder, f"{rank}.new").write_text(f"{time.monotonic() - start:.3f} {said}")
    Path(folder, f"{rank}.new").rename(Path(folder, f"{rank}.txt"))
    time.sleep(120)  # the test ends all that live once they have said what they know


def first_dies(rank: int, port: int, folder: str) -> None:
    """Rank 0 is killed while it waits in the first collective, before rank 1 enters it."""
    said = "nothing"
    try:
        with Comm(on_hosts(rank, port, (2,)), device="cpu", timeout_s=5) as comm:
            if rank == 1:
                while not Path(folder, "killed").exists():
                    time.sleep(0.02)
            else:
                Path(folder, "entering").touch()
            comm.sum(torch.ones(10))
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    Path(folder, f"{rank}.new").write_text(f"0 {said}")
    Path(folder, f"{rank}.new").rename(Path(folder, f"{rank}.txt"))


def ignore(*_: Any) -> None:
    pass


def give_up(how: str, local_rank: int) -> None:
    if how == "all are stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif (how, local_rank) in (("the first is killed", 0), ("another is killed", 1)):
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "another is stuck" and local_rank == 1:
        time.sleep(60)
    elif how == "the first raises" and local_rank == 0:
        raise ValueError("the motor is hot")


def mixed_up(rank: int, port: int) -> dict[str, Any]:
    """Ranks 0 and 2 are of one host, 1 and 3 of the other."""
    world = World(
        rank=rank, size=4, local_rank=rank // 2, local_size=2, node_rank=rank % 2, address="127.0.0.1", port=port
    ).with_shards(6)
    with Comm(world, device="cpu", timeout_s=20) as comm:
        total = comm.sum_shards(rows_of(world, *SUMS["small"]), "small")
        assert comm._hosts is not None
        return {"small": total.numpy().tobytes(), "hosts": [str(host) for host in comm._hosts.hosts._hosts]}
