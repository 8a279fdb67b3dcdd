"""Place one actor per rank in a placement group; Ray alone decides where."""

import contextlib
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.engines.ray.actor import MAX_CONCURRENCY, ChildActor, Host
from lockstep.engines.ray.arguments import RayRequest
from lockstep.errors import ConfigError
from lockstep.launch.failure_report import log
from lockstep.launch.rendezvous import Cancelled

_POLL_S = 0.5
_READY_S = 3.0  # until the resources of an earlier attempt are free again; then fewer ranks are tried
_REPORT_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class PlacedRank:
    """An actor, and where Ray has put it."""

    actor: Any
    """Handle of the `ChildActor`."""
    host: Host
    local_rank: int
    local_size: int
    node_rank: int


@contextlib.contextmanager
def placed_ranks(request: RayRequest, cancelled: Callable[[], bool] = lambda: False) -> Generator[list[PlacedRank]]:
    """Place the ranks and yield them in rank order; at the end nothing of them is left.

    With `request.elastic`, as many as Ray can place now. Ranks of one node are neighbours; those of this process' node
    come first.

    Raises:
        ConfigError: Ray could not place them within `request.join_timeout_s`.
        Cancelled: `cancelled()` became true meanwhile.
    """
    deadline = time.monotonic() + request.join_timeout_s
    with contextlib.ExitStack() as stack:
        group = _PlacementGroup(request)
        stack.callback(group.remove)
        while True:
            group.reserve(deadline, cancelled)
            hosts = group.start_actors(deadline, cancelled)
            if hosts is not None:
                break
            group.remove()
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"nodes were lost again and again within the join timeout of {request.join_timeout_s:g} s"
                )
        yield _in_rank_order(group.actors, hosts)


class _PlacementGroup:
    """A placement group and its actors."""

    def __init__(self, request: RayRequest) -> None:
        self._request = request
        self._group: Any = None
        self._bundles = 0
        self.actors: list[Any] = []

    def reserve(self, deadline: float, cancelled: Callable[[], bool]) -> None:
        """Reserve the resources: all bundles, or the largest number that Ray can place."""
        report_at = time.monotonic() + _REPORT_EVERY_S
        while True:
            for count in range(self._largest(), self._request.minimum - 1, -1):
                if self._reserve(count, cancelled):
                    return
            now = time.monotonic()
            if now > deadline:
                raise ConfigError(
                    f"Ray could not place {self._wanted()} within the join timeout of "
                    f"{self._request.join_timeout_s:g} s; {_resources()}"
                )
            if now > report_at:
                report_at = now + _REPORT_EVERY_S
                log(f"lockstep: waiting for Ray to place {self._wanted()}; {_resources()}")

    def start_actors(self, deadline: float, cancelled: Callable[[], bool]) -> list[Host] | None:
        """Start the actors; returns where each of them is, None if a node was lost meanwhile."""
        import ray
        from ray.util.placement_group import placement_group_table
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        request = self._request
        self.actors = [
            ray.remote(ChildActor)
            .options(
                num_cpus=request.cpus,
                num_gpus=request.gpus or 0,
                resources=dict(request.resources),
                max_concurrency=MAX_CONCURRENCY,
                max_restarts=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, index),
            )
            .remote()
            for index in range(self._bundles)
            for _ in range(request.ranks_per_bundle)
        ]
        hosts = [actor.describe.remote() for actor in self.actors]
        while len(ray.wait(hosts, num_returns=len(hosts), timeout=_POLL_S)[0]) < len(hosts):
            _check(cancelled)
            if placement_group_table(self._group)["state"] != "CREATED":
                return None  # Ray has noticed that a node of it is lost
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"the actors of {self._wanted()} did not start within the join timeout of "
                    f"{request.join_timeout_s:g} s; ray list actors shows why"
                )
        try:
            return ray.get(hosts)
        except (ray.exceptions.ActorDiedError, ray.exceptions.RuntimeEnvSetupError) as error:
            if "creation task" in str(error) or not isinstance(error, ray.exceptions.RayActorError):
                raise ConfigError(f"no actor could be started: {_last_line(error)}") from None
            return None
        except ray.exceptions.RayActorError:
            return None

    def remove(self) -> None:
        """End the actors and release the resources."""
        if self._group is None:
            return
        import ray
        from ray.util.placement_group import remove_placement_group

        for actor in self.actors:
            ray.kill(actor)
        remove_placement_group(self._group)
        self._group, self.actors = None, []

    def _largest(self) -> int:
        """The number of bundles for which the whole cluster has enough resources, at least the minimum."""
        import ray

        request = self._request
        if not request.elastic:
            return request.maximum
        total = ray.cluster_resources()
        enough = min(int(total.get(name, 0.0) // amount) for name, amount in request.bundle.items())
        return max(request.minimum, min(enough, request.maximum))

    def _reserve(self, count: int, cancelled: Callable[[], bool]) -> bool:
        """Whether Ray has placed `count` bundles in time. The group is kept if it is the wanted one, else replaced."""
        from ray.util.placement_group import placement_group

        if self._group is not None and self._bundles != count:
            self.remove()
        if self._group is None:
            self._bundles = count
            self._group = placement_group([self._request.bundle] * count, self._request.strategy)
        until = time.monotonic() + _READY_S
        while time.monotonic() < until:
            _check(cancelled)
            if self._group.wait(_POLL_S):
                return True
        return False

    def _wanted(self) -> str:
        request = self._request
        count = f"{request.minimum} to {request.maximum}" if request.elastic else str(request.maximum)
        each = ", ".join(f"{name} {amount:g}" for name, amount in request.bundle.items())
        unit = "node" if request.ranks_per_bundle > 1 else "rank"
        return f"{count} {unit}{'s' * (request.maximum > 1)} of {each} ({request.strategy})"


def _resources() -> str:
    import ray

    total, free = ray.cluster_resources(), ray.available_resources()
    names = [name for name in sorted(total) if ":" not in name and name not in ("memory", "object_store_memory")]
    return "the cluster has " + ", ".join(f"{name} {total[name]:g} ({free.get(name, 0):g} free)" for name in names)


def _check(cancelled: Callable[[], bool]) -> None:
    if cancelled():
        raise Cancelled


def _last_line(error: Exception) -> str:
    return next((line.strip() for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)


def _in_rank_order(actors: Sequence[Any], hosts: Sequence[Host]) -> list[PlacedRank]:
    """The actors by node; the nodes in the order of their addresses, that of this process first."""
    import ray

    here = ray.get_runtime_context().get_node_id()
    order = sorted({(host.node_id != here, host.address, host.node_id) for host in hosts})
    nodes = [node_id for _, _, node_id in order]
    placed: list[PlacedRank] = []
    for node_rank, node_id in enumerate(nodes):
        local = [i for i, host in enumerate(hosts) if host.node_id == node_id]
        placed += [
            PlacedRank(actors[i], hosts[i], local_rank, len(local), node_rank) for local_rank, i in enumerate(local)
        ]
    return placed
