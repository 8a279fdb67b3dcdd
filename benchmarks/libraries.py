"""Compare our own parts with libraries that do the same; prints a markdown table.

python benchmarks/libraries.py                  all parts, about a minute
python benchmarks/libraries.py psutil           parts whose name has this prefix

Reports the minimum of five repetitions, in microseconds of processor time per call (of wall time where another process
is involved). `docs/decisions/0017-libraries.md` draws the conclusions.
"""

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from measure import machine, table

TURNS = 5
Row = tuple[str, Callable[[], Any], str, Callable[[], Any], int]
"""Name of the part, our call, name of the library, its call, and units (rows, calls) per call."""


def least_s(call: Callable[[], Any], clock: Callable[[], float], repeat: int) -> float:
    found = []
    for _ in range(TURNS):
        start = clock()
        for _ in range(repeat):
            call()
        found.append((clock() - start) / repeat)
    return min(found)


def repeats(call: Callable[[], Any]) -> int:
    """Calls per repetition of about 50 ms."""
    start = time.perf_counter()
    call()
    return max(1, min(10_000, round(0.05 / max(time.perf_counter() - start, 1e-6))))


def processes() -> Iterator[Row]:
    import psutil

    from lockstep.distributed.watch import process_state
    from lockstep.launch.rank import any_alive
    from lockstep.system.processes import identity

    own = os.getpid()

    def psutil_any_alive() -> bool:
        for process in psutil.process_iter(["status"]):
            try:
                if os.getpgid(process.pid) == -1 and process.info["status"] != psutil.STATUS_ZOMBIE:
                    return True
            except ProcessLookupError:
                continue
        return False

    yield "identity of a process", lambda: identity(own), "psutil", lambda: psutil.Process(own).create_time(), 1
    yield "state of a process", lambda: process_state(own), "psutil", lambda: psutil.Process(own).status(), 1
    yield "any process of a group", lambda: any_alive({-1}), "psutil", psutil_any_alive, 1


def permutation() -> Iterator[Row]:
    from lockstep.data.permutation import Permutation
    from lockstep.world import stream

    rows, batch = 10_000_000, 4096
    order, positions = Permutation(rows, stream(0, "epoch", 0)), np.arange(batch)
    random = np.random.default_rng(0)
    yield (
        "permutation: rows of a batch out of 10 M",
        lambda: order(positions),
        "numpy, whole epoch (80 MB)",
        lambda: random.permutation(rows),
        1,
    )


def gather(folder: Path) -> Iterator[Row]:
    import pyarrow as pa
    import torch

    from lockstep.data.columns import Column

    rows, width, batch = 1_000_000, 16, 1024
    random = np.random.default_rng(0)
    array = random.random((rows, width), dtype=np.float32)
    np.save(folder / "state.npy", array)
    mapped = np.load(folder / "state.npy", mmap_mode="r")
    ours, index = Column([mapped], rows), random.integers(rows, size=batch)
    columns = pa.table({str(k): np.ascontiguousarray(array[:, k]) for k in range(width)})
    with pa.OSFile(str(folder / "state.arrow"), "wb") as file, pa.ipc.new_file(file, columns.schema) as writer:
        writer.write_table(columns)
    arrow = pa.ipc.open_file(pa.memory_map(str(folder / "state.arrow"))).read_all()
    where = pa.array(index)

    def arrow_take() -> Any:
        taken = arrow.take(where)
        return np.column_stack([taken[k].to_numpy() for k in range(width)])

    dataset = torch.utils.data.TensorDataset(torch.from_numpy(array))
    loader = torch.utils.data.DataLoader(dataset, batch, sampler=index.tolist())
    yield "columns: 1024 random rows of 16 numbers", lambda: ours[index], "pyarrow, memory map", arrow_take, batch
    yield "the same", lambda: ours[index], "torch DataLoader", lambda: next(iter(loader)), batch


