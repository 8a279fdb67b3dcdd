"""Microseconds per gradient synchronisation inside compiled JAX code, between the CPU ranks of one host.

    python benchmarks/jax_collectives.py

`Comm.sum_shards` in the body of a `lax.scan`, a few additions between two calls: through shared memory, which is what
ranks of one host use, in C and (where there is no compiler) in Python, against JAX's own collectives over gloo, which
backend=gloo asks for. All give the bits of the tree. "alone" is the same loop in a world of one.
"""

import argparse
import os
import time
from statistics import median
from typing import Any

import measure
import numpy as np

import lockstep
from lockstep.world import World

SIZES = {"9 k": 9_155, "135 k": 134_659, "1.7 M": 1_687_206}
BACKENDS = {"C": "auto", "Python": "auto", "gloo": "gloo"}


def synchronise(rank: int, num_parameters: int, way: str, calls: int) -> float:
    """Microseconds per call on one rank."""
    import jax

    from lockstep.jax import hardware
    from lockstep.jax.collectives import native
    from lockstep.jax.comm import Comm

    if way == "Python":
        native.library = lambda: None
    hardware.one_thread()
    world = World.from_environment()
    with Comm(world.with_shards(world.size), device="cpu", backend=BACKENDS[way]) as comm:

        def steps(shared: Any, own: Any) -> tuple[Any, Any]:
            def step(values: Any, _: None) -> tuple[Any, None]:
                return comm.sum_shards(own + values[None] * 0.5), None

            return jax.lax.scan(step, shared, None, length=calls)[0], own

        compiled = comm.spmd(steps, donate=False)
        shared = comm.replicate(np.zeros(num_parameters, np.float32))
        own = comm.shard([np.full(num_parameters, rank + 1.0, np.float32)] * len(world.shards))
        jax.block_until_ready(compiled(shared, own))
        comm.barrier()
        start = time.perf_counter()
        jax.block_until_ready(compiled(shared, own))
    return (time.perf_counter() - start) / calls * 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2])
    args = parser.parse_args()
    os.environ |= measure.ONE_THREAD  # inherited by the ranks

    rows = []
    for ranks in args.ranks:
        for size, number in SIZES.items():
            calls = 1000 if number < 1e5 else 200 if number < 1e6 else 20
            arms: dict[str, Any] = {
                way: lambda w=way, n=number, c=calls, r=ranks: max(lockstep.spawn(synchronise, ranks=r, args=(n, w, c)))
                for way in BACKENDS
            }
            arms["alone"] = lambda n=number, c=calls: max(lockstep.spawn(synchronise, ranks=1, args=(n, "C", c)))
            times = measure.in_turn(arms, args.repetitions)
            rows.append(
                [
                    ranks,
                    size,
                    *(f"{median(t):.0f}" for t in times.values()),
                    measure.ratio(times["gloo"], times["C"]),
                ]
            )
    print(f"{measure.machine()}; {args.repetitions} repetitions; microseconds per call, median\n")
    print(measure.table(["ranks", "parameters", *BACKENDS, "alone", "gloo / C, median (range)"], rows))


if __name__ == "__main__":
    main()
