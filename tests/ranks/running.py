"""What the tests of this folder call inside ranks: whole training runs, one after another in the same processes."""

import dataclasses
import json
import os
import traceback
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np

from lockstep import spawn
from lockstep.algorithms.dqn import DQNConfig
from lockstep.algorithms.ppo import PPOConfig
from lockstep.algorithms.sac import SACConfig
from lockstep.algorithms.td3 import TD3Config
from lockstep.launch.rank_environment import free_port
from lockstep.run import NetworkConfig, Run, override

ROBOTS = {
    "learning_rate_schedule": "adaptive", "adapt_every": "minibatch", "reward_scale": 0.1, "bounds_loss_coef": 0.01,
    "normalize_observation": True, "observation_limit": 3.0, "normalize_value": True, "value_clip_range": 0.2,
    "value_limit": 2.0, "normalize_return": True, "network.critic_hidden": [24], "network.state_dependent_std": True,
    "env.clip_action": 1.0, "env.clip_observation": 4.0, "network.initialization": "uniform",
}  # fmt: skip
"""Settings that robot suites rely on, all at once; for tasks with continuous actions."""


def small(task: str, **changes: Any) -> Run:
    """20 updates of a small network, a few seconds on one core."""
    run = Run(
        task=task,
        num_envs=16,
        total_steps=20 * 16 * 8,
        algorithm=PPOConfig(num_steps=8, num_epochs=2, num_minibatches=2, learning_rate=1e-3),
        network=NetworkConfig(hidden=(16, 16)),
        log_every=16 * 8 * 5,
        evaluate_every=None,
        evaluate_episodes=8,
        stop_when_solved=False,
        timeout_s=30.0,
        startup_timeout_s=60.0,
    )
    return override(run, changes)


def small_dqn(task: str, **changes: Any) -> Run:
    """200 gradient steps of a small network on prioritized replay, a few seconds on one core."""
    run = Run(
        task=task,
        algo="dqn",
        num_envs=16,
        total_steps=960,
        algorithm=DQNConfig(
            num_steps=2,
            learning_starts=160,
            updates_per_step=0.25,
            batch_size=32,
            capacity=512,  # it goes round
            learning_rate=1e-3,
            n_step=3,
            prioritized=True,
            target_update_every=25,
            epsilon_steps=640,
        ),
        network=NetworkConfig(hidden=(16, 16)),
        log_every=160,
        evaluate_every=None,
        evaluate_episodes=8,
        stop_when_solved=False,
        timeout_s=30.0,
        startup_timeout_s=60.0,
    )
    return override(run, changes)


def small_actor_critic(algo: str, task: str = "Pendulum-v1", **changes: Any) -> Run:
    """100 gradient steps of small networks of SAC or TD3 on prioritized replay."""
    config = {"sac": SACConfig, "td3": TD3Config}[algo]
    run = Run(
        task=task,
        algo=cast(Any, algo),
        num_envs=16,
        total_steps=640,
        algorithm=config(
            num_steps=2,
            learning_starts=160,
            updates_per_step=0.25,
            batch_size=32,
            capacity=512,  # smaller than the run, so that old transitions are overwritten
            learning_rate=1e-3,
            n_step=3,
            prioritized=True,
            policy_average=0.2,
        ),
        network=NetworkConfig(hidden=(16, 16), activation="relu"),
        log_every=160,
        evaluate_every=None,
        evaluate_episodes=8,
        stop_when_solved=False,
        timeout_s=30.0,
        startup_timeout_s=60.0,
    )
    return override(run, changes)


@dataclasses.dataclass
class Job:
    """One training run to be made inside ranks."""

    run: Run
    folder: str
    port: int = dataclasses.field(default_factory=free_port)
    shared_memory: bool = True
    bucket_bytes: int | None = None
    """Of the buckets of all gradients; by default small gradients are one message."""
    hosts: tuple[int, ...] = ()
    """How many ranks each host has; default: all are of one."""
    init_from: tuple[str, ...] = ()
    """A policy file for each rank."""
    resume: str | None = None
    """A run directory to continue."""
    fails_at: int | None = None
    """Raise when this many rollouts were collected."""


@dataclasses.dataclass
class Outcome:
    """What one rank saw of a run."""

    summary: dict[str, Any]
    error: str
    counts: Counter[str]
    messages: Counter[str]
    env_seeds: list[int]
    moved: bool


def job(run: Run, tmp_path: Path, name: str, **kwargs: Any) -> Job:
    return Job(run, str(tmp_path / name), **kwargs)


def train_all(ranks: int, jobs: dict[str, Job]) -> dict[str, list[Outcome]]:
    """Every job on `ranks` ranks, in the same processes; for each what its ranks saw."""
    told = spawn(train_each, ranks, (jobs,), timeout_s=600)
    return {name: [outcomes[name] for outcomes in told] for name in jobs}


def train_each(rank: int, jobs: dict[str, Job]) -> dict[str, Outcome]:
    return {name: train_one(rank, one) for name, one in jobs.items()}


