"""Forward, backward and synchronization of gradients on 2 ranks, by Lockstep and by other ways to do it in torch."""

import argparse
import math
import os
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from clock import arguments, report

import lockstep
from lockstep.torch.comm import Comm
from lockstep.torch.flat import FlatParameters

RANKS, ROWS, LAYERS = 2, 32, 4


def network(parameters: int) -> torch.nn.Module:
    """Layers of equal width that have about as many parameters."""
    width = round((-1 + math.sqrt(1 + 4 * parameters / LAYERS)) / 2)
    layers = [layer for _ in range(LAYERS) for layer in (torch.nn.Linear(width, width), torch.nn.Tanh())]
    return torch.nn.Sequential(*layers)


def width_of(module: torch.nn.Module) -> int:
    """Inputs of the network."""
    return next(module.parameters()).shape[1]


def by_lockstep(parameters: int, calls: int, warm_up: int, pinned: bool) -> float:
    """Microseconds per step, with the average over ranks in the flat gradient."""
    world = lockstep.World.from_environment()
    world = world.with_shards(world.size if pinned else None)
    module = network(parameters)
    rows = torch.ones(ROWS, width_of(module))
    with Comm(world, device="cpu") as comm:
        flat = FlatParameters(module)

        def step() -> None:
            flat.rows.zero_()
            module(rows).sum().backward()
            flat.rows[:, -1] = ROWS
            comm.average_gradients_(flat)

        return timed(step, calls, warm_up)


def by_torch(scheme: str, parameters: int, calls: int, warm_up: int) -> float:
    """Microseconds per step with torch.distributed."""
    dist.init_process_group("gloo")
    microseconds = in_process_group(scheme, parameters, calls, warm_up)
    # DistributedDataParallel is gone by now. Destroyed after the group or the other rank, it sometimes waits for ever.
    dist.barrier()
    dist.destroy_process_group()
    return microseconds


def in_process_group(scheme: str, parameters: int, calls: int, warm_up: int) -> float:
    """Microseconds per step, in the process group there is."""
    module = network(parameters)
    rows = torch.ones(ROWS, width_of(module))
    flat = torch.zeros(sum(one.numel() for one in module.parameters()))
    model: torch.nn.Module = module
    if scheme in ("ddp", "ddp_views"):
        model = torch.nn.parallel.DistributedDataParallel(module, gradient_as_bucket_view=scheme == "ddp_views")

    def step() -> None:
        if scheme == "flat":
            dist.all_reduce(flat)
            return
        model.zero_grad(set_to_none=False)
        model(rows).sum().backward()
        if scheme == "each":
            for one in module.parameters():
                assert one.grad is not None
                dist.all_reduce(one.grad)
                one.grad /= RANKS

    return timed(step, calls, warm_up)


def timed(step: Callable[[], None], calls: int, warm_up: int) -> float:
    """Microseconds per call."""
    for _ in range(warm_up):
        step()
    start = time.perf_counter()
    for _ in range(calls):
        step()
    return (time.perf_counter() - start) / calls * 1e6


def on_rank(rank: int, scheme: str, parameters: int, calls: int, warm_up: int) -> float:
    """What one rank measures."""
    del rank
    torch.set_num_threads(1)
    if scheme.startswith("lockstep"):
        return by_lockstep(parameters, calls, warm_up, pinned=scheme.endswith("pinned"))
    return by_torch(scheme, parameters, calls, warm_up)


def main(args: argparse.Namespace) -> None:
    """Measure on 2 ranks, and print the slower one's microseconds."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < RANKS:
        sys.exit(f"needs {RANKS} cores")
    found = lockstep.spawn(on_rank, RANKS, (args.scheme, int(args.parameters), args.measured, args.warm_up))
    report(max(found), ["torch", "lockstep-rl"], of_children=True)


if __name__ == "__main__":
    main(arguments("scheme", "parameters"))
