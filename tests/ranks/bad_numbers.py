"""Environments that give numbers which are not finite, and the learning from them inside ranks."""

import dataclasses
import os
import traceback
from pathlib import Path
from typing import Any

import numpy as np
from running import small

from lockstep import World
from lockstep.distributed.timers import Timers
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.experience.rollout import Collector
from lockstep.launch.rank_environment import free_port
from lockstep.record.progress import Progress
from lockstep.run import Run
from lockstep.session.non_finite import NonFiniteError, save_batches
from lockstep.world import stream_seed

SHARDS, ENVS, STEPS, UPDATES = 2, 16, 8, 7
LENGTH = 14  # of an episode


class Broken:
    """Two numbers to reach by moving; from its step `at` on, environment `on` gives what `fault` says.

    Which environment it is follows from the seed of its global index, so that it is the same one on any rank.
    """

    def __init__(self, num_envs: int, fault: str = "", at: int = 20, on: int = 13) -> None:
        self.spec = EnvSpec(2, ActionSpec("continuous", (2,), (-1.0, -np.inf), (1.0, np.inf)), "same_step", True)
        self.num_envs, self.fault, self.at, self.on, self.steps = num_envs, fault, at, on, 0

    def reset(self, seeds: list[int]) -> np.ndarray:
        known = [stream_seed(0, "env", i) for i in range(ENVS)]
        self.index = np.array([known.index(seed) if seed in known else -1 for seed in seeds])
        self.generators = [np.random.default_rng(seed) for seed in seeds]
        self.place = np.stack([g.standard_normal(2, dtype=np.float32) for g in self.generators])
        self.bad = np.zeros(self.num_envs, bool)
        return self.place

    def step(self, action: np.ndarray) -> tuple[np.ndarray, ...]:
        assert np.isfinite(action).all(), "an environment was sent an action that is not finite"
        self.steps += 1
        self.place = self.place + 0.1 * action.astype(np.float32)
        ended = np.full(self.num_envs, self.steps % LENGTH == 0)
        final, here = self.place, (self.index == self.on) & (self.steps == self.at)
        reward = -np.abs(self.place).sum(1)
        kind, _, number = self.fault.partition(" ")
        if kind == "reward":
            reward[here] = float(number)
        self.bad |= here & (kind == "observation")
        if ended.any():
            self.bad[:] = False
            self.place = np.stack([g.standard_normal(2, dtype=np.float32) for g in self.generators])
        seen = self.place.copy()
        if self.bad.any():
            seen[self.bad] = float(number)
        return seen, reward.astype(np.float32), np.zeros(self.num_envs, bool), ended, final

    def close(self) -> None:
        pass


class BrokenChoice(Broken):
    """`Broken` with five moves to choose from: stay, or along one of the axes."""

    def __init__(self, num_envs: int, fault: str = "", at: int = 20, on: int = 13) -> None:
        super().__init__(num_envs, fault, at, on)
        self.spec = dataclasses.replace(self.spec, action=ActionSpec("discrete", (5,)))

    def step(self, action: np.ndarray) -> tuple[np.ndarray, ...]:
        return super().step(np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]], np.float32)[action])


class BrokenForce(Broken):
    """`Broken` with bounded actions."""

    def __init__(self, num_envs: int, fault: str = "", at: int = 20, on: int = 13) -> None:
        super().__init__(num_envs, fault, at, on)
        self.spec = dataclasses.replace(self.spec, action=ActionSpec("continuous", (2,), (-1.0, -2.0), (1.0, 2.0)))


def broken(fault: str, non_finite: str, at: int = 20, on: int = 13, **changes: Any) -> Run:
    base = {"num_shards": SHARDS, "num_envs": ENVS, "num_steps": STEPS, "total_steps": UPDATES * ENVS * STEPS}
    kwargs = {"env.kwargs": {"fault": fault, "at": at, "on": on}, "non_finite": non_finite}
    return small("bad_numbers:Broken", **{**base, "learning_rate_schedule": "constant", **kwargs, **changes})


@dataclasses.dataclass
class Task:
    """A run to be made inside ranks, and where it may save."""

    run: Run
    folder: str
    port: int = dataclasses.field(default_factory=free_port)


def learn_each(rank: int, tasks: dict[str, Task]) -> dict[str, dict[str, Any]]:
    """What became of every task; one that fails as none should is the last, since its peers have failed with it."""
    failed = {"error": "not tried", "rank": None, "parameters": [], "metrics": [], "returns": []}
    found = dict.fromkeys(tasks, failed)
    for name, task in tasks.items():
        try:
            found[name] = learn(rank, task)
        except Exception as error:
            traceback.print_exc()
            found[name] = {**failed, "error": f"{type(error).__name__}: {error}"}
            break
    return found


def learn(rank: int, task: Task) -> dict[str, Any]:
    """Collect and update; after each update the parameters and the metrics. A stop saves what it holds."""
    from lockstep.torch.comm import Comm
    from lockstep.torch.networks import Policy, actor_of
    from lockstep.torch.ppo import PPO

    run, world = task.run, World(rank=rank, size=int(os.environ.get("WORLD_SIZE", "1")), port=task.port)
    world = dataclasses.replace(world, address="127.0.0.1").with_shards(run.num_shards)
    told: dict[str, Any] = {"error": "", "rank": None, "parameters": [], "metrics": [], "returns": []}
    with Comm(world, device="cpu", timeout_s=5.0, startup_timeout_s=20.0) as comm:
        envs = [Broken(ENVS // SHARDS, **run.env.kwargs) for _ in world.shards]
        policy = Policy(envs[0].spec, run.network, seed=0)
        ppo = PPO(run, policy, comm)
        collector = Collector(
            comm.world, envs, actor_of(policy, comm.device), policy.distribution, num_steps=STEPS, seed=0,
            timers=Timers(), observation_moments=ppo.normalizers.observations, report_non_finite=True,
        )  # fmt: skip
        progress = Progress(run.total_steps)
        while not progress.finished:
            rollouts = collector.collect()
            statistics = np.array([[e.returns.sum(), len(e.returns)] for e in collector.episodes])
            try:
                told["returns"].append(ppo.update(rollouts, statistics, progress).tolist())
            except NonFiniteError as error:
                save_batches(error, Path(task.folder))
                told |= {"error": str(error), "rank": error.rank}
                break
            finally:
                shared = {name: tensor.clone().numpy() for name, tensor in ppo.shared_tensors().items()}
                told["parameters"].append({name: a for name, a in shared.items() if name != "metrics"})
            progress.env_steps += ENVS * STEPS
            progress.updates += 1
            told["metrics"].append(ppo.metrics.read())
    return told
