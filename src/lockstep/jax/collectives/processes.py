"""The processes of a world: how they meet, send each other numpy arrays and small objects, and start `jax.distributed`.

Nothing here needs JAX to compute, so that messages about ranks that died or went elsewhere do not depend on it either.
CPU processes need no more than this. `jax.distributed` is started where JAX itself must reach devices of other
processes: between GPUs, and with backend=gloo.
"""

import base64
import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from lockstep.distributed import messages, peers
from lockstep.distributed.network.host_layout import open_hosts
from lockstep.distributed.network.hosts import Hosts
from lockstep.distributed.network.interfaces import endpoint, listening_socket, towards
from lockstep.distributed.network.rank_store import LockstepStoreBackend
from lockstep.distributed.network.rank_zero import uses_agent_store
from lockstep.distributed.network.rendezvous import rendezvous
from lockstep.distributed.network.routes import several_hosts
from lockstep.distributed.network.store import Store
from lockstep.distributed.shared_memory import Segment, ordered
from lockstep.distributed.timers import SYNC, WAIT, Timers
from lockstep.distributed.tree import Node, tree_sum
from lockstep.distributed.watch import Observed
from lockstep.errors import ConfigError, PeerError, RunError
from lockstep.jax.collectives.native import Native, Use
from lockstep.system.processes import identity, private_folder, torchrun_agent
from lockstep.world import World

_POLL_S = 0.002


class Processes:
    """All processes of a world, connected.

    Attributes:
        num_messages: how many messages this process has sent, by tag.
    """

    def __init__(self, world: World, timers: Timers, timeout_s: float, startup_timeout_s: float) -> None:
        self.num_messages: Counter[str] = Counter()
        self._world, self._timers = world, timers
        self._timeout_s, self._startup_timeout_s = timeout_s, startup_timeout_s
        self._segment: Segment | None = None
        self._hosts: Hosts | None = None
        self._native: Native | None = None
        self._tag, self._inside, self._distributed = "", False, False

    def open(self) -> None:
        """Meet the others; *collective*. Raises `PeerError` when they do not come."""
        if self._world.size == 1:
            return
        until = time.monotonic() + self._startup_timeout_s
        store = rendezvous(LockstepStoreBackend(), _place_under_torchrun(self._world), self._startup_timeout_s)
        number = 0

        def gather(value: Any, tag: str) -> list[Any]:
            nonlocal number
            number += 1
            return _gather(store, self._world, value, f"{tag}/{number}", until)

        self._segment, self._hosts = open_hosts(
            self._world, gather, self._timers, self.num_messages, ordered(), self._timeout_s, always=True
        )

    def close(self, error: BaseException | None) -> None:
        """Let go of the others, also after an error; *collective* without one."""
        try:
            if error is None and self._hosts is not None:
                self.gather_object(None, "close")  # nobody leaves while others may still ask whether it lives
        finally:
            if self._distributed:
                _stop_jax(error)
                self._distributed = False
            if self._hosts is not None:
                self._hosts.close(error)
            if self._segment is not None:
                self._segment.close()
            self._hosts = self._segment = self._native = None

    def start_jax(self, local_devices: Sequence[int] | None, startup_timeout_s: float) -> None:
        """Let JAX reach the devices of all processes; *collective*, before JAX is first used."""
        with listening_socket(_own_address(self._world), 0) as probe:  # free now; the coordinator opens it in a moment
            mine = endpoint(*probe.getsockname()[:2])
        coordinator = self.gather_object(mine, "coordinator")[0]
        os.environ["JAX_ENABLE_PREEMPTION_SERVICE"] = "0"
        jax.config.update("jax_enable_preemption_service", False)  # it would swallow SIGTERM
        try:
            jax.distributed.initialize(
                coordinator,
                self._world.size,
                self._world.rank,
                local_device_ids=local_devices,
                initialization_timeout=max(1, int(startup_timeout_s)),
                heartbeat_timeout_seconds=max(10, int(self._timeout_s)),
                shutdown_timeout_seconds=max(1, int(self._timeout_s)),
                coordinator_bind_address=coordinator,
            )
        except RuntimeError as error:
            if "before" in str(error):
                raise ConfigError(
                    "JAX was used before `Comm` was entered; with several processes, enter it first"
                ) from error
            raise PeerError(f"rank {self._world.rank} could not start jax.distributed: {_line(error)}") from error
        self._distributed = True

    def announce_failure(self, reason: str) -> None:
        """Send the other hosts the reason why this process exits; not collective, and from any thread."""
        if self._hosts is not None:
            self._hosts.announce_failure(reason)

    def observe(self) -> list[Observed]:
        """What the processes of this host do at this moment; not collective."""
        return peers.observe(self._segment, self._world.rank, self._timers.row, self._tag)

    # -- collectives ---------------------------------------------------------------------------------------------------

    def gather_object(self, value: Any, tag: str) -> list[Any]:
        """The JSON-able values (arrays allowed) of all processes, in rank order; *collective*."""
        if self._hosts is None:
            return [messages.decode(messages.encode(value))]
        body = np.frombuffer(messages.encode(value), np.uint8)
        with self.entered(tag):
            sizes = self._hosts.gather(np.array([len(body)]), tag)[:, 0]
            padded = np.zeros(int(sizes.max()), np.uint8)
            padded[: len(body)] = body
            bodies = self._hosts.gather(padded, tag)
        return [messages.decode(one[:size].tobytes()) for one, size in zip(bodies, sizes, strict=True)]

    def gather(self, flat: np.ndarray, tag: str) -> np.ndarray:
        """The arrays [n] of all processes, [size, n]; *collective*, one message."""
        if self._hosts is None:
            return flat[None]
        with self.entered(tag):
            return self._hosts.gather(flat, tag)

    def sum(self, parts: Sequence[np.ndarray], tag: str) -> np.ndarray:
        """The sum [n] over all shards, from sums at the nodes that this process owns; *collective*, one message.

        It may lie in memory that the next collective writes to.
        """
        root: Node = (0, self._world.num_shards)
        if self._hosts is None:
            (total,) = parts
            return total
        with self.entered(tag):
            values: Mapping[Node, np.ndarray] = self._hosts.exchange(parts, tag, np.add)
        return tree_sum(values, root, np.add)

    def sum_in_c(self, length: int, tag: str) -> tuple[Callable[[int, int], Use | None], Callable[[], None]] | None:
        """What `sum` of `length` float32 numbers is in C, and how it waits; None where `sum` does more than C can."""
        size = 4 * length
        found = None if self._hosts is None or self._segment is None else self._hosts.shared_by(size)
        if found is None or self._segment is None:
            return None
        slots, rows, own = found
        native = self._native = self._native or Native(self._segment, self._timers.totals_ns, rows, own)

        def make(python: int, wait: int) -> Use | None:
            return native.use(length, self._world.num_shards, tag, python, wait)

        return make, lambda: slots.wait(tag, size)

    @contextlib.contextmanager
    def entered(self, tag: str) -> Generator[None]:
        """Inside, this process is in a collective: others can read which."""
        if self._inside:
            yield
            return
        self._inside, self._tag = True, tag
        if self._segment is not None:
            self._segment.enter(tag)
        previous = self._timers.enter(SYNC)
        try:
            yield
        finally:
            self._inside = False
        self._timers.enter(previous)  # after an error the phase stays, for messages

    @contextlib.contextmanager
    def waiting(self) -> Generator[None]:
        """Inside, this process waits for others as far as anybody can see: JAX does not tell when it does."""
        previous = self._timers.enter(WAIT)
        yield
        self._timers.enter(previous)

    def lost(self, tag: str, error: Exception) -> RunError:
        """Who ended, as far as this host can tell, when JAX could not reach somebody."""
        return peers.lost(self._segment, self._world.rank, tag, self._timeout_s, error)


