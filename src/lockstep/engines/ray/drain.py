"""Nodes that Ray drains: they are about to be taken away, and what runs on them has time to end.

A node drains when its `ray start` process gets SIGTERM, as in a pod that is deleted, when an autoscaler gives it back,
and after `ray drain-node`. Ray places nothing new on it, and ends it when it is idle.
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from importlib import import_module

from lockstep.engines.ray.actor import Host
from lockstep.launch.supervise import Failure

_POLL_S = 1.0


@contextlib.contextmanager
def watched_for_drains(hosts: Iterable[Host]) -> Generator[Callable[[], Failure | None]]:
    """Watch the nodes of the ranks and of this process; yields a function that returns the failure once one drains."""
    import ray

    names = {host.node_id: f"{host.name} ({host.address})" for host in hosts}
    here = ray.get_runtime_context().get_node_id()
    names.setdefault(here, "of the driver")
    found: list[Failure] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_POLL_S):
            drained = [node for node in _draining_nodes() if node in names]
            if drained:
                found.append(_failure(names[drained[0]], node_drained=here not in drained))
                return

    # A thread, as a slow reply must not keep the driver from watching the ranks.
    thread = threading.Thread(target=watch, name="ray-drains", daemon=True)
    thread.start()
    try:
        yield lambda: found[0] if found else None
    finally:
        over.set()
        thread.join(2 * _POLL_S)


def _draining_nodes() -> Mapping[str, int]:
    """The ids of the nodes that drain, and until when; empty if Ray does not answer, which the ranks notice, too."""
    try:
        # Ray has no public name for this; its own libraries use this one.
        return import_module("ray._private.state").state.get_draining_nodes()
    except Exception:
        return {}


def _failure(name: str, *, node_drained: bool) -> Failure:
    number = signal.SIGTERM
    return Failure(f"Ray drains the node {name}", 128 + number, interrupted=number, node_drained=node_drained)
