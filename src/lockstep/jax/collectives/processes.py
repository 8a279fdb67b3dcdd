"""The process group: rendezvous, collectives of numpy arrays and small objects, and the start of `jax.distributed`.

Nothing here computes with JAX, so errors about failed ranks do not depend on it either. CPU processes need only this.
`jax.distributed` is started where JAX itself must reach devices of other processes: for GPUs, and with backend=gloo.
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
from lockstep.distributed.signature import message_signature
from lockstep.distributed.timers import SYNC, WAIT, Timers
from lockstep.distributed.tree import Node, tree_sum
from lockstep.distributed.watch import Observed
from lockstep.errors import ConfigError, PeerError, RunError
from lockstep.jax.collectives.native import NativeSum, NativeSums
from lockstep.system.processes import identity, private_folder, torchrun_agent
from lockstep.world import World

_POLL_S = 0.002
_LONGEST_STARTUP_S = 1_000_000  # startup_timeout_s may be infinite, JAX's may not


class Processes:
    """All processes of a world, connected.

    Attributes:
        rank: of this process.
        num_messages: messages sent by this process, by tag.
    """

    def __init__(self, world: World, timers: Timers, timeout_s: float, startup_timeout_s: float) -> None:
        self.rank = world.rank
        self.num_messages: Counter[str] = Counter()
        self._world, self._timers = world, timers
        self._timeout_s, self._startup_timeout_s = timeout_s, startup_timeout_s
        self._segment: Segment | None = None
        self._hosts: Hosts | None = None
        self._native: NativeSums | None = None
        self._tag, self._inside, self._distributed = "", False, False
        self._failed: str | None = None
        """The first collective that failed in this process."""

    def open(self) -> None:
        """Connect to the other processes; *collective*. Raises `PeerError` if they do not arrive in time."""
        if self._world.size == 1:
            return
        until = time.monotonic() + self._startup_timeout_s
        store = rendezvous(LockstepStoreBackend(), _world_under_torchrun(self._world), self._startup_timeout_s)
        number = 0

        def gather(value: Any, tag: str) -> list[Any]:
            nonlocal number
            number += 1
            return _gather_through_store(store, self._world, value, f"{tag}/{number}", until)

        self._segment, self._hosts = open_hosts(
            self._world, gather, self._timers, self.num_messages, ordered(), self._timeout_s, always=True
        )

    def close(self, error: BaseException | None) -> None:
        """Disconnect, also after an error; *collective* without one."""
        try:
            if error is None and self._hosts is not None:
                self.gather_object(None, "close")  # no process exits while others may still check that it is alive
        except BaseException as failed:
            error = failed  # else JAX would wait for the process that has ended
            raise
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
        """Start `jax.distributed`; *collective*, before JAX is first used."""
        with listening_socket(_own_address(self._world), 0) as probe:  # picks a free port for the coordinator
            mine = endpoint(*probe.getsockname()[:2])
        coordinator = self.gather_object(mine, "coordinator")[0]
        os.environ["JAX_ENABLE_PREEMPTION_SERVICE"] = "0"
        jax.config.update("jax_enable_preemption_service", False)  # it would intercept SIGTERM
        try:
            jax.distributed.initialize(
                coordinator,
                self._world.size,
                self._world.rank,
                local_device_ids=local_devices,
                initialization_timeout=max(1, int(min(startup_timeout_s, _LONGEST_STARTUP_S))),
                heartbeat_timeout_seconds=max(10, int(self._timeout_s)),
                shutdown_timeout_seconds=max(1, int(self._timeout_s)),
                coordinator_bind_address=coordinator,
            )
        except RuntimeError as error:
            if "before" in str(error):
                raise ConfigError(
                    "JAX was used before `Comm` was entered, as by a file that makes arrays where it is imported; with "
                    "several processes, enter it first: make constants with numpy, and JAX's arrays within functions"
                ) from error
            raise PeerError(f"rank {self._world.rank} could not start jax.distributed: {_first_line(error)}") from error
        self._distributed = True

    def announce_failure(self, reason: str) -> None:
        """Send the other hosts the reason why this process exits; not collective, and from any thread."""
        if self._hosts is not None:
            self._hosts.announce_failure(reason)

    def observe(self) -> list[Observed]:
        """The current phase and collective of each process of this host; not collective."""
        return peers.observe(self._segment, self._world.rank, self._timers.row, self._tag)

    # -- collectives ---------------------------------------------------------------------------------------------------

    def gather_object(self, value: Any, tag: str) -> list[Any]:
        """The JSON-able values (arrays allowed) of all processes, in rank order; *collective*."""
        if self._world.size == 1:
            return [messages.decode(messages.encode(value))]
        body = np.frombuffer(messages.encode(value), np.uint8)
        with self.entered(tag) as hosts:
            sizes = hosts.gather(np.array([len(body)]), tag)[:, 0]
            padded = np.zeros(int(sizes.max()), np.uint8)
            padded[: len(body)] = body
            bodies = hosts.gather(padded, tag)
        return [messages.decode(one[:size].tobytes()) for one, size in zip(bodies, sizes, strict=True)]

    def gather(self, flat: np.ndarray, tag: str, layout: int = 0) -> np.ndarray:
        """The arrays [n] of all processes, [size, n]; *collective*, one message. They compare the `layout_code`."""
        if self._world.size == 1:
            return flat[None]
        with self.entered(tag) as hosts:
            return hosts.gather(flat, tag, layout)

    def sum(self, parts: Sequence[np.ndarray], tag: str) -> np.ndarray:
        """The sum [n] over all shards, from the sums at the tree nodes of this process; *collective*, one message.

        The result may be a view of memory that the next collective overwrites.
        """
        root: Node = (0, self._world.num_shards)
        if self._world.size == 1:
            (total,) = parts
            return total
        with self.entered(tag) as hosts:
            values: Mapping[Node, np.ndarray] = hosts.exchange(parts, tag, np.add)
        return tree_sum(values, root, np.add)

    def native_sum(
        self, length: int, tag: str
    ) -> tuple[Callable[[int, int], NativeSum | None], Callable[[], None]] | None:
        """Factory and wait function of a C sum of `length` float32; None if `sum` needs more than shared memory."""
        size = 4 * length
        shared = None if self._hosts is None or self._segment is None else self._hosts.shared_by(size)
        if shared is None or self._segment is None:
            return None
        slots, rows, own = shared
        native = self._native = self._native or NativeSums(self._segment, self._timers.totals_ns, rows, own)

        def make(python: int, wait: int) -> NativeSum | None:
            return native.use(length, self._world.num_shards, tag, python, wait)

        return make, lambda: slots.wait(tag, message_signature(size, "float32"))

    @contextlib.contextmanager
    def entered(self, tag: str) -> Generator[Hosts]:
        """Publish to the other processes of several that this one is in the collective `tag`."""
        hosts = self.connected(tag)
        if self._inside:
            yield hosts
            return
        self._inside, self._tag = True, tag
        if self._segment is not None:
            self._segment.enter(tag)
        previous = self._timers.enter(SYNC)
        try:
            yield hosts
        except BaseException:
            self.mark_failed(tag)
            raise
        finally:
            self._inside = False
        self._timers.enter(previous)  # not after an error, whose message names the phase

    def mark_failed(self, tag: str) -> None:
        """Record that a collective failed in this process."""
        self._failed = self._failed or tag

    def connected(self, tag: str) -> Hosts:
        """The connections of several processes, for the collective `tag`.

        Raises:
            ConfigError: they are not open.
            RunError: a collective failed before: the ranks may be in different ones of equal size and tag.
        """
        if self._hosts is None:
            raise ConfigError(f"{tag} was called before or after `with Comm(...) as comm:`; call it inside")
        if self._failed is not None and not self._inside:
            raise peers.after_failure(tag, self._failed)
        return self._hosts

    @contextlib.contextmanager
    def waiting(self) -> Generator[None]:
        """Count the time as waiting, because JAX does not report when it waits for other processes."""
        previous = self._timers.enter(WAIT)
        yield
        self._timers.enter(previous)

    def peer_error(self, tag: str, error: Exception) -> RunError:
        """The error that names the rank that ended, as far as this host can tell, after a network error of JAX."""
        return peers.lost(self._segment, self._world.rank, tag, self._timeout_s, error)


def _gather_through_store(store: Store, world: World, value: Any, key: str, until: float) -> list[Any]:
    """The values of all processes, through the rendezvous store; used until the connections are open."""
    store.set(f"{key}/{world.rank}", base64.b64encode(messages.encode(value)).decode())
    keys = [f"{key}/{rank}" for rank in range(world.size)]
    try:
        while not store.check(keys):
            if time.monotonic() > until:
                missing = next(rank for rank, one in enumerate(keys) if not store.check([one]))
                raise PeerError(f"rank {missing} joined the rendezvous and did not finish connecting", missing)
            time.sleep(_POLL_S)
        return [messages.decode(base64.b64decode(store.get(one))) for one in keys]
    except PeerError:
        raise
    except RuntimeError as error:
        raise PeerError(f"rank 0 ended while rank {world.rank} was connecting ({_first_line(error)})", 0) from error


def _world_under_torchrun(world: World) -> World:
    """The world with a rendezvous file under torchrun, whose agent occupies the port that it assigns to the ranks."""
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
    if not several_hosts(world):
        return "127.0.0.1"
    return towards(world.address.split(",")[0], world.port)


_abandoned_clients: list[Any] = []  # of failed runs; their destructors would wait for processes that have exited


def _stop_jax(error: BaseException | None) -> None:
    """Shut down `jax.distributed`; after an error without waiting for the other processes, now and at exit."""
    if error is None:
        jax.distributed.shutdown()
        return
    from jax._src import distributed  # JAX has no public way to shut down without a barrier

    state = distributed.global_state
    _abandoned_clients.extend([state.client, state.service])
    state.client = state.service = None


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