def _gather(store: Store, world: World, value: Any, key: str, until: float) -> list[Any]:
    """The values of all, through the store that they met at; once or twice, before there is anything better."""
    store.set(f"{key}/{world.rank}", base64.b64encode(messages.encode(value)).decode())
    keys = [f"{key}/{rank}" for rank in range(world.size)]
    try:
        while not store.check(keys):
            if time.monotonic() > until:
                missing = next(rank for rank, one in enumerate(keys) if not store.check([one]))
                raise PeerError(f"rank {missing} met the others and then did not go on", missing)
            time.sleep(_POLL_S)
        return [messages.decode(base64.b64decode(store.get(one))) for one in keys]
    except PeerError:
        raise
    except RuntimeError as error:
        raise PeerError(f"rank 0 has ended while rank {world.rank} met the others ({_line(error)})", 0) from error


def _place_under_torchrun(world: World) -> World:
    """Torchrun's agent keeps the port that it tells ranks; those of one host then meet through a file."""
    if not uses_agent_store(world) or world.init_file:
        return world
    agent = torchrun_agent()
    if several_hosts(world) or agent is None:
        raise ConfigError(
            f"torchrun keeps {world.address}:{world.port} to itself, and JAX's ranks cannot meet there; start them "
            "with `python -m lockstep.launch.jax`, or give all a shared --init-file"
        )
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return replace(world, init_file=str(private_folder() / f"{identity(agent)}.{restart}"), address="127.0.0.1", port=0)


def _own_address(world: World) -> str:
    """Where other processes reach this one."""
    if not several_hosts(world):
        return "127.0.0.1"
    return towards(world.address.split(",")[0], world.port)


_left: list[Any] = []  # clients of runs that failed; their destructors would wait for processes that are no more


def _stop_jax(error: BaseException | None) -> None:
    """Shut down `jax.distributed`; after an error without waiting for the others, now and when the process ends."""
    if error is None:
        jax.distributed.shutdown()
        return
    from jax._src import distributed  # JAX offers no way to leave without the others

    state = distributed.global_state
    _left.extend([state.client, state.service])
    state.client = state.service = None


def _line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
