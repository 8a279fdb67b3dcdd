"""`lockstep.engines.ray.launch`: call a function on ranks that Ray places."""

import pickle
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from lockstep.engines.ray.arguments import STRATEGIES, RayRequest, checked_address
from lockstep.engines.ray.attempt import RemoteRanks, rank_children
from lockstep.engines.ray.cluster import connected
from lockstep.engines.ray.placement import placed_ranks
from lockstep.engines.ray.train import variables_of_user
from lockstep.errors import ConfigError, RunError
from lockstep.launch.search_path import search_path_of_nodes
from lockstep.launch.signals import caught_signals
from lockstep.launch.spawned_call import unpack
from lockstep.launch.supervise import Bounds, wait_for_ranks

_T = TypeVar("_T")
_PLACEMENT_S = 300.0


def launch(  # noqa: PLR0913  # all but fn and args by keyword
    fn: Callable[..., _T],
    args: tuple[Any, ...] = (),
    *,
    ranks: int,
    strategy: str = "PACK",
    cpus_per_rank: int = 1,
    gpus_per_rank: int = 0,
    resources_per_rank: Mapping[str, float] | None = None,
    address: str | None = None,
    runtime_env: Mapping[str, Any] | None = None,
    timeout_s: float | None = None,
) -> list[_T]:
    """Call `fn(rank, *args)` in a fresh process per rank, each the child of a Ray actor in one placement group.

    Inside, `World.from_environment()` and torchrun's variables (`RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR`, ...)
    describe the ranks, and device `LOCAL_RANK` is the GPU that Ray assigned. Uses the connection of this process if
    `ray.init()` was called; otherwise connects, or starts a cluster on this machine, for the time of the call.

    Args:
        fn: any function that Ray can send, also from a notebook.
        args: further arguments, the same for all ranks.
        ranks: how many.
        strategy: of the placement group: STRICT_PACK, PACK, SPREAD or STRICT_SPREAD.
        cpus_per_rank: CPUs of each rank, and its threads.
        gpus_per_rank: GPUs of each rank.
        resources_per_rank: custom resources of each rank, by name.
        address: of the cluster; default: RAY_ADDRESS, else one that runs on this machine, else a new one.
        runtime_env: Ray's runtime environment.
        timeout_s: bound on the whole call, if any. The ranks must be placed within it, and within 300 s.

    Returns:
        What each rank returned, in rank order.

    Raises:
        RunError: a rank raised, died or exited early, or its actor was lost; the others are stopped. Its cause shows
            the rank's traceback.
        ConfigError: the call cannot work, or a rank raised a `ConfigError`.
    """
    if ranks < 1:
        raise ConfigError(f"ranks={ranks} must be at least 1")
    if strategy not in STRATEGIES:
        raise ConfigError(f"strategy={strategy} must be one of {', '.join(STRATEGIES)}")
    started = time.monotonic()
    request = RayRequest(
        minimum=ranks,
        maximum=ranks,
        strategy=strategy,
        cpus=cpus_per_rank,
        gpus=gpus_per_rank,
        resources=dict(resources_per_rank or {}),
        address=checked_address(address),
        join_timeout_s=_PLACEMENT_S if timeout_s is None else min(_PLACEMENT_S, timeout_s),
    )
    with connected(address, ranks * cpus_per_rank, runtime_env, forward_logs=True):
        return _call(_packed(fn, args), request, timeout_s, started)


def _packed(fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """Input of `lockstep.launch.spawned_call.run`; by value where the ranks cannot import the function."""
    from ray import cloudpickle

    try:
        return pickle.dumps(({}, cloudpickle.dumps(fn), cloudpickle.dumps(args)), pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        name = getattr(fn, "__qualname__", repr(fn))
        raise ConfigError(f"fn={name} or its args cannot be sent to other processes: {error}") from error


def _call(call: bytes, request: RayRequest, timeout_s: float | None, started: float) -> list[Any]:
    code = "from lockstep.launch.spawned_call import run"
    path = search_path_of_nodes(str(Path(__file__).parents[3]))
    bounds = Bounds(settle_s=5.0)
    with caught_signals() as caught, placed_ranks(request, lambda: bool(caught)) as placed:
        children = [
            replace(child, command=[sys.executable, "-c", code], call=call)
            for child in rank_children(placed, request, variables_of_user(), path)
        ]
        group = RemoteRanks(placed, children)
        failure = wait_for_ranks(
            group,
            bounds,
            timeout_s=timeout_s,
            since=started,
            caught=caught,
            has_result=lambda rank: bool(group.ranks[rank].result),
        )
        if failure is not None and failure.interrupted is not None:
            group.stop(failure.interrupted, bounds.grace_s, lambda: signal.SIGINT in caught[1:])
        elif failure is not None:
            group.stop(signal.SIGTERM, bounds.stop_s)
    ranks = group.ranks
    if failure is None:
        return [unpack(rank.index, rank.result) for rank in ranks]
    if failure.interrupted == signal.SIGINT:
        raise KeyboardInterrupt
    if failure.rank is not None and failure.code in (1, 2) and (data := ranks[failure.rank].result):
        unpack(failure.rank, data)
    raise RunError(failure.message)