def train_one(rank: int, one: Job) -> Outcome:  # noqa: C901, PLR0915  # small counters around real functions
    """Train, counting what happens in this process: steps of environments, rows acted on, rows differentiated."""
    from unittest import mock

    from host_blocks import on_hosts

    from lockstep.errors import RunError
    from lockstep.experience.rollout import Rollout
    from lockstep.session import session as session_module
    from lockstep.torch import comm as comm_module
    from lockstep.torch import session
    from lockstep.torch.comm import Comm
    from lockstep.train import train

    algorithm = import_module(f"lockstep.torch.{one.run.algo}")
    network_name = {"ppo": "Policy", "dqn": "QPolicy"}.get(one.run.algo, "ContinuousPolicy")
    network: Any = getattr(algorithm, network_name)

    size = int(os.environ["WORLD_SIZE"])
    world = on_hosts(rank, one.port, one.hosts or (size,))
    counts: Counter[str] = Counter()
    seeds: list[int] = []
    kept: dict[str, Any] = {}

    def counted_env(*args: Any, **kwargs: Any) -> Any:
        return counted(make_env(*args, **kwargs))

    def counted_tensor_env(*args: Any, **kwargs: Any) -> Any:
        return counted(make_tensor_env(*args, **kwargs))

    def counted(env: Any) -> Any:
        step, reset = env.step, env.reset

        def counted_step(action: Any) -> Any:
            counts["steps"] += len(action)
            return step(action)

        def counted_reset(given: list[int]) -> Any:
            seeds.extend(given)
            return reset(given)

        env.step, env.reset = counted_step, counted_reset
        return env

    def counted_actor(*args: Any) -> Any:
        actor = actor_of(*args)

        def act(observation: np.ndarray, *state: np.ndarray) -> Any:
            counts["acted"] += int(np.prod(observation.shape[:2]))  # [K, B, *O]
            return actor(observation, *state)

        act.state_size = getattr(actor, "state_size", 0)
        return act

    class CountedPolicy(network):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            kept["before"] = {name: p.detach().clone() for name, p in self.named_parameters()}
            kept["policy"] = self

        def forward(self, *observations: Any) -> Any:
            parameters, value = super().forward(*observations)
            count_differentiated(value)
            return parameters, value

        def outputs(self, observation: Any) -> Any:
            found = super().outputs(observation)
            count_differentiated(found)
            return found

    def count_differentiated(value: Any) -> None:
        if value.requires_grad and counts["steps"] and not run_compiles:  # not what only warms up
            value.register_hook(lambda gradient: counts.update(differentiated=len(gradient)))

    def keep_comm(*args: Any, **kwargs: Any) -> Comm:
        kept["comm"] = Comm(*args, **kwargs, shared_memory=one.shared_memory)
        return kept["comm"]

    def failing(collector: Any) -> Any:
        class FailingCollector(collector):
            def collect(self) -> list[Rollout]:
                if kept.setdefault("rollouts", 0) == one.fails_at:
                    raise RunError("the test ends this run")
                kept["rollouts"] += 1
                return super().collect()

        return FailingCollector

    make_env, actor_of, run_compiles = session_module.make_vector_env, algorithm.actor_of, one.run.compile
    make_tensor_env = session.make_tensor_env
    tensor_collector = failing(getattr(algorithm, "TensorCollector", object))
    summary, error = {}, ""
    with (
        mock.patch.object(session_module, "make_vector_env", counted_env),
        mock.patch.object(algorithm, "actor_of", counted_actor),
        mock.patch.object(algorithm, network_name, CountedPolicy),
        mock.patch.object(session, "Comm", keep_comm),
        mock.patch.object(session, "make_tensor_env", counted_tensor_env),
        mock.patch.object(session_module, "Collector", failing(session_module.Collector)),
        mock.patch.object(algorithm, "TensorCollector", tensor_collector, create=True),
        mock.patch.object(comm_module, "_BUCKET_BYTES", one.bucket_bytes or comm_module._BUCKET_BYTES),
        mock.patch.object(comm_module, "_OVERLAPPED_BYTES", one.bucket_bytes or comm_module._OVERLAPPED_BYTES),
    ):
        try:
            init_from = one.init_from[rank] if one.init_from else None
            where = {"resume": one.resume} if one.resume else {"run_dir": one.folder, "init_from": init_from}
            summary = train(one.run, world=world, **where)
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
            traceback.print_exc()
    before, policy = kept.get("before", {}), kept.get("policy")
    moved = policy is not None and all(bool((before[n] != p).any()) for n, p in policy.named_parameters())
    comm = kept.get("comm")
    return Outcome(summary, error, counts, Counter(comm.num_messages if comm else {}), seeds, moved)


def runs_of_selected_tests(request: Any, runs: dict[str, Run], always: tuple[str, ...] = ()) -> dict[str, Run]:
    """Those of `runs` that a selected test of the module names by its parameter `name`, and `always` those listed."""
    items = [item for item in request.session.items if item.module is request.module]
    named = {item.callspec.params.get("name") for item in items if hasattr(item, "callspec")}
    return {name: run for name, run in runs.items() if name in named or name in always}


def slow_tests_selected(request: Any) -> bool:
    """Whether a selected test of the module is marked `slow`."""
    items = [item for item in request.session.items if item.module is request.module]
    return any("slow" in item.keywords for item in items)


def lines(folder: str, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """A JSON-lines file of a run directory."""
    return [json.loads(line) for line in (Path(folder) / name).read_text().splitlines()]


def timeless(folder: str) -> list[dict[str, Any]]:
    """The metrics of a run without what clocks said."""
    return [
        {key: value for key, value in line.items() if key != "time_s" and not key.startswith("time/")}
        for line in lines(folder)
    ]
