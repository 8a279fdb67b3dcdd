"""Small learners of every kind, each with updates on made data: for tests of what an update does, on any device.

one = make("dqn", folder)
one.update(0)
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import made_data
from lockstep import World
from lockstep.algorithms.dqn import DQNConfig
from lockstep.algorithms.offline import CloningConfig, OfflineDQNConfig
from lockstep.algorithms.offline_continuous import CQLConfig, IQLConfig, TD3BCConfig
from lockstep.algorithms.ppo import PPOConfig
from lockstep.algorithms.sac import SACConfig
from lockstep.algorithms.td3 import TD3Config
from lockstep.data.dataset import Dataset
from lockstep.distributed.timers import Timers
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.experience.rollout import Rollout
from lockstep.record.progress import Progress
from lockstep.run import NetworkConfig, OfflineRun, Run
from lockstep.torch.capture import capture_rollout
from lockstep.torch.comm import Comm
from lockstep.torch.continuous_policy import ContinuousPolicy
from lockstep.torch.device_rollout import TensorCollector
from lockstep.torch.dqn import DQN
from lockstep.torch.envs.make import make_tensor_env
from lockstep.torch.networks import Policy
from lockstep.torch.offline.cloning import Cloning
from lockstep.torch.offline.cql import ContinuousCQL
from lockstep.torch.offline.dqn import OfflineDQN
from lockstep.torch.offline.iql import IQL
from lockstep.torch.offline.td3_bc import TD3BC
from lockstep.torch.ppo import PPO
from lockstep.torch.q_networks import QPolicy
from lockstep.torch.sac import SAC
from lockstep.torch.td3 import TD3
from offline_policies import SMALL, draws, part, policy_for

SHARDS = 2
STEPS = 8
ENVS = 4
ROWS = SHARDS * STEPS * ENVS
"""Environment steps of a rollout of all shards."""
TOTAL = 10 * ROWS
NETWORK = NetworkConfig(hidden=(8,))
DISCRETE = EnvSpec(3, ActionSpec("discrete", (2,)), "same_step", True)
CONTINUOUS = EnvSpec(3, ActionSpec("continuous", (2,), (-1.0, -1.0), (1.0, 1.0)), "same_step", True)
REPLAY = {
    "num_steps": STEPS,
    "batch_size": 16,
    "capacity": 4 * ROWS,
    "learning_starts": 0,
    "updates_per_step": 4 / ROWS,
}
LOGGED = {"batch_size": 16 * SHARDS, "target_rate": 0.5}
OFFLINE = {
    "offline dqn": ("dqn", OfflineDQNConfig(**LOGGED, cql_alpha=0.5), "discrete"),
    "offline dqn, candidates": ("parametric_dqn", OfflineDQNConfig(**LOGGED), "parametric"),
    "cloning": ("bc", CloningConfig(**LOGGED), "discrete"),
    "iql": ("iql", IQLConfig(**LOGGED), "continuous"),
    "td3_bc": ("td3_bc", TD3BCConfig(**LOGGED), "continuous"),
    "cql": ("cql", CQLConfig(**LOGGED, num_sampled_actions=3), "continuous"),
}
OFFLINE_CLASSES = {"bc": Cloning, "iql": IQL, "td3_bc": TD3BC, "cql": ContinuousCQL}


_OF_ROLLOUT = {"TensorShard.finish: nonzero": 2, "TensorShard.finish: cpu": 2}
"""Of each of the two shards: which episodes ended, then their returns with the sums for the normalizers."""
_OF_PPO = {"PPO._prepare: cpu": 1, "PPO.update: __bool__": 1}
"""The moments of advantages for the message, and whether any number was not finite."""
_REDQ = {"dropout": 0.1, "num_critics": 4, "target_critics": 2, "policy_delay": 2}
STATED_WAITS: dict[str, tuple[str, dict[str, Any], dict[str, int]]] = {
    "ppo": ("ppo", {"normalize_observation": True, "normalize_return": True}, _OF_PPO),
    "ppo on tensors": ("ppo on tensors", {}, _OF_ROLLOUT | _OF_PPO),
    # Each of two epochs may be the last.
    "ppo, target_kl": ("ppo", {"target_kl": 1.0}, _OF_PPO | {"PPO.update: __bool__": 3}),
    "dqn": ("dqn", {}, {"DQN.update: __bool__": 1}),
    "dqn, noisy": ("dqn", {"noisy": True, "value_distribution": "quantile"}, {"DQN.update: __bool__": 1}),
    # Each of four gradient steps: the tree of priorities is on the host.
    "dqn, prioritized": ("dqn", {"prioritized": True}, {"priorities_to_host: cpu": 4, "DQN.update: __bool__": 1}),
    "sac": ("sac", {}, {"SAC.update: __bool__": 1}),
    "sac, redq": ("sac", _REDQ, {"SAC.update: __bool__": 1}),
    "td3": ("td3", {}, {"TD3.update: __bool__": 1}),
    # Each gradient step: the sums for the host include whether a signal came.
    **{name: (name, {}, {"OfflineOptimizer.learn: cpu": 1}) for name in OFFLINE},
}
"""Learner, settings, and how often each function makes the host wait for the device in an update."""


class Small(NamedTuple):
    """A learner, and the function that takes its update of a given number."""

    learner: Any
    update: Callable[[int], Any]


def make(name: str, folder: Path, device: str = "cpu", config: dict[str, Any] | None = None, **run: Any) -> Small:
    """The learner of this name: "ppo", "ppo on tensors", "dqn", "sac", "td3" or one of `OFFLINE`.

    Args:
        name: of the learner.
        folder: for logged data; data that is there is used again.
        device: "cpu" or "cuda".
        config: settings of the algorithm.
        run: settings of the run.
    """
    comm = Comm(World().with_shards(SHARDS), device=device)
    if name in OFFLINE:
        return _offline(name, folder, comm, config or {}, run)
    base: dict[str, Any] = {"task": "t", "num_envs": SHARDS * ENVS, "num_shards": SHARDS, "total_steps": TOTAL}
    base |= {"network": NETWORK, "capture": False} | run
    return (
        _ON_POLICY[name](comm, config or {}, base) if name in _ON_POLICY else _replayed(name, comm, config or {}, base)
    )


def values(learner: Any) -> dict[str, torch.Tensor]:
    """Everything that is equal on all ranks."""
    return {name: tensor.detach().cpu().clone() for name, tensor in learner.shared_tensors().items()}


def rollouts(spec: EnvSpec, number: int) -> list[Rollout]:
    """A made rollout of each shard."""
    draw = np.random.default_rng(number)
    made: list[Rollout] = []
    for _ in range(SHARDS):
        observation = draw.standard_normal((STEPS + 1, ENVS, 3), dtype=np.float32)
        reward = draw.standard_normal((STEPS, ENVS)).astype(np.float32)
        terminated = draw.random((STEPS, ENVS)) < 0.1
        if spec.action.kind == "discrete":
            action = draw.integers(0, 2, (STEPS, ENVS))
        else:
            action = draw.uniform(-1, 1, (STEPS, ENVS, 2)).astype(np.float32)
        weight = np.ones((STEPS, ENVS), np.float32)
        truncated = ~terminated & (draw.random((STEPS, ENVS)) < 0.1)
        last = [
            (t, rows, draw.standard_normal((len(rows), 3), dtype=np.float32))
            for t in range(STEPS)
            if len(rows := np.flatnonzero(truncated[t]))
        ]
        made.append(Rollout(observation, action, reward, terminated, terminated | truncated, weight, last))
    return made


def _sums() -> np.ndarray:
    return np.array([[1.0], [2.0]])


def _progress(number: int) -> Progress:
    return Progress(TOTAL, env_steps=number * ROWS, updates=number)


def _ppo(comm: Comm, config: dict[str, Any], base: dict[str, Any]) -> Small:
    algorithm = PPOConfig(**{"num_steps": STEPS, "num_epochs": 2, "num_minibatches": 2, "max_grad_norm": 0.5} | config)
    run = Run(**base, algorithm=algorithm)
    learner = PPO(run, Policy(CONTINUOUS, NETWORK, seed=1).to(comm.device), comm)
    return Small(learner, lambda number: learner.update(rollouts(CONTINUOUS, number), _sums(), _progress(number)))


def _ppo_on_tensors(comm: Comm, config: dict[str, Any], base: dict[str, Any]) -> Small:
    settings = {"num_steps": STEPS, "num_epochs": 2, "num_minibatches": 2, "max_grad_norm": 0.5}
    settings |= {"normalize_observation": True, "normalize_return": True} | config
    run = Run(**base | {"task": "lockstep/Cartpole-v0"}, algorithm=PPOConfig(**settings))
    envs = [make_tensor_env(run.task or "", run.env, ENVS, comm.device) for _ in range(SHARDS)]
    policy = Policy(envs[0].spec, NETWORK, seed=1).to(comm.device)
    learner = PPO(run, policy, comm)
    collector = TensorCollector(
        comm, envs, policy, learner.normalizers, num_steps=STEPS, gamma=0.99, seed=1, timers=Timers(),
        capture=capture_rollout(run, comm, STEPS),
    )  # fmt: skip
    return Small(learner, lambda number: learner.update(collector.collect(), _sums(), _progress(number)))


_ON_POLICY = {"ppo": _ppo, "ppo on tensors": _ppo_on_tensors}


def _replayed(name: str, comm: Comm, config: dict[str, Any], base: dict[str, Any]) -> Small:
    if name == "dqn":
        run = Run(**base, algo=name, algorithm=DQNConfig(**REPLAY | {"target_update_every": 3} | config))
        policy = QPolicy(DISCRETE, NETWORK, run.algorithm, seed=1).to(comm.device)
        learner, spec = DQN(run, policy, comm), DISCRETE
    else:
        kind, settings = (SAC, SACConfig) if name == "sac" else (TD3, TD3Config)
        run = Run(**base, algo=name, algorithm=settings(**REPLAY | config))
        policy = ContinuousPolicy(CONTINUOUS, NETWORK, run.algorithm, seed=1).to(comm.device)
        learner, spec = kind(run, policy, comm), CONTINUOUS
    return Small(learner, lambda number: learner.update(rollouts(spec, number), _sums(), _progress(number)))


def _offline(name: str, folder: Path, comm: Comm, config: dict[str, Any], run: dict[str, Any]) -> Small:
    algo, algorithm, kind = OFFLINE[name]
    path = folder / kind
    if not path.exists():
        getattr(made_data, kind)(path, 300)
    dataset = Dataset.open(path)
    settings = type(algorithm)(**{field: getattr(algorithm, field) for field in algorithm.__slots__} | config)
    base = {"capture": False} | run
    made = OfflineRun(data="any", algo=algo, algorithm=settings, network=SMALL, num_shards=SHARDS, **base)
    policy = policy_for(made, dataset).to(comm.device)
    learner = OFFLINE_CLASSES.get(algo, OfflineDQN)(made, policy, comm)

    def update(number: int) -> Any:
        parts = [part(dataset, index) for index in draws(300, [16] * SHARDS, number)]
        return learner.update(parts, _sums(), _progress(number))

    return Small(learner, update)
