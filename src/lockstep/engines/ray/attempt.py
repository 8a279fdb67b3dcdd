"""One attempt to run all ranks of a command as children of Ray actors: place, start, wait, stop."""

import contextlib
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lockstep.engines.ray.actor import Child, RankOnNode
from lockstep.engines.ray.arguments import RayRequest
from lockstep.engines.ray.drain import watched_for_drains
from lockstep.engines.ray.placement import PlacedRank, placed_ranks
from lockstep.errors import ConfigError
from lockstep.launch.failure_report import log, log_path, merge_failures, with_failure_while_stopping
from lockstep.launch.rank_environment import RankPlacement
from lockstep.launch.rendezvous import Cancelled
from lockstep.launch.signals import signal_name
from lockstep.launch.supervise import Bounds, Failure, interruption, sleep_until_ended, wait_for_ranks
from lockstep.record.failure import archive_failure
from lockstep.record.partial_files import remove_partial_files

_SETTLE_S = 5.0  # the loss of a node is known later than the errors of the ranks that were connected to it
_KILL_S = 2.0  # until killed ranks have ended
_OUTPUT_S = 2.0  # until the last lines of rank 0 are here


@dataclass(slots=True)
class RemoteRank:
    """One rank in an actor."""

    index: int
    placed: PlacedRank
    result_ref: Any
    """Reference to the result of `ChildActor.run`."""
    code: int | None = None
    """Exit code, minus the signal that killed it, or None while it runs."""
    problem: str = ""
    """Why its actor could not report an exit code."""
    result: bytes = b""

    @property
    def exit_code(self) -> int:
        """Exit code as a shell has it: 128 + n for signal n."""
        code = self.code or 0
        return 128 - code if code < 0 else code

    def describe(self) -> str:
        """How it ended, for messages."""
        host = self.placed.host
        if self.problem:
            return f"rank {self.index} {self.problem} (on {host.name}, {host.address})"
        if self.exit_code > 128:
            return f"rank {self.index} was killed by {signal_name(self.exit_code - 128)}"
        return f"rank {self.index} exited with code {self.code}"

    def update(self) -> None:
        """Take the exit code from the actor that has ended the call."""
        import ray

        try:
            self.code, self.result = ray.get(self.result_ref)
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            self.code = getattr(cause, "exit_code", 1)
            self.problem = f"could not be started: {cause}"
        except ray.exceptions.ActorUnavailableError:
            self.code, self.problem = -signal.SIGKILL, "was lost: its Ray actor does not answer"
        except ray.exceptions.RayError:
            self.code, self.problem = -signal.SIGKILL, "was lost: its Ray actor has died"


class RemoteRanks:
    """The ranks of an attempt; see `lockstep.launch.supervise.Ranks`."""

    tick_s = 0.25  # `ray.wait` returns at once when a rank ends; each call costs driver and raylet processor time

    def __init__(self, placed: Sequence[PlacedRank], children: Sequence[Child]) -> None:
        self.ranks = [
            RemoteRank(index, one, one.actor.run.remote(child))
            for index, (one, child) in enumerate(zip(placed, children, strict=True))
        ]
        self.ended: list[RemoteRank] = []

    def running(self) -> list[int]:
        """The ranks that have not ended."""
        self.sleep(0)
        return [rank.index for rank in self._running()]

    def sleep(self, seconds: float) -> None:
        """Return when a rank ends, at the latest after `seconds`."""
        import ray

        running = {rank.result_ref: rank for rank in self._running()}
        if running:
            for ref in ray.wait(list(running), num_returns=1, timeout=seconds)[0]:
                running[ref].update()
                self.ended.append(running[ref])

    def stop(self, number: int, grace_s: float, hurry: Callable[[], bool] = lambda: False) -> list[int]:
        """Signal all ranks, and kill them when `grace_s` has passed or `hurry()` says so; returns the killed ones."""
        self._signal(number)
        sleep_until_ended(self, time.monotonic() + grace_s, hurry)
        late = self.running()
        self._signal(signal.SIGKILL)
        sleep_until_ended(self, time.monotonic() + _KILL_S)
        return late

    def _running(self) -> list[RemoteRank]:
        return [rank for rank in self.ranks if rank not in self.ended]

    def _signal(self, number: int) -> None:
        for rank in self._running():
            rank.placed.actor.send_signal.remote(number)


