"""Predict the speed of several hosts before the first step, from short measurements and the cost model."""

import random
import statistics
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch

from lockstep.distributed.timers import Timers
from lockstep.envs.make import make_vector_env
from lockstep.experience.rollout import Collector
from lockstep.preflight.compare import Forecast
from lockstep.preflight.cost_model import Comparison, Layout, Work, compare, measured
from lockstep.run import Run
from lockstep.torch.comm import Comm
from lockstep.torch.envs.make import steps_on_device
from lockstep.torch.flat import FlatParameters
from lockstep.torch.hardware import share_cores
from lockstep.torch.networks import ActingPolicy, actor_of, multiplications
from lockstep.world import World


class Learner(Protocol):
    """The measured parts of an algorithm: those of `torch/ppo.py`, `dqn.py`, `sac.py` and `td3.py`."""

    @property
    def policy(self) -> ActingPolicy:
        """The acting policy."""
        ...

    @property
    def flat(self) -> FlatParameters:
        """All parameters."""
        ...

    def warmup_step(self, rows: int) -> Callable[[], object]:
        """Return a function that takes a gradient step on `rows` rows, without messages or effects."""
        ...


_FOR_S = 0.1  # bound on each of four measurements, in which every thing is done at least once
_REPEATS = 20
_STEPS = 8
_FEW, _MANY = 8, 32  # environments, at most: making them takes time
_MAKING_S = 1.0


def forecast(run: Run, comm: Comm, learner: Learner, layout: Layout, message_s: float) -> Forecast | str:
    """Predict the speed of this world and of one of its hosts alone, from half a second of measurements on this rank.

    Restores every random stream. Not collective.

    Args:
        run: the config.
        comm: of all ranks; only its `world` and `device` are used.
        learner: the algorithm; its parameters and optimizer are not changed.
        layout: ranks, hosts, cores and bandwidth.
        message_s: seconds of a small sum over all ranks.

    Returns:
        The forecast, or the reason why there is none.
    """
    if run.env.vectorization == "async":
        return "no prediction: a process per environment (env.vectorization=async) is not measured ahead"
    if steps_on_device(run, comm.device):
        return "no prediction: environments on torch tensors are not measured ahead"
    if run.compile:
        return "no prediction: compiled gradient steps (compile=true) are not measured ahead"
    saved = random.getstate(), np.random.get_state()  # the user's environment may draw from them
    try:
        with torch.random.fork_rng(devices=[]):
            return _measured(run, comm, learner, layout, message_s)
    except Exception as error:  # of the user's environment or network: training will report it with its place
        return f"no prediction: {type(error).__name__}: {error}"
    finally:
        random.setstate(saved[0])
        np.random.set_state(saved[1])


def _measured(run: Run, comm: Comm, learner: Learner, layout: Layout, message_s: float) -> Forecast | str:
    world = comm.world
    size = world.shard_size(run.num_envs, "num_envs")
    rows = run.algorithm.minibatch_rows(size, world.num_shards)
    few, many = min(size, _FEW), min(size * layout.hosts, _MANY)
    env = make_vector_env(run.task, run.env, 1)  # imports are not measured
    env.close()
    policy = learner.policy
    num_parameters = learner.flat.num_parameters
    steps: list[tuple[float, float]] = []
    for count in (few, many):
        start = time.perf_counter()
        env = make_vector_env(run.task, run.env, count)
        try:
            if time.perf_counter() - start > _MAKING_S:
                return "no prediction: environments take too long to make"
            actor = actor_of(policy, comm.device)
            rollout = Collector(
                World(), [env], actor, policy.distribution, num_steps=_STEPS, seed=run.seed, timers=Timers()
            )
            steps.append((env.num_envs, _seconds(rollout.collect) / _STEPS))
        finally:
            env.close()
    share_cores(world, rows * multiplications(policy))  # as training will
    part = max(1, rows // 8)
    gradients = [(part, _seconds(learner.warmup_step(part)))]
    whole = min(rows, int(part * max(1.0, _FOR_S / gradients[0][1])))  # as many rows as fit in the time
    other = whole if whole > part else max(1, part // 4)
    gradients.append((other, _seconds(learner.warmup_step(other))))
    fixed = world.pinned or world.num_shards != world.size
    work = Work.of(run, num_bytes=4 * num_parameters, num_shards=world.num_shards if fixed else None)
    costs, layout = measured(layout, steps, gradients, message_s)
    return _forecast(num_parameters, work, layout, compare(costs, work, layout))


def _forecast(num_parameters: int, work: Work, layout: Layout, compared: Comparison) -> Forecast:
    each = layout.ranks_per_host
    here, alone = compared.here.steps_per_second, compared.one_host.steps_per_second
    return Forecast(
        num_parameters=num_parameters,
        messages_per_update=work.messages,
        steps_per_second=here,
        one_host_steps_per_second=alone,
        line=f"predicted {here:.0f} steps/s, and {alone:.0f} on one host of {each} rank{'s' * (each > 1)}",
        advice=compared.advice,
    )


def _seconds(call: Callable[[], object]) -> float:
    """Mean seconds of a call; the first call is excluded unless it takes longer than `_FOR_S`."""
    seconds: list[float] = []
    until = time.perf_counter() + _FOR_S
    while len(seconds) <= 1 or (len(seconds) <= _REPEATS and time.perf_counter() < until):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
        if seconds[0] > _FOR_S:
            return seconds[0]
    return statistics.mean(seconds[1:])
