"""Microseconds per gradient synchronisation between the CPU ranks of one host.

    python benchmarks/messages.py

`Comm.average_gradients_` on flat parameters, nothing between two calls: shared memory in shard order, which is what
ranks of one host use, against gloo, which they use where they cannot share memory. Pinned gloo gathers and adds in
shard order; unpinned gloo leaves the order to the backend's all-reduce.
"""

import argparse
import os
import time
from statistics import median

import measure
import torch

import lockstep
from lockstep.torch.comm import Comm
from lockstep.torch.flat import FlatParameters
from lockstep.world import World

SIZES = {"9 k": 9_155, "135 k": 134_659, "1.7 M": 1_687_206}
SCHEMES = {
    "shared memory": {"shared_memory": True, "pinned": True},
    "gloo, pinned": {"shared_memory": False, "pinned": True},
    "gloo": {"shared_memory": False, "pinned": False},
}


def synchronise(rank: int, num_parameters: int, scheme: str, calls: int) -> float:
    """Microseconds per call on one rank."""
    torch.set_num_threads(1)
    how, world = SCHEMES[scheme], World.from_environment()
    world = world.with_shards(world.size if how["pinned"] else None)
    module = torch.nn.Linear(num_parameters, 1, bias=False)
    with Comm(world, device="cpu", shared_memory=how["shared_memory"]) as comm:
        flat = FlatParameters(module)
        for i in range(calls + calls // 10):
            if i == calls // 10:
                start = time.perf_counter()
            flat.rows.fill_(rank + 1.0)
            comm.average_gradients_(flat)
    assert flat.gradient[0] == 1.0  # the sum of gradients by the sum of weights
    return (time.perf_counter() - start) / calls * 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    args = parser.parse_args()
    os.environ |= measure.ONE_THREAD  # inherited by the ranks

    rows = []
    for ranks in (2, 4):
        for size, number in SIZES.items():
            calls = 1000 if number < 1e5 else 300 if number < 1e6 else 30
            work = {scheme: (number, scheme, calls) for scheme in SCHEMES}
            arms = {s: lambda a=a, r=ranks: max(lockstep.spawn(synchronise, ranks=r, args=a)) for s, a in work.items()}
            times = measure.in_turn(arms, args.repetitions)
            ratios = [measure.ratio(times[scheme], times["shared memory"]) for scheme in ("gloo, pinned", "gloo")]
            rows.append([ranks, size, *(f"{median(t):.0f}" for t in times.values()), *ratios])
    print(f"{measure.machine()}; {args.repetitions} repetitions; microseconds per call, median\n")
    ratios = [f"{scheme} / shared memory, median (range)" for scheme in ("gloo, pinned", "gloo")]
    print(measure.table(["ranks", "parameters", *SCHEMES, *ratios], rows))


if __name__ == "__main__":
    main()