@dataclass(frozen=True, slots=True, kw_only=True)
class RayAttempt:
    """One attempt to run the ranks of a command on a Ray cluster."""

    request: RayRequest
    command: list[str]
    run_dir: Path
    """On a disk that all nodes see."""
    environment: dict[str, str]
    """Variables that override those of the actors."""
    search_path: list[str]
    """Entries of PYTHONPATH before those of the nodes."""
    restarts: int = 0
    """Number of earlier attempts."""
    title: str = "new start"
    """Separates this attempt from earlier ones in a log."""

    @property
    def ranks(self) -> int:
        """The largest number of ranks."""
        return self.request.ranks

    @property
    def log_dir(self) -> Path:
        """The directory of the ranks' logs."""
        return self.run_dir

    def run(
        self, caught: list[int], bounds: Bounds, *, timeout_s: float | None = None, since: float | None = None
    ) -> tuple[Failure | None, list[int]]:
        """Place and start all ranks and wait until none is left; see `LocalAttempt.run`."""
        archive_failure(self.run_dir)
        bounds = replace(bounds, settle_s=_SETTLE_S)
        try:
            with placed_ranks(self.request, lambda: bool(caught)) as placed:
                log(f"lockstep: {_described(placed)}")
                ranks = RemoteRanks(placed, self._children(placed))
                with (
                    _forwarded_output(placed[0]),
                    watched_for_drains(one.host for one in placed) as drained,
                ):
                    failure = wait_for_ranks(
                        ranks, bounds, timeout_s=timeout_s, since=since, caught=caught, elsewhere=drained
                    )
                    if failure is None:
                        return None, []
                    failure = merge_failures(failure, ranks.ended, self.run_dir)
                    if failure.interrupted is None:
                        ranks.stop(signal.SIGTERM, bounds.stop_s, lambda: signal.SIGINT in caught)
                        return failure, []
                    late = ranks.stop(failure.interrupted, bounds.grace_s, lambda: signal.SIGINT in caught[1:])
                    return with_failure_while_stopping(failure, ranks.ended, self.run_dir), late
        except Cancelled:
            return interruption(caught[0]), []
        except ConfigError as error:
            return Failure(f"lockstep: error: {error}", error.exit_code), []
        finally:
            remove_partial_files(self.run_dir)

    def restarted(self, command: list[str], title: str) -> "RayAttempt":
        """The next attempt: `command`, with `title` in the logs."""
        return replace(self, command=command, restarts=self.restarts + 1, title=title)

    def _children(self, placed: Sequence[PlacedRank]) -> list[Child]:
        return [
            replace(child, command=self.command, log=log_path(self.run_dir, child.index), title=self.title)
            for child in rank_children(placed, self.request, self.environment, self.search_path, self.restarts)
        ]


def rank_children(
    placed: Sequence[PlacedRank],
    request: RayRequest,
    environment: Mapping[str, str],
    search_path: list[str],
    restarts: int = 0,
) -> list[Child]:
    """The processes of the ranks, without their command."""
    first, num_nodes = placed[0].host, placed[-1].node_rank + 1
    token = secrets.token_hex(16) if num_nodes > 1 else ""
    children: list[Child] = []
    for index, one in enumerate(placed):
        peers = [other for other in placed if other.node_rank == one.node_rank]
        # All GPUs of the node's ranks, in rank order: device LOCAL_RANK is then the one that Ray gave to this rank.
        devices = ",".join(name for other in peers for name in other.host.gpus)
        placement = RankPlacement(
            node_rank=one.node_rank,
            num_nodes=num_nodes,
            first_rank=index - one.local_rank,
            world_size=len(placed),
            address=first.address if num_nodes > 1 else "127.0.0.1",
            port=first.port,
            token=token,
        )
        rank = RankOnNode(
            local_rank=one.local_rank,
            local_size=one.local_size,
            cpus=request.cpus,
            placement=placement,
            restarts=restarts,
        )
        children.append(
            Child(
                command=[],
                environment={
                    **environment,
                    "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", ""),
                    "CUDA_VISIBLE_DEVICES": devices,
                },
                directory=os.getcwd(),
                search_path=search_path,
                index=index,
                rank=rank,
            )
        )
    return children


@contextlib.contextmanager
def _forwarded_output(first: PlacedRank) -> Generator[None]:
    """Print here what rank 0 prints for the user, until it has ended."""
    import ray

    def forward() -> None:
        with contextlib.suppress(ray.exceptions.RayError, OSError):
            while data := ray.get(first.actor.read_terminal.remote()):
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()

    thread = threading.Thread(target=forward, name="rank-0-output", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join(_OUTPUT_S)


def _described(placed: Sequence[PlacedRank]) -> str:
    """`Ray placed 4 ranks: 0-1 on alpha (10.0.0.1), 2-3 on beta (10.0.0.2)`."""
    nodes: dict[int, list[int]] = {}
    for index, one in enumerate(placed):
        nodes.setdefault(one.node_rank, []).append(index)
    parts = [
        f"{f'{indices[0]}-{indices[-1]}' if len(indices) > 1 else indices[0]} on "
        f"{placed[indices[0]].host.name} ({placed[indices[0]].host.address})"
        for indices in nodes.values()
    ]
    return f"Ray placed {len(placed)} rank{'s' * (len(placed) > 1)}: {', '.join(parts)}"
