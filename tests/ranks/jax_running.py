"""What the tests of JAX's ranks call inside them: whole training runs, as `running.py` for torch, and without torch."""

import contextlib
import dataclasses
import os
import traceback
from collections import Counter
from functools import partial
from importlib import import_module
from typing import Any
from unittest import mock

import numpy as np
from jax_compiled import keep_compiled
from running import Job, Outcome

from lockstep import World, spawn
from lockstep.run import Run


def train_all(
    processes: int, jobs: dict[str, Job], devices: int = 1, free_memory: int | None = None
) -> dict[str, list[Outcome]]:
    """Every job on `processes` processes of `devices` devices each, in the same processes; for each what they saw.

    With `free_memory` each device pretends to be a GPU with so many bytes of memory for replay buffers.
    """
    jobs = {name: in_jax(one, devices) for name, one in jobs.items()}
    told = spawn(train_each, processes, (jobs, free_memory), timeout_s=600)
    return {name: [outcomes[name] for outcomes in told] for name in jobs}


def in_jax(one: Job, devices: int) -> Job:
    """The same job in JAX."""
    run: Run = dataclasses.replace(one.run, ml_framework="jax", devices_per_process=devices)
    return dataclasses.replace(one, run=run)


def train_each(rank: int, jobs: dict[str, Job], free_memory: int | None = None) -> dict[str, Outcome]:
    keep_compiled(rank, max(one.run.devices_per_process for one in jobs.values()))
    from lockstep.jax import hardware

    with mock.patch.object(hardware, "free_memory", lambda device: free_memory):
        return {name: train_one(rank, one) for name, one in jobs.items()}


class Seen:
    """What happens in this process: it stands around the real functions and counts."""

    def __init__(self, one: Job) -> None:
        self.counts: Counter[str] = Counter()
        self.seeds: list[int] = []
        self.before: dict[str, np.ndarray] = {}
        self.policy: Any = None
        self.learner: Any = None
        self.comm: Any = None
        self._collected, self._fails_at, self._collecting = 0, one.fails_at, False

    def env(self, make: Any, *args: Any, **kwargs: Any) -> Any:
        env = make(*args, **kwargs)
        step, reset = env.step, env.reset

        def counted_step(action: np.ndarray) -> Any:
            self.counts["steps"] += len(action)
            return step(action)

        def counted_reset(given: list[int]) -> Any:
            self.seeds.extend(given)
            return reset(given)

        env.step, env.reset = counted_step, counted_reset
        return env

    def actor(self, make: Any, *args: Any) -> Any:
        actor = make(*args)

        def act(observation: np.ndarray, *state: np.ndarray) -> Any:
            self.counts["acted"] += self._collecting * int(np.prod(observation.shape[:2]))  # [K, B, *O]
            return actor(observation, *state)

        act.state_size = getattr(actor, "state_size", 0)
        return act

    def made_policy(self, make: Any, *args: Any, **kwargs: Any) -> Any:
        self.policy = make(*args, **kwargs)
        self.before = {name: np.array(value) for name, value in self.policy.params.items()}
        return self.policy

    def made_learner(self, make: Any, *args: Any, **kwargs: Any) -> Any:
        self.learner = make(*args, **kwargs)
        return self.learner

    def opened(self, make: Any, *args: Any, **kwargs: Any) -> Any:
        self.comm = comm = make(*args, **kwargs)
        shard = comm.shard

        def counted_deal(parts: Any) -> Any:
            for part in parts:
                batch = getattr(part, "batch", None)  # of an algorithm with a replay buffer
                self.counts["learned"] += 0 if batch is None or not self._collected else batch.reward.size
            return shard(parts)

        comm.shard = counted_deal
        return comm

    def collector(self, make: Any, *args: Any, **kwargs: Any) -> Any:
        from lockstep.errors import RunError

        made = make(*args, **kwargs)
        collect = made.collect

        def counted() -> Any:
            if self._collected == self._fails_at:
                raise RunError("the test ends this run")
            self._collected += 1
            self._collecting = True
            try:
                return collect()
            finally:
                self._collecting = False

        made.collect = counted
        return made

    @property
    def moved(self) -> bool:
        """Whether every parameter is another than at first."""
        if self.policy is None:
            return False
        return all(bool((self.before[n] != np.asarray(p)).any()) for n, p in self.policy.params.items())


def train_one(rank: int, one: Job) -> Outcome:
    """Train, counting what happens in this process: steps of environments, rows acted on, rows learned from."""
    import jax

    from lockstep.jax import actor_critic_on_device, session
    from lockstep.session import session as session_module
    from lockstep.train import train

    del actor_critic_on_device  # imported before `SAC` and `TD3` are replaced below, which its annotations name
    jax.config.update("jax_numpy_rank_promotion", "raise")
    if jax.config.jax_num_cpu_devices < one.run.devices_per_process:
        jax.config.update("jax_num_cpu_devices", one.run.devices_per_process)
    algorithm = import_module(f"lockstep.jax.{one.run.algo}")
    seen = Seen(one)
    around = [
        (session_module, "make_vector_env", seen.env),
        (algorithm, "actor_of", seen.actor),
        (algorithm, {"ppo": "Policy", "dqn": "QPolicy"}.get(one.run.algo, "ContinuousPolicy"), seen.made_policy),
        (algorithm, one.run.algo.upper(), seen.made_learner),
        (session, "Comm", seen.opened),
        (session_module, "Collector", seen.collector),
    ]
    summary, error = {}, ""
    with contextlib.ExitStack() as stack:
        for module, name, instead in around:
            stack.enter_context(mock.patch.object(module, name, partial(instead, getattr(module, name))))
        try:
            world = World(rank=rank, size=int(os.environ["WORLD_SIZE"]), address="127.0.0.1", port=one.port)
            init_from = one.init_from[rank] if one.init_from else None
            where = {"resume": one.resume} if one.resume else {"run_dir": one.folder, "init_from": init_from}
            summary = train(one.run, world=world, **where)
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
            traceback.print_exc()
    messages: Counter[str] = Counter()
    if seen.comm is not None:
        messages += seen.comm.num_messages
        seen.counts.update({f"compiled {name}": n for name, n in seen.comm.num_compilations.items()})
    return Outcome(summary, error, seen.counts, messages, seen.seeds, seen.moved)
