"""Functions that ranks of `test_jax_comm.py` call.

Ways: memory (sums in C where this machine has a compiler), python (there is none), mixed (rank 1 has none), messages,
devices (two of each process), gloo, gloo devices.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.distributed.timers import ENV, LEARN, Timers
from lockstep.errors import ConfigError, PeerError
from lockstep.world import World

COLUMNS = 300
_DEVICES = {"devices": 2, "gloo devices": 2}


def rows_of(num_shards: int) -> np.ndarray:
    """[shards, COLUMNS]: what every world sums."""
    return np.random.default_rng(3).normal(size=(num_shards, COLUMNS)).astype(np.float32)


def opened(rank: int, port: int, way: str = "memory", num_shards: int = 4, **kwargs: Any) -> Any:
    """The Comm of this rank, on CPUs."""
    import jax

    import lockstep.jax.collectives.processes
    from lockstep.jax.collectives import native
    from lockstep.jax.comm import Comm

    jax.config.update("jax_numpy_rank_promotion", "raise")
    if way == "messages":
        lockstep.jax.collectives.processes.ordered = lambda: False  # as on a processor that does not order memory
    if way == "python" or (way == "mixed" and rank == 1):
        native.library = lambda: None
    world = World(rank=rank, size=int(os.environ["WORLD_SIZE"]), port=port).with_shards(num_shards)
    backend = "gloo" if way.startswith("gloo") else "auto"
    settings = {"timeout_s": 20.0, "startup_timeout_s": 40.0, **kwargs}
    return Comm(world, device="cpu", backend=backend, devices_per_process=_DEVICES.get(way, 1), **settings)


def everything(rank: int, port: int, way: str, num_shards: int) -> dict[str, Any]:
    """Each collective once or more."""
    import jax.numpy as jnp

    rows, made = rows_of(num_shards), sums_in_c()
    with opened(rank, port, way, num_shards) as comm:

        def step(shared: Any, own: Any) -> Any:
            products = own["row"] * shared["scale"][None]  # a product and a sum: tempting to round only once
            first = own["row"][0]
            sums = {
                "total": comm.sum_shards(products, "total"),
                "twice": comm.sum_shards(products * 2.0, "total"),
                "sum": comm.sum(first),
                "mean": comm.mean(first, jnp.float32(1.0)),
                "lonely": comm.mean(first, own["weight"][0]),
                "max": comm.max(first),
                "narrow": {
                    "sum": comm.sum(first.astype(jnp.bfloat16)).astype(jnp.float32),
                    "mean": comm.mean(first.astype(jnp.float16), 30_000.0).astype(jnp.float32),
                    "max": comm.max(first.astype(jnp.bfloat16)).astype(jnp.float32),
                },
                "moments": comm.moments(own["row"]),
                "gradients": comm.average_gradients({"a": first[:4].reshape(2, 2), "b": first[4:6]}),
            }
            return {"scale": shared["scale"], **sums}, {"row": products, "n": comm.shard_numbers()}

        compiled = comm.spmd(step, donate=False)
        shared = {"scale": np.linspace(0.1, 3.0, COLUMNS, dtype=np.float32)}
        mine = list(comm.world.shards)
        parts = [{"row": rows[shard], "weight": np.float32(shard == 0)} for shard in mine]
        told, own = compiled(comm.replicate(shared), comm.shard(parts))
        told, own = compiled(comm.replicate(shared), comm.shard(parts))
        held = comm.unshard(own)
        comm.check_equal({"total": told["total"], **shared})
        comm.check_different(f"data of {rank}")
        return {
            "shared": comm.read(told),
            "shards": [int(one["n"]) for one in held],
            "rows": np.stack([one["row"] for one in held]),
            "local": np.asarray(comm.local(told)["total"]),
            "statistics": comm.sum_statistics(rows[mine].astype(np.float64)),
            "broadcast": comm.read(comm.broadcast({"x": np.full(3, rank, np.float32)}, comm.world.size - 1))["x"],
            "narrow": comm.read(comm.broadcast(jnp.full((), 2.5 + rank, jnp.bfloat16), comm.world.size - 1)),
            "object": comm.broadcast_object([1, "é"] if rank == 0 else None),
            "objects": comm.gather_object({"rank": rank, "array": np.arange(rank)}),
            "any": [comm.any(rank == 0), comm.any(False)],
            "compilations": dict(comm.num_compilations),
            "messages": dict(comm.num_messages),
            "in C": sum(made),
            "observed": [one.rank for one in comm.observe()],
            "device": comm.device,
        }


def out_of_the_ordinary(rank: int, port: int, way: str) -> dict[str, Any]:
    """Gradients, empty arrays, small integers, NaN of weight 0; and a collective under `jax.vmap`."""
    import jax
    import jax.numpy as jnp

    with opened(rank, port, way, 2, startup_timeout_s=float("inf")) as comm:

        def step(shared: Any, own: Any) -> Any:
            rows, nothing = own["row"], jnp.zeros(0)

            def slope(collective: Any) -> Any:
                return jax.grad(lambda rows: collective(rows).sum())(rows)

            return {
                "slope of sum_shards": slope(comm.sum_shards),
                "slope of sum": slope(comm.sum),
                "slope of mean": slope(lambda rows: comm.mean(rows[0], rows[0, 0])),
                "slope of max": slope(comm.max),
                "slope of moments": slope(lambda rows: comm.moments(rows, jnp.exp(rows[:, 0]))[2]),
                "empty": (comm.sum(nothing), comm.max(nothing), comm.mean(nothing), comm.sum_shards(rows[:, :0])),
                "small": (comm.sum(jnp.full(1, 100, jnp.int8)), comm.max(rank * jnp.ones(1, jnp.uint8))),
                "narrow rows": [
                    comm.sum_shards(jnp.full((len(rows), 1), 50.0).astype(k)) for k in ("int8", "bfloat16")
                ],
                "ignored": comm.moments(jnp.array([1.0 + 2 * rank, jnp.nan]), jnp.array([1.0, 0.0])),
            }, own

        def mapped(shared: Any, own: Any) -> Any:
            return jax.vmap(comm.sum)(own["row"]), own

        own = comm.shard([{"row": rows_of(2)[s]} for s in comm.world.shards])
        found = comm.read(comm.spmd(step, donate=False)(comm.replicate({}), own)[0])
        try:
            comm.spmd(mapped, donate=False)(comm.replicate({}), own)
        except ConfigError as error:
            found["mapped"] = str(error)
        return found


def around_a_loop(rank: int, port: int, way: str, num_shards: int) -> dict[str, np.ndarray]:
    """Collectives before, in and after a loop, of ranks with unequal programs."""
    import jax
    import jax.numpy as jnp

    with opened(rank, port, way, num_shards) as comm:

        def step(shared: Any, own: Any) -> Any:
            def body(carry: Any, _: Any) -> Any:
                summed = comm.sum_shards(own["row"] * carry[None], "inside")
                return jnp.tanh(summed), summed.sum()

            before = comm.sum_shards(own["row"], "before")
            carry, _ = jax.lax.scan(body, own["row"][0], jnp.arange(50))
            after = comm.sum_shards(own["row"] * 3.0 + carry[None], "after")
            last = comm.sum_shards(own["row"] * 5.0, "last")
            return {"1 before": before, "2 after": after, "3 loop": carry, "4 last": last}, own  # sorted by name

        rows = rows_of(num_shards)
        compiled, own = comm.spmd(step, donate=False), comm.shard([{"row": rows[s]} for s in comm.world.shards])
        return comm.read(compiled(comm.replicate({}), own)[0])


def in_gradients(rank: int, port: int, way: str) -> list[str]:
    """The tags of collectives within `jax.grad` and within a loop in a loop, in the order in which they were sent.

    What each sends takes longer to compute than what the next one does.
    """
    import jax
    import jax.numpy as jnp

    from lockstep.jax.collectives.processes import Processes

    sent, gather = list[str](), Processes.gather

    def noted(self: Processes, flat: Any, tag: str, layout: int = 0) -> Any:
        sent.append(tag)
        return gather(self, flat, tag, layout)

    with opened(rank, port, way, 2) as comm:

        def slow(x: Any, count: int) -> Any:
            for _ in range(count):
                x = jnp.tanh(x @ x)
            return x.sum()

        def step(shared: Any, own: Any) -> Any:
            x = shared["x"]
            loss = jax.grad(lambda x: (x.sum(), comm.mean(slow(x, 8), tag="in grad")), has_aux=True)(x)[1]
            after = comm.sum(slow(x, 1), "after grad")

            def outer(carry: Any, _: Any) -> Any:
                first = comm.sum(slow(x, 8) + carry, "outer")
                inner = jax.lax.scan(lambda y, _: (0.1 * y + comm.sum(y, "inner"), None), carry, None, length=2)[0]
                return inner * 0.1, first + comm.sum(inner, "outer end")

            return {"loss": loss, "after": after, "loop": jax.lax.scan(outer, after, None, length=2)}, own

        compiled, given = comm.spmd(step, donate=False), comm.replicate({"x": np.full((200, 200), 0.01, np.float32)})
        Processes.gather = noted
        for _ in range(20):
            compiled(given, comm.shard([np.zeros(1, np.float32)] * len(comm.world.shards)))
        Processes.gather = gather
    return sent


def sums_in_c() -> list[int]:
    """Sums that C code makes from now on are counted here."""
    from lockstep.jax.collectives.native import NativeSum

    made, take_native_calls = [], NativeSum.take_native_calls

    def counted(use: NativeSum) -> int:
        made.append(take_native_calls(use))
        return made[-1]

    NativeSum.take_native_calls = counted
    return made


def sums(rank: int, port: int, way: str, num_shards: int) -> np.ndarray:
    """Only the sum over shards."""
    with opened(rank, port, way, num_shards) as comm:
        return _sum(comm, rows_of(num_shards))


def _sum(comm: Any, rows: np.ndarray, tag: str = "learn") -> np.ndarray:
    def learn(shared: Any, own: Any) -> Any:
        return {"total": comm.sum_shards(own["row"] * shared["scale"], tag)}, {}

    shared = comm.replicate({"scale": np.float32(0.3)})
    return comm.read(
        comm.spmd(learn, donate=False)(shared, comm.shard([{"row": rows[s]} for s in comm.world.shards]))[0]
    )["total"]


def outside(rank: int, port: int, way: str) -> list[str]:
    """What each collective says before the Comm is entered, and after."""
    import jax.numpy as jnp

    comm = opened(rank, port, way, 2)
    calls = [
        lambda: comm.sum_statistics(np.ones((1, 3))),
        lambda: comm.any(rank == 0),
        lambda: comm.gather_object("x"),
        lambda: comm.broadcast_object("x"),
        lambda: comm.broadcast({"w": np.ones(2)}),
        lambda: comm.check_equal({"w": np.ones(2)}),
        comm.barrier,
    ]
    found = [said(call) for call in calls]
    with comm:
        compiled = comm.spmd(
            lambda shared, own: ({"sum": comm.sum_shards(own), "int": comm.sum(jnp.int32(1))}, own), donate=False
        )
        given = comm.replicate({}), comm.shard([np.ones(3, np.float32)])
        compiled(*given)
    return [*found, *(said(call) for call in [*calls, lambda: compiled(*given)])]


def said(call: Any) -> str:
    try:
        return f"no error, but {call()}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def differ(rank: int, port: int, way: str) -> str:
    """Both sum as much, but not the same."""
    try:
        with opened(rank, port, way) as comm:
            _sum(comm, rows_of(4), ("learn", "log")[rank])
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def send_unequal(rank: int, port: int, way: str, difference: str) -> str:
    """Rank 1 differs in the second call of a function, for which it compiles alone."""
    import jax.numpy as jnp

    try:
        with opened(rank, port, way) as comm:

            def learn(shared: Any, own: Any) -> Any:
                odd = difference if shared["call"].size == 2 else ""
                row = own["row"][:, :3] if odd == "shape" else own["row"]
                total = comm.sum_shards(row.astype(jnp.int32) if odd == "type" else row, "learn").sum()
                heads = ("b", "c") if odd == "layout" else ("a", "b")
                total += comm.average_gradients(dict.fromkeys(heads, row[0]), tag="learn")["b"].sum()
                return {"total": comm.sum(total, "log") if odd == "order" else total}, {}

            step = comm.spmd(learn, donate=False)
            own = comm.shard([{"row": rows_of(4)[shard]} for shard in comm.world.shards])
            for size in (1, 1 + rank):
                step(comm.replicate({"call": np.ones(size)}), own)
            return "nothing"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def go_on_after_a_failure(rank: int, port: int, way: str) -> list[str]:
    """What steps say after one that failed, where a loop catches the error."""
    said: list[str] = []
    try:
        with opened(rank, port, way, 2, timeout_s=20) as comm:
            rows = rows_of(2)
            for tag in ("step", "learn" if rank == 0 else "log", "step", "step"):
                try:
                    _sum(comm, rows, tag)
                except Exception as error:
                    said.append(str(error))
    except Exception as error:
        said.append(str(error))
    return said


def unequal(rank: int, port: int) -> dict[str, Any]:
    """Arrays that are not equal, in several ways, and then a collective to see that things go on."""
    found: dict[str, Any] = {}
    with opened(rank, port) as comm:
        weight = np.arange(3, dtype=np.float32)
        odd = rank == 1
        cases = {
            "equal": {"bias": weight, "weight": comm.replicate({"w": weight})["w"]},
            "nested": {"Dense_0": {"bias": weight, "kernel": comm.replicate(weight)}, "moments": [weight, weight[:1]]},
            "bit": {"bias": weight, "weight": weight + np.float32(1e-7) * odd},
            "zero": {"bias": -weight if odd else np.array([0, -1, -2], np.float32)},
            "shape": {"weight": weight.reshape(1, 3) if odd else weight},
            "missing": {"bias": weight} if odd else {"bias": weight, "weight": weight},
        }
        for name, arrays in cases.items():
            comm.num_messages.clear()
            try:
                comm.check_equal(arrays)
                found[name] = comm.num_messages["check_equal"]
            except Exception as error:
                found[name] = str(error)
        found["after"] = len(comm.gather_object(None))
        try:
            comm.check_different("the same data")
        except Exception as error:
            found["data"] = str(error)
        try:
            comm.broadcast({"w": np.ones((3, 2 + rank))})
        except Exception as error:
            found["broadcast"] = str(error)
    try:
        with opened(rank, port) as comm:
            heads = ("b", "c") if odd else ("a", "b")
            comm.spmd(lambda shared, own: (comm.average_gradients(dict.fromkeys(heads, shared)), own))(weight, {})
    except Exception as error:
        found["heads"] = str(error)
    return found


def one_port(rank: int, port: int) -> list[Any]:
    """Comms one after another, where the second ends with an error on one rank while the other waits for it."""
    found: list[Any] = []
    for time_ in range(4):
        try:
            with opened(rank, port, ("memory", "messages")[time_ % 2]) as comm:
                if time_ == 1 and rank == 1:
                    raise KeyError("mine")
                found.append(float(_sum(comm, np.ones((4, 1), np.float32))[0]))
        except Exception as error:
            found.append(type(error).__name__)
    return found


def peer_dies(rank: int, port: int, folder: str, way: str, victim: int) -> None:
    """One rank is killed while the other waits for it; which writes down what it learned, and when."""
    signal.signal(
        signal.SIGTERM, signal.SIG_IGN
    )  # the launcher would stop the others at once; they are to find out alone
    try:
        with opened(rank, port, way) as comm:
            _sum(comm, rows_of(4))
            if rank == victim:
                time.sleep(0.5)
                Path(folder, "died_at").write_text(str(time.monotonic()))
                os.kill(os.getpid(), signal.SIGKILL)
            _sum(comm, rows_of(4))
    except PeerError as error:
        Path(folder, "told").write_text(f"{time.monotonic()}\n{error.rank}\n{error}")
        raise


def peer_raises(rank: int, port: int, way: str) -> None:
    """Rank 1 leaves with an error of its own, while rank 0 waits for it."""
    with opened(rank, port, way) as comm:
        _sum(comm, rows_of(4))
        if rank == 1:
            raise KeyError("mine")
        _sum(comm, rows_of(4))


def peer_stalls(rank: int, port: int, way: str, late: int) -> tuple[float, str]:
    """One rank comes far too late."""
    comm = opened(rank, port, way, timeout_s=1.0)
    began = time.monotonic()
    try:
        with comm:
            _sum(comm, rows_of(4))
            comm.barrier()
            began = time.monotonic()
            if rank == late:
                time.sleep(8)
            _sum(comm, rows_of(4))
    except PeerError as error:
        return time.monotonic() - began, str(error)
    return time.monotonic() - began, "nothing"


def first_is_missed(rank: int, ports: list[int]) -> dict[str, str]:
    """Rank 1 opens the Comm and then does something else: outside compiled code and inside."""
    found: dict[str, str] = {}
    for name, port in zip(("broadcast", "learn"), ports, strict=True):
        try:
            with opened(rank, port, timeout_s=1) as comm:
                if rank == 1:
                    time.sleep(4.5)
                    raise KeyError("this rank was elsewhere")
                comm.broadcast({"weight": np.ones(100)}) if name == "broadcast" else _sum(comm, rows_of(4)[:2])
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def gets_stuck(rank: int, port: int, folder: str, way: str) -> None:
    """Rank 1 does not come to the second sum; whose watch sees it first writes down what it said."""
    from lockstep.distributed.watch import Observed, Watch

    def tell(culprit: Observed, text: str) -> None:
        with Path(folder, "told").open("a") as file:
            file.write(f"{culprit.rank}: {text}\n")

    timers = Timers()
    with opened(rank, port, way, timeout_s=2.0, timers=timers) as comm:
        _sum(comm, rows_of(4))
        watch = Watch(comm.observe, tell, lambda: None, timeout_s=2, startup_timeout_s=30)
        timers.updated(1)
        timers.enter(ENV)
        if rank == 1:
            time.sleep(60)
        timers.enter(LEARN)
        _sum(comm, rows_of(4))
        watch.close()


def too_late(rank: int, port: int) -> str:
    """JAX is used before it is told of the other processes."""
    import jax

    jax.devices()
    try:
        with opened(rank, port, "gloo"):
            return "nothing"
    except ConfigError as error:
        return str(error)


def main() -> None:
    """A rank of any launcher: says what the ranks sum to."""
    from lockstep.jax.comm import Comm

    world = World.from_environment()
    with Comm(world.with_shards(4), device="cpu", timeout_s=20.0, startup_timeout_s=40.0) as comm:
        total = float(_sum(comm, rows_of(4)).sum())
        sys.stdout.write(f"{world.launcher} {world.rank} {comm.gather_object(world.rank)} {total}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()


def sums_between_devices(rank: int, port: int, device: str, backend: str) -> dict[str, Any]:
    """A sum over shards in compiled code between processes with a device each: where it runs, and its bits."""
    import jax.numpy as jnp

    from lockstep.jax.comm import Comm

    world = World(
        rank=rank, size=2, local_rank=rank, local_size=2, port=port
    ).with_shards(4)  # fmt: skip
    with Comm(world, device=device, backend=backend, timeout_s=60.0, startup_timeout_s=120.0) as comm:

        def add(shared: Any, own: Any) -> tuple[Any, Any]:
            return comm.sum_shards(own), own

        given = comm.replicate(np.zeros(COLUMNS, np.float32)), comm.shard([rows_of(4)[k] for k in world.shards])
        total, _ = comm.spmd(add, donate=False)(*given)
        return {
            "backend": comm.backend,
            "platforms": sorted({one.platform for one in total.devices()}),
            "devices": [one.local_hardware_id for one in comm.devices],
            "replicas": len(total.sharding.device_set),
            "total": np.asarray(jnp.asarray(comm.read(total))).tobytes(),
            "sent by the host": comm.num_messages["sum_shards"],
        }


def check_sums_between_devices(ranks: list[dict[str, Any]], platform: str, backend: str) -> None:
    """The sum is that of the tree over shards, on devices of both processes, and no message went through the host."""
    rows = rows_of(4)
    expected = (rows[0] + rows[1]) + (rows[2] + rows[3])
    for one in ranks:
        assert (one["backend"], one["platforms"], one["replicas"]) == (backend, [platform], 2)
        assert one["total"] == expected.tobytes()
        assert one["sent by the host"] == 0
