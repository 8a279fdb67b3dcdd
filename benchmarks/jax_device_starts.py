"""Whether several CPU devices of one process always come to their first sums: many starts, on busy cores.

    python benchmarks/jax_device_starts.py --starts 1000

Each start is a process with a JAX of its own: it compiles some functions with sums over the devices and calls them. It
is forked from one that imported JAX and did nothing with it, which saves the imports. Other processes keep all cores
busy meanwhile. A start that has not ended after `--timeout` seconds counts as hung, is ended, and what it said is
printed; the script then returns 1.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")  # no threads before the fork

import numpy as np
from measure import machine

from lockstep.jax import hardware
from lockstep.jax.comm import Comm
from lockstep.world import World

_POLL_S = 0.01
_COLUMNS = 1000


def start(devices: int, uses: int) -> None:
    """Compile `uses` functions for the devices of this process and call each twice; ends with an error if one is wrong.

    With as many threads as a pinned run has.
    """
    hardware.one_thread(devices)
    rows = [np.full(_COLUMNS, shard + 1.0, np.float32) for shard in range(devices)]
    with Comm(World().with_shards(devices), device="cpu", devices_per_process=devices, timeout_s=3600) as comm:
        for use in range(uses):

            def step(shared: Any, own: Any, scale: float = use + 1.0) -> tuple[Any, Any]:
                return shared + comm.sum_shards(own * scale), own

            compiled, shared = comm.spmd(step), comm.replicate(np.zeros(_COLUMNS, np.float32))
            for _ in range(2):
                shared, _ = compiled(shared, comm.shard(rows))
            found, wanted = float(comm.read(shared)[0]), (use + 1.0) * devices * (devices + 1)
            if found != wanted:
                raise SystemExit(f"the sum is {found}, not {wanted}")


def forked(devices: int, uses: int, said: Path) -> int:
    """Begin a start in a process of its own, which writes to `said`; the process."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        with said.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        start(devices, uses)
        code = 0
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def busy(count: int) -> list[int]:
    """Processes that compute for ever."""
    found: list[int] = []
    for _ in range(count):
        child = os.fork()
        if not child:
            while os.getppid() != 1:
                sum(range(100_000))
            os._exit(0)
        found.append(child)
    return found


def ended(child: int) -> int | None:
    """Its code if it has ended."""
    done, status = os.waitpid(child, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


def run(args: argparse.Namespace, folder: Path) -> tuple[int, int]:
    """Make all starts, `jobs` at a time; how many hung, and how many ended with an error."""
    begun, hung, failed = 0, 0, 0
    running: dict[int, tuple[float, Path]] = {}
    while running or begun < args.starts:
        while len(running) < args.jobs and begun < args.starts:
            said = folder / f"{begun}.log"
            running[forked(args.devices, args.uses, said)] = time.monotonic(), said
            begun += 1
        time.sleep(_POLL_S)
        for child, (since, said) in list(running.items()):
            code, late = ended(child), time.monotonic() - since > args.timeout
            if code is None and not late:
                continue
            del running[child]
            if code is None:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            if code != 0:
                what = f"ended with code {code}" if code is not None else f"hung for {args.timeout} s"
                print(f"a start {what}; it said:\n{said.read_text(errors='replace')[-2000:]}", flush=True)
                hung, failed = hung + (code is None), failed + (code is not None)
            said.unlink()
            if (begun - len(running)) % 100 == 0:
                print(f"{begun - len(running)} starts, {hung} hung", flush=True)
    return hung, failed


def main() -> None:
    """Start, and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=1000)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--uses", type=int, default=3, help="functions that each start compiles")
    parser.add_argument("--jobs", type=int, default=2, help="starts at a time")
    parser.add_argument("--load", type=int, default=os.cpu_count(), help="processes that keep the cores busy beside")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds after which a start counts as hung")
    args = parser.parse_args()
    print(machine(), flush=True)
    others, began = busy(args.load), time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as folder:
            hung, failed = run(args, Path(folder))
    finally:
        for child in others:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    passed = time.monotonic() - began
    print(f"{args.starts} starts of {args.devices} devices in {passed:.0f} s: {hung} hung, {failed} failed")
    sys.exit(hung + failed > 0)


if __name__ == "__main__":
    main()
