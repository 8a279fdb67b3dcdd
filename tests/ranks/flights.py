"""Called inside ranks by `test_preflight_of_ranks.py`: ranks that differ, clocks that differ, one that sleeps."""

import sys
import time
from dataclasses import replace
from typing import Any
from unittest import mock

from host_blocks import on_hosts
from running import small

from lockstep import World
from lockstep.envs.make import env_spec
from lockstep.launch.rank_environment import free_port
from lockstep.preflight import compare as preflight
from lockstep.preflight import identity as identity
from lockstep.preflight import latency
from lockstep.preflight.compare import add_forecast
from lockstep.run import Run
from lockstep.torch import preflight as torch_preflight
from lockstep.torch.comm import Comm
from lockstep.torch.forecast import forecast
from lockstep.torch.networks import Policy
from lockstep.torch.ppo import PPO

RUN = small("lockstep/Match-v0")
AHEAD_S = 100.0


def changed(name: str, folder: str) -> tuple[Run, Any]:
    """What rank 1 was started with, and what is different around it."""
    nothing = mock.patch.object(sys, "tracebacklimit", None, create=True)
    if name == "version":
        real = identity.version
        return RUN, mock.patch.object(identity, "version", lambda which: "0.0.1" if which == "torch" else real(which))
    if name == "config":
        return replace(RUN, seed=5, algorithm=replace(RUN.algorithm, gamma=0.5)), nothing
    if name == "code":
        return RUN, mock.patch.object(preflight, "user_code", lambda _: f"{folder}.py 22")
    if name == "source":
        return RUN, mock.patch.object(identity, "_own_source", lambda: "another")
    if name == "clock":
        clock = mock.Mock(time=lambda: time.time() + AHEAD_S, perf_counter=time.perf_counter)
        return RUN, mock.patch.object(latency, "time", clock)
    if name == "device":
        return RUN, mock.patch.object(torch_preflight, "kind_of", lambda _: "NVIDIA T4")
    return RUN, nothing


def learner_of(run: Run) -> PPO:
    return PPO(run, Policy(env_spec(run.task, run.env), run.network), Comm(World()))


def flights(rank: int, ports: dict[str, int], sizes: tuple[int, ...], pinned: bool) -> dict[str, Any]:
    """For each way in which rank 1 may differ: what the preflight says on this rank."""
    told: dict[str, Any] = {}
    for name, port in ports.items():
        run, around = changed(name, "mine") if rank == 1 else (RUN, mock.patch.object(preflight, "_SKEW_S", 1.0))
        if name == "code" and rank != 1:
            around = mock.patch.object(preflight, "user_code", lambda _: "mine.py 11")
        world = on_hosts(rank, port, sizes).with_shards(4 if pinned else None)
        with around, Comm(world, device="cpu", timeout_s=20) as comm:
            try:
                found = torch_preflight.preflight(comm, run)
                add_forecast(found, lambda *asked, run=run, comm=comm: forecast(run, comm, learner_of(run), *asked))
            except Exception as error:
                told[name] = f"{type(error).__name__}: {error}"
                continue
            messages = comm.num_messages["preflight"]
        told[name] = {**found.to_dict(), "line": found.line(), "notes": found.notes, "messages": messages}
    return told


def ports(*names: str) -> dict[str, int]:
    return {name: free_port() for name in names}


def asleep() -> None:
    """Rank 1 of the environment's world comes to the preflight only when rank 0 has given up."""
    world = World.from_environment()
    with Comm(world, device="cpu", timeout_s=3, startup_timeout_s=60) as comm:
        if world.rank == 1:
            time.sleep(12)
        torch_preflight.preflight(comm, replace(RUN, timeout_s=3.0))
