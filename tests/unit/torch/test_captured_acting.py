"""Acting in environments on the host as a graph: the numbers of acting without one, with the newest parameters."""

from functools import partial

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_map

from lockstep.algorithms.dqn import DQNConfig
from lockstep.algorithms.sac import SACConfig
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.errors import RunError
from lockstep.run import NetworkConfig, Run
from lockstep.torch import capture
from lockstep.torch.capture import CapturedStep, capture_acting
from lockstep.torch.comm import Comm
from lockstep.torch.continuous_policy import ContinuousPolicy
from lockstep.torch.networks import Policy, RecurrentTorchActor, TorchActor, actor_of
from lockstep.torch.q_networks import QPolicy, noisy_actor
from lockstep.world import World
from pretended_graph import TapeGraphs, record_graphs

DISCRETE, CONTINUOUS = ActionSpec("discrete", (3,)), ActionSpec("continuous", (2,), (-1.0, -1.0), (1.0, 1.0))
VECTOR = EnvSpec(6, DISCRETE, "same_step", True)
CONTROL = EnvSpec(6, CONTINUOUS, "same_step", True)
PIXELS = EnvSpec(2 * 36 * 36, DISCRETE, "same_step", True, image=(2, 36, 36), frames=2)
CPU = torch.device("cpu")
SHARDS, ENVS, STEPS = 2, 4, 6


class Journal:
    def __init__(self):
        self.lines = []

    def say(self, line):
        self.lines.append(line)


@pytest.fixture
def graphs(monkeypatch):
    """As on a GPU. Returns all captured steps."""
    return record_graphs(monkeypatch)


def make_policy(name):
    if name == "sac":
        return ContinuousPolicy(CONTROL, NetworkConfig(hidden=(8,)), SACConfig(), seed=1)
    if name == "dqn":
        return QPolicy(PIXELS, NetworkConfig(features=16), DQNConfig(), seed=1)
    network = NetworkConfig(hidden=(8,), features=16, recurrent="gru" if name == "ppo, recurrent" else "none")
    return Policy(PIXELS if name == "ppo, pixels" else VECTOR, network, seed=1)


def as_on_a_gpu(steps, function):
    """Captures a function; results are copies, as those that come from a GPU."""
    steps.append(CapturedStep(function, TapeGraphs()))
    return lambda inputs: tree_map(torch.clone, steps[-1](inputs))


def outputs(policy, act, state_size):
    """Of steps with other observations, and with parameters that an optimizer changes in place."""
    draw, state, found = np.random.default_rng(0), np.zeros((SHARDS, ENVS, state_size), np.float32), []
    for _ in range(STEPS):
        shape = (SHARDS, ENVS, *policy.spec.observation_shape)
        pixels = policy.spec.has_images
        seen = draw.integers(256, size=shape, dtype=np.uint8) if pixels else draw.normal(size=shape).astype(np.float32)
        if state_size:
            parameters, state = act(seen, state)
        else:
            parameters = act(seen)
        found += [parameters, state]
        for parameter in policy.parameters():
            parameter.data.mul_(1.1).add_(0.01)
    return found


@pytest.mark.parametrize("name", ["ppo", "ppo, pixels", "ppo, recurrent", "dqn", "sac"])
def test_acting_as_a_graph_has_the_numbers_of_acting_without(name):
    steps, results = [], []
    for given in (partial(as_on_a_gpu, steps), None):
        policy = make_policy(name)
        actor = RecurrentTorchActor if name == "ppo, recurrent" else TorchActor
        results.append(outputs(policy, actor(policy, CPU, given), getattr(policy, "actor_state_size", 0)))
    for captured, eager in zip(*results, strict=True):
        np.testing.assert_array_equal(captured, eager)
    assert len({array.tobytes() for array in results[0][::2]}) == STEPS
    calls = STEPS * (SHARDS if name == "ppo, recurrent" else 1)
    assert [step.num_replays for step in steps] == [calls - 3]


def test_learned_noise_is_new_in_each_step_of_a_graph():
    config, results = DQNConfig(noisy=True), []
    for given in (partial(as_on_a_gpu, []), None):
        policy = QPolicy(VECTOR, NetworkConfig(hidden=(8,)), config, seed=1)
        actor = noisy_actor(policy, CPU, 5, [range(ENVS), range(ENVS, SHARDS * ENVS)], given)
        actor.begin(3)
        seen = np.ones((SHARDS, ENVS, 6), np.float32)
        results.append([actor(seen) for _ in range(STEPS)])
    np.testing.assert_array_equal(*results)
    assert all(layer.noise is None for layer in policy.modules() if hasattr(layer, "noise"))
    assert len({q.tobytes() for q in results[0]}) == STEPS


@pytest.mark.parametrize("name", ["ppo", "ppo, recurrent", "dqn", "sac"])
def test_actors_on_a_gpu_are_given_the_capture(name):
    made = []
    actor_of(make_policy(name), torch.device("cuda"), lambda function: made.append(function) or function)
    assert len(made) == 1


class Refusing(TapeGraphs):
    def capture(self, function, generators=()):
        raise RunError("a step cannot be a CUDA graph") from RuntimeError("operation not permitted")


def test_what_is_captured_is_said(graphs):
    comm, own = Comm(World(), device="cpu"), NetworkConfig(module="file.py:Own")
    said = []
    for settings in ({}, {"capture": False}, {"network": own}, {"network": own, "capture": True}):
        journal = Journal()
        said.append((capture_acting(journal, Run(task="t", **settings), comm) is not None, journal.lines))
    line = ["capture: acting is a CUDA graph"]
    assert said == [(True, line), (False, []), (False, []), (True, line)]


def test_acting_that_cannot_be_captured_runs_without_a_graph_or_is_an_error(monkeypatch, capsys):
    monkeypatch.setattr(capture, "graphs_on", lambda device: Refusing())
    comm, policy, seen = Comm(World(), device="cpu"), make_policy("ppo"), np.ones((ENVS, 6), np.float32)
    attempted = TorchActor(policy, CPU, capture_acting(Journal(), Run(task="t"), comm))
    for _ in range(5):
        np.testing.assert_array_equal(attempted(seen), TorchActor(policy, CPU)(seen))
    assert "acting runs without CUDA graphs: operation not permitted" in capsys.readouterr().err
    required = TorchActor(policy, CPU, capture_acting(Journal(), Run(task="t", capture=True), comm))
    with pytest.raises(RunError, match="cannot be a CUDA graph"):
        [required(seen) for _ in range(4)]


def test_acting_without_a_gpu_is_no_graph():
    journal = Journal()
    assert capture_acting(journal, Run(task="t"), Comm(World(), device="cpu")) is None
    assert not journal.lines
