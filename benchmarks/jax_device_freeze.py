"""Why several CPU devices of one process may wait for each other for ever, shown; and that they no longer do.

    python benchmarks/jax_device_freeze.py             sums between two devices, for five minutes
    python benchmarks/jax_device_freeze.py --asleep    without what wakes XLA's threads: hangs, mostly within that time

A thread in which a device computes is stopped for a moment whenever it ends its search for work, and the one that hands
work over before it does, as if other processes had taken their cores just there. See
src/lockstep/jax/collectives/waker.py. Needs Linux on x86-64, cc, nm and the right to trace processes.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import jax
import jaxlib
import numpy as np
from measure import machine

from lockstep.jax import hardware
from lockstep.jax.collectives import waker
from lockstep.jax.comm import Comm
from lockstep.world import World

_DEVICES = 2
_ARRAYS = 300
"""Many: the second device gets its work somewhat later than the first."""
_STUCK_S = 20.0


def address_of(name: str) -> int:
    """Where a function of Eigen's pool, by its mangled name, is in this process."""
    library = Path(jaxlib.__file__).with_name("libjax_common.so")
    symbols = subprocess.run(["nm", library], check=True, capture_output=True, text=True).stdout.splitlines()
    (place,) = (int(line.split()[0], 16) for line in symbols if "16EigenEnvironmentEE" + name in line)
    maps = Path("/proc/self/maps").read_text().splitlines()
    return place + min(int(line.partition("-")[0], 16) for line in maps if line.endswith(library.name))


def tracers(microseconds: int, computing: int, folder: str) -> list[subprocess.Popen[bytes]]:
    """Begin to stop two threads now and then: one that ends its search for work, and this one as it hands work over."""
    program = Path(folder, "freeze")
    subprocess.run(["cc", "-O2", "-o", program, Path(__file__).with_name("freeze.c")], check=True)
    places = {computing: address_of("12StopSpinningEv"), threading.get_native_id(): address_of("16ScheduleWithHintE")}
    return [subprocess.Popen([program, str(microseconds), str(t), hex(place)]) for t, place in places.items()]


def thread_of_a_device() -> int:
    """One of those in which devices compute."""
    found = set[int]()

    def seen(x: np.ndarray) -> np.ndarray:
        found.add(threading.get_native_id())
        time.sleep(0.1)  # or one thread might take both devices
        return x

    own = jax.sharding.PartitionSpec("data")
    axis = jax.sharding.Mesh(np.array(jax.local_devices()[:_DEVICES]), ("data",))
    part = lambda x: jax.pure_callback(seen, jax.ShapeDtypeStruct(x.shape, x.dtype), x)  # noqa: E731
    mapped = jax.shard_map(part, mesh=axis, in_specs=own, out_specs=own, check_vma=False)
    jax.block_until_ready(jax.jit(mapped)(np.zeros(_DEVICES, np.float32)))
    return min(found)


def main() -> None:
    """Sum for a while, and tell how long the slowest sum took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--microseconds", type=int, default=2000, help="how long a thread is stopped, at most")
    parser.add_argument("--asleep", action="store_true", help="without lockstep.jax.collectives.waker")
    args = parser.parse_args()
    print(machine(), flush=True)
    if args.asleep:
        waker.Waker.wake = lambda self: None
    hardware.one_thread(_DEVICES)
    calls, slowest, since = 0, 0.0, time.monotonic()

    def watch() -> None:
        while time.monotonic() - since < _STUCK_S:
            time.sleep(1)
        print(f"call {calls + 1} hangs", flush=True)
        os._exit(1)

    with (
        tempfile.TemporaryDirectory() as folder,
        Comm(World().with_shards(_DEVICES), device="cpu", devices_per_process=_DEVICES, timeout_s=3600) as comm,
    ):

        def step(shared: Any, own: Any) -> tuple[Any, Any]:
            total = comm.sum_shards(sum(own))
            return [array + total for array in shared], own

        compiled, rows = comm.spmd(step), [[np.zeros(8, np.float32)] * 4] * _DEVICES
        shared, _ = compiled(comm.replicate([np.zeros(8, np.float32)] * _ARRAYS), comm.shard(rows))
        stopping = tracers(args.microseconds, thread_of_a_device(), folder)
        began = since = time.monotonic()
        threading.Thread(target=watch, daemon=True).start()
        while since - began < args.seconds:
            shared, _ = jax.block_until_ready(compiled(shared, comm.shard(rows)))
            calls, slowest = calls + 1, max(slowest, time.monotonic() - since)
            time.sleep(max(0.0, random.uniform(-1e-3, 1e-3)))  # the threads find work at once, or sleep meanwhile
            since = time.monotonic()
        if any(one.poll() is not None for one in stopping):
            sys.exit("a thread could not be stopped")  # they end with this process
    print(f"{calls} calls, the slowest in {slowest:.2f} s")


if __name__ == "__main__":
    main()
