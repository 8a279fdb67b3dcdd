"""Rollouts of torch tensors that JAX reads through DLPack: the bits of those through the host, in their own storage."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("torch")

import torch
from jax import Array

from lockstep.algorithms.ppo import PPOConfig
from lockstep.config.env import EnvConfig
from lockstep.distributed.timers import Timers
from lockstep.envs.make import env_spec, make_vector_env
from lockstep.errors import RunError
from lockstep.experience.rollout import Collector
from lockstep.jax.comm import Comm
from lockstep.jax.networks import Policy, actor_of
from lockstep.jax.ppo import PPO
from lockstep.jax.tensor_rollout import TensorCollector, rollout_on_host
from lockstep.run import NetworkConfig, Run
from lockstep.torch.envs.dlpack import DLPackEnv, maker
from lockstep.torch.envs.interface import TensorStep
from lockstep.world import World
from unit.torch.envs.tensor_envs import Walk

pytestmark = pytest.mark.slow
WALK = f"{Path(__file__).parents[1] / 'unit/torch/envs/tensor_envs.py'}:Walk"
SHARDS, ENVS, STEPS = 2, 6, 8
COLUMNS = ("observation", "action", "reward", "terminated", "ended", "weight")
CPU = torch.device("cpu")
PICTURE = {
    "kwargs": {"picture": True}, "network": {"encoder": "small", "features": 8}, "normalize_observation": False,
}  # fmt: skip


class WritesAction(Walk):
    """Writes to the action that it receives."""

    def step(self, action):
        step = super().step(action)
        action.fill_(99.0)
        return step


class WithoutFinal(Walk):
    """Truncates without a final observation."""

    def step(self, action):
        return super().step(action)._replace(final=None)


class LiveFinal(Walk):
    """Final observations are a live buffer, too."""

    def step(self, action):
        step = super().step(action)
        if not hasattr(self, "_final"):
            self._final = step.final.map(torch.clone)
        for buffer, part in zip(self._final, step.final, strict=True):
            buffer.copy_(part)
        return TensorStep(*step[:-1], self._final)


@pytest.fixture
def comm():
    with Comm(World().with_shards(SHARDS), device="cpu") as comm:
        yield comm


class Learner:
    """PPO with a collector of either kind, all else equal."""

    def __init__(self, comm, *, on_tensors, kwargs=None, network=None, env=None, **config):
        run = Run(
            task=WALK,
            num_envs=SHARDS * ENVS,
            num_shards=SHARDS,
            network=NetworkConfig(hidden=(8,), **(network or {})),
            algorithm=PPOConfig(num_steps=STEPS, num_minibatches=2, num_epochs=2, **config),
        )
        settings = EnvConfig(kwargs=kwargs or {})
        spec = env_spec(WALK, settings)
        policy = Policy(spec, run.network, seed=0)
        self.ppo = PPO(run, policy, comm)
        sampler, device = policy.sampler, comm.devices[0]
        given = {
            "num_steps": STEPS,
            "seed": 3,
            "timers": Timers(),
            "observation_moments": self.ppo.normalizers.observations,
        }
        if on_tensors:
            make, kind = maker(WALK, settings, "cpu", 0)
            assert kind == "cpu"
            envs = [make(ENVS) if env is None else DLPackEnv(env(ENVS, device=CPU)) for _ in range(SHARDS)]
            self.collector = TensorCollector(
                comm.world, envs, actor_of(policy, device), sampler, device=device, **given
            )
        else:
            self.collector = Collector(
                comm.world,
                [make_vector_env(WALK, settings, ENVS) for _ in range(SHARDS)],
                actor_of(policy, device),
                sampler,
                with_critic=spec.critic_size is not None,
                report_non_finite=True,
                **given,
            )

    def iterate(self):
        rollouts = self.collector.collect()
        self.ppo.update(rollouts, np.zeros((SHARDS, 1)))
        return rollouts

    @property
    def arrays(self):
        return self.ppo.shared_arrays()


def check_equal_rollouts(expected, found):
    for one, other in zip(expected, found, strict=True):
        assert isinstance(other.observation, Array), "observations went through the host"
        other = rollout_on_host(other)
        for name in COLUMNS:
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
        assert by_row(one.final).keys() == by_row(other.final).keys()
        for place, row in by_row(one.final).items():
            np.testing.assert_array_equal(row, by_row(other.final)[place])


def by_row(final):
    return {(t, int(env)): row for t, envs, rows in final for env, row in zip(envs, rows, strict=True)}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"kwargs": {"autoreset": "next_step", "reset_pays": 5.0}},
        {"kwargs": {"critic": False}, "normalize_observation": False},
        {"network": {"recurrent": "gru"}},
        {"network": {"recurrent": "lstm"}, "kwargs": {"autoreset": "next_step"}},
        PICTURE,
        PICTURE | {"network": PICTURE["network"] | {"recurrent": "gru"}},
    ],
    ids=["critic", "next_step", "policy only", "gru", "lstm next_step", "picture", "picture gru"],
)
def test_dlpack_and_the_host_give_the_same_bits(comm, settings):
    settings = {"normalize_observation": True, "normalize_return": True, **settings}
    host, tensors = (Learner(comm, on_tensors=on_tensors, **settings) for on_tensors in (False, True))
    num_final = 0
    for _ in range(3):
        rollouts = host.iterate()
        num_final += sum(len(rollout.final) for rollout in rollouts)
        check_equal_rollouts(rollouts, tensors.iterate())
        for one, other in zip(host.collector.episodes, tensors.collector.episodes, strict=True):
            assert one.returns.tolist() == other.returns.tolist()
    assert (num_final > 0) == ("autoreset" not in settings.get("kwargs", {}))
    assert host.collector.fingerprint() == tensors.collector.fingerprint()
    for name, array in host.arrays.items():
        np.testing.assert_array_equal(array, tensors.arrays[name], err_msg=name)


@pytest.mark.parametrize("env", [Walk, LiveFinal])
def test_a_rollout_is_not_changed_by_later_steps(comm, env):
    learner, host = Learner(comm, on_tensors=True, env=env), Learner(comm, on_tensors=False)
    first = learner.collector.collect()
    check_equal_rollouts(host.collector.collect(), first)
    kept = [rollout_on_host(rollout) for rollout in first]
    copies = [
        [np.array(part) for part in (rollout.observation, rollout.reward, *by_row(rollout.final).values())]
        for rollout in kept
    ]
    learner.collector.collect()
    for rollout, copy in zip(kept, copies, strict=True):
        now = (rollout.observation, rollout.reward, *by_row(rollout.final).values())
        for one, other in zip(copy, now, strict=True):
            np.testing.assert_array_equal(one, other, err_msg="the next rollout was written to memory that JAX reads")


def test_an_environment_that_writes_to_its_action_changes_no_rollout(comm):
    learner = Learner(comm, on_tensors=True, env=WritesAction)
    assert all(np.abs(rollout.action).max() < 50 for rollout in learner.collector.collect())


def test_a_truncation_without_final_observation_is_refused(comm):
    learner = Learner(comm, on_tensors=True, env=WithoutFinal)
    with pytest.raises(RunError, match="without a final observation"):
        learner.collector.collect()


@pytest.mark.parametrize("picture", [False, True])
def test_a_number_that_is_not_finite_is_located_as_on_the_host(comm, picture):
    faults = []
    for on_tensors in (False, True):
        settings = PICTURE if picture else {"kwargs": {}}
        settings = settings | {"kwargs": settings["kwargs"] | {"bad_step": 4}}
        learner = Learner(comm, on_tensors=on_tensors, **settings)
        faults.append([rollout.fault for rollout in learner.collector.collect()])
    assert list(map(str, faults[0])) == list(map(str, faults[1]))
    assert [(fault.step, fault.env) for fault in faults[1]] == [(3, ENVS - 1), (3, 2 * ENVS - 1)]


@pytest.mark.parametrize("was_on_tensors", [True, False])
@pytest.mark.parametrize("recurrent", ["none", "gru"])
def test_a_saved_shard_continues_on_tensors_with_the_same_bits(comm, recurrent, was_on_tensors):
    network = {"recurrent": recurrent}
    whole = Learner(comm, on_tensors=was_on_tensors, network=network)
    whole.collector.collect()
    states = [whole.collector.shard_state(k) for k in range(SHARDS)]
    resumed = Learner(comm, on_tensors=True, network=network)
    assert resumed.collector.savable
    for k, state in enumerate(states):
        assert resumed.collector.restore_shard(k, state, 0)
    assert resumed.collector.fingerprint() == whole.collector.fingerprint()
    expected = whole.collector.collect()
    if was_on_tensors:
        expected = [rollout_on_host(rollout) for rollout in expected]
    check_equal_rollouts(expected, resumed.collector.collect())