def readers(folder: Path) -> Iterator[Row]:
    import polars as pl

    from lockstep.data.logs.format import read_log

    rows = 20_000
    random = np.random.default_rng(0)
    states = random.random((rows, 8)).round(4).tolist()
    entries = [
        {
            "mdp_id": str(i // 20),
            "sequence_number": i % 20,
            "state_features": {str(k): value for k, value in enumerate(states[i])},
            "action": "left" if i % 3 else "right",
            "reward": 1.0,
        }
        for i in range(rows)
    ]
    lines, table_file = folder / "log.jsonl", folder / "log.csv"
    lines.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    with table_file.open("w") as file:
        file.write("mdp_id,sequence_number,action,reward," + ",".join(f"f{k}" for k in range(8)) + "\n")
        for entry, state in zip(entries, states, strict=True):
            words = [entry["mdp_id"], entry["sequence_number"], entry["action"], entry["reward"], *state]
            file.write(",".join(map(str, words)) + "\n")
    named = {"state_features": {f"f{k}": f"f{k}" for k in range(8)}}

    def ours(path: Path, columns: Any = None) -> int:
        return sum(len(frame) for frame in read_log([path], columns=columns).frames())

    def by_polars() -> Any:
        return pl.read_ndjson(lines, infer_schema_length=rows).unnest("state_features")

    def by_json() -> Any:
        found = [json.loads(line) for line in lines.open()]
        return np.array([list(one["state_features"].values()) for one in found])

    yield "JSON lines of maps", lambda: ours(lines), "polars.read_ndjson, unchecked", by_polars, rows
    yield "the same", lambda: ours(lines), "json.loads, unchecked", by_json, rows
    yield "CSV", lambda: ours(table_file, named), "polars.read_csv, unchecked", lambda: pl.read_csv(table_file), rows


def hashes() -> Iterator[Row]:
    import polars as pl

    from lockstep.data.preparation.hashing import hash_strings

    names = pl.Series([f"episode-{i}" for i in range(100_000)])
    yield (
        "hash of trajectories, 128 bits",
        lambda: hash_strings(names),
        "polars, 64 bits, other in each version",
        names.hash,
        len(names),
    )


def sum_tree() -> Iterator[Row]:
    from lockstep.experience.sum_tree import SumTree

    leaves, batch = 1_000_000, 32
    random = np.random.default_rng(0)
    priorities = random.random(leaves)
    tree, index = SumTree(leaves), random.integers(leaves, size=batch)
    tree.set(np.arange(leaves), priorities)
    mass = random.random(batch) * tree.total

    def ours() -> None:
        tree.set(index, priorities[index])
        tree.find(mass)

    def plain() -> None:
        priorities[index] = priorities[index]
        np.searchsorted(priorities.cumsum(), mass)

    yield "sum tree: set and draw 32 of 1 M", ours, "numpy cumsum", plain, 1


def sinks(folder: Path) -> Iterator[Row]:
    from torch.utils.tensorboard import SummaryWriter

    from lockstep.record.json_lines import JsonLines
    from lockstep.record.tensorboard import TensorBoard

    metrics = {f"loss/part_{k}": float(k) for k in range(20)}
    writer, ours = SummaryWriter(str(folder / "torch")), TensorBoard(folder / "ours")
    lines = JsonLines(folder / "metrics.jsonl")

    def theirs() -> None:
        for name, value in metrics.items():
            writer.add_scalar(name, value, 1)

    def events() -> None:
        ours.write(1, metrics)
        ours.flush()

    yield "20 metrics to event files", events, "torch SummaryWriter", theirs, 1
    yield "20 metrics to metrics.jsonl", lambda: lines.write(metrics), "torch SummaryWriter", theirs, 1


def store() -> Iterator[Row]:
    """Our store and torch's, both with their server in another process."""
    from torch.distributed import TCPStore

    from lockstep.distributed.network.store_server import StoreClient

    def server(code: str) -> tuple[subprocess.Popen[str], int]:
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
        assert child.stdout is not None
        return child, int(child.stdout.readline())

    own, own_port = server(
        "import sys\nfrom lockstep.distributed.network import interfaces, store_server\n"
        "listener = interfaces.listening_socket('127.0.0.1', 0)\nserver = store_server.StoreServer(listener)\n"
        "print(listener.getsockname()[1], flush=True); sys.stdin.read()"
    )
    other, other_port = server(
        "import sys\nfrom torch.distributed import TCPStore\n"
        "store = TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)\n"
        "print(store.port, flush=True); sys.stdin.read()"
    )
    ours = StoreClient.connect("127.0.0.1", own_port, 10.0)
    theirs = TCPStore("127.0.0.1", other_port, is_master=False)
    try:
        for name, client in (("ours", ours), ("theirs", theirs)):
            client.set(name, secrets.token_hex(8))
        yield "store: get of a key", lambda: ours.get("ours"), "torch TCPStore", lambda: theirs.get("theirs"), 1
    finally:
        for child in (own, other):
            child.communicate()


def exchange() -> Iterator[Row]:
    """Create and free shared memory."""
    from multiprocessing.shared_memory import SharedMemory

    size = 1 << 16

    def anonymous() -> None:
        os.close(os.memfd_create("benchmark"))

    def named() -> None:
        memory = SharedMemory(create=True, size=size)
        memory.close()
        memory.unlink()

    yield "shared memory: make and free", anonymous, "multiprocessing.shared_memory", named, 1


def links() -> Iterator[Row]:
    """Send a message of 36 kB through a connection within this process."""
    from multiprocessing.connection import Pipe

    payload = np.zeros(9155, np.float32)
    left, right = socket.socketpair()
    one, two = Pipe()
    received = np.empty_like(payload)

    def plain() -> None:
        left.sendall(payload)
        right.recv_into(received, payload.nbytes, socket.MSG_WAITALL)

    def pickled() -> None:
        one.send(payload)
        two.recv()

    yield "links: 36 kB through a socket", plain, "multiprocessing.connection", pickled, 1


def import_s(module: str) -> float:
    """Processor time of an import in a new process, without the modules that every rank imports."""
    code = (
        "import time, numpy, socket, subprocess; start = time.process_time(); "
        f"import {module}; print(time.process_time() - start)"
    )
    return min(float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(3))


def main() -> None:
    wanted = tuple(sys.argv[1:])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts = {
            "psutil": (processes, time.process_time),
            "permutation": (permutation, time.process_time),
            "columns": (lambda: gather(folder), time.process_time),
            "readers": (lambda: readers(folder), time.process_time),
            "hashes": (hashes, time.process_time),
            "sum_tree": (sum_tree, time.process_time),
            "sinks": (lambda: sinks(folder), time.process_time),
            "store": (store, time.perf_counter),
            "shared_memory": (exchange, time.process_time),
            "links": (links, time.process_time),
        }
        lines = []
        for part, (measured, clock) in parts.items():
            if wanted and not part.startswith(wanted):
                continue
            for what, ours, library, theirs, units in measured():
                seconds = [least_s(call, clock, repeats(call)) * 1e6 / units for call in (ours, theirs)]
                lines.append(
                    [what, f"{seconds[0]:.3g}", library, f"{seconds[1]:.3g}", f"{seconds[1] / seconds[0]:.2g}"]
                )
    print(table(["part", "ours, us", "library", "library, us", "library / ours"], lines))
    if not wanted or "imports".startswith(wanted):
        modules = (
            "psutil",
            "filelock",
            "rich.progress",
            "polars",
            "pyarrow",
            "torch",
            "torch.distributed",
            "lockstep.run",
        )
        print(table(["import", "CPU ms"], [[module, f"{import_s(module) * 1e3:.0f}"] for module in modules]))
    print(machine())


if __name__ == "__main__":
    main()
