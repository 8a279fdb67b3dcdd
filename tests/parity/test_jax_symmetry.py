"""Mirrored copies of transitions in the loss, in both frameworks, and functions that are refused."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("jax.numpy")

import jax.numpy as jnp
import torch
from networks_alike import acted, arrays, observed, spec_of

from lockstep import World
from lockstep.algorithms.ppo import PPOConfig
from lockstep.errors import ConfigError
from lockstep.experience.rollout import Rollout
from lockstep.jax import ppo as jax_ppo
from lockstep.jax.batch import Batch as JaxBatch
from lockstep.jax.comm import Comm as JaxComm
from lockstep.jax.networks import Policy as JaxPolicy
from lockstep.preflight.setting_paths import with_portable_paths
from lockstep.run import NetworkConfig, Run, override
from lockstep.torch import ppo as torch_ppo
from lockstep.torch.batch import Batch
from lockstep.torch.comm import Comm
from lockstep.torch.networks import Policy
from lockstep.torch.symmetry import Symmetry
from quick import others_slow

SPEC, ROWS = spec_of("continuous"), 6
WITH_CRITIC = spec_of("continuous", critic_size=2)
RUN = Run(
    task="t", num_envs=4, network=NetworkConfig(hidden=(16,)), algorithm=PPOConfig(num_steps=4, num_minibatches=1)
)


def in_torch(observation, action):
    return torch.cat([observation, -observation]), torch.cat([action, -action])


def in_jax(observation, action):
    return jnp.concatenate([observation, -observation]), jnp.concatenate([action, -action])


def groups_in_torch(observation, action, critic):
    return *in_torch(observation, action), torch.cat([critic, 1 - critic])


def groups_in_jax(observation, action, critic):
    return *in_jax(observation, action), jnp.concatenate([critic, 1 - critic])


def same_rows(observation, action):
    return -observation, -action


def one_result(observation, action):
    return observation


def too_many_actions(observation, action):
    return observation, torch.cat([action, action])


def of_environment(env, obs=None, actions=None):
    return obs, actions


def of_three(observation, action, other):
    return observation, action


def symmetric(run, backend, spec):
    """The run with the function for this backend and this task."""
    return override(run, {"symmetry": f"{__name__}:{'in' if spec.critic_size is None else 'groups_in'}_{backend}"})


def losses(symmetry, columns, critic=None):
    """Loss and sums in torch, and in JAX with the same parameters; `symmetry` in both or neither."""
    spec = SPEC if critic is None else WITH_CRITIC
    with Comm(World(), device="cpu") as comm, JaxComm(World(), device="cpu") as jax_comm:
        policy = Policy(spec, RUN.network, seed=0)
        params = {name: tensor.detach().numpy().copy() for name, tensor in policy.state_dict().items()}
        learner = torch_ppo.PPO(symmetric(RUN, "torch", spec) if symmetry else RUN, policy, comm)
        batch = Batch(*map(torch.from_numpy, columns), critic=None if critic is None else torch.from_numpy(critic))
        if symmetry:
            raw = [part for part in (batch.observation, batch.critic) if part is not None]
            batch = learner._symmetry.mirrored(batch, raw, [lambda rows: rows] * len(raw))
        found = learner.loss(batch)
        run = symmetric(RUN, "jax", spec) if symmetry else RUN
        learner = jax_ppo.PPO(run, JaxPolicy(spec, RUN.network, seed=0), jax_comm)
        batch = JaxBatch(*arrays(columns), critic=None if critic is None else jnp.asarray(critic))
        if symmetry:
            raw = [part[None] for part in (batch.observation, batch.critic) if part is not None]
            copies, action = learner.symmetry.mirrored(raw, batch.action[None])
            batch = batch._replace(mirrored_observation=copies[0][0], mirrored_action=action[0])
            if critic is not None:
                batch = batch._replace(mirrored_critic=copies[1][0])
        theirs = learner.loss(arrays(params), batch)
    return [x.detach().numpy() for x in found], [np.asarray(x) for x in theirs]


@pytest.mark.parametrize("with_critic", others_slow([False, True], False))
def test_the_loss_is_that_of_all_copies_and_the_metrics_those_of_the_first(with_critic):
    draws = np.random.default_rng(0)
    weight = (np.arange(ROWS) % 3 > 0).astype(np.float32)
    others = [*draws.standard_normal((4, ROWS)).astype(np.float32), weight]
    observation, action = observed(SPEC, ROWS), acted(SPEC, ROWS)
    mirrored = [np.concatenate([x, -x]) for x in (observation, action)]
    copies = [*mirrored, *(np.tile(column, 2) for column in others[:-1]), np.tile(weight / 2, 2)]
    columns = [observation, action, *others]
    critic = draws.standard_normal((ROWS, 2)).astype(np.float32) if with_critic else None
    both = np.concatenate([critic, 1 - critic]) if with_critic else None
    plain, whole, found = losses(False, columns, critic), losses(False, copies, both), losses(True, columns, critic)
    for i in range(2):
        np.testing.assert_allclose(found[i][0], whole[i][0], rtol=1e-5)
        np.testing.assert_allclose(found[i][1], plain[i][1], rtol=1e-5)
        assert abs(found[i][0] - plain[i][0]) > 1e-4
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("same_rows", "first rows of observation; the given rows must come first, unchanged"),
        ("one_result", r"returned 3 results; it must return \(observation, action\)"),
        ("too_many_actions", r"returned action of shape \[6, 3\] for \[3, 3\]"),
        ("of_environment", "reads the environment"),
        ("of_three", r"takes \(observation, action, other\); for this task it is called with \(observation, action\)"),
        ("SPEC", "is not a function"),
        ("none", "has no none"),
    ],
)
def test_functions_that_cannot_be_used_are_refused(name, words):
    with pytest.raises(ConfigError, match=rf"symmetry={__name__}:{name}.*{words}"):
        Symmetry(f"{__name__}:{name}", SPEC, torch.device("cpu"))


def test_a_function_without_the_critics_observation_is_refused():
    words = r"takes \(observation, action\); for this task it is called with \(observation, action, critic\)"
    with pytest.raises(ConfigError, match=words):
        Symmetry(f"{__name__}:in_torch", WITH_CRITIC, torch.device("cpu"))


@pytest.mark.parametrize("spec", others_slow([SPEC, WITH_CRITIC], SPEC), ids=["vector", "groups"])
def test_observations_are_mirrored_before_they_are_normalized(spec):
    size = spec.observation_size
    raw = 3 + np.random.default_rng(0).standard_normal((5, 4, size + (spec.critic_size or 0))).astype(np.float32)
    zeros, never = np.zeros((4, 4), np.float32), np.zeros((4, 4), bool)
    rollout = Rollout(raw, acted(SPEC, 16).reshape(4, 4, -1), zeros, never, never, zeros + 1, [])
    moments, of_critic = (
        {"count": np.ones(1), "mean": np.full(width, 3.0), "variance": np.full(width, 4.0)} for width in (size, 2)
    )
    rows = raw[:-1].reshape(16, -1)
    expected, expected_critic = (np.clip((x - 3) / 2, -2, 2) for x in (-rows[:, :size], 1 - rows[:, size:]))
    run = override(RUN, {"normalize_observation": True, "observation_limit": 2.0})
    with Comm(World(), device="cpu") as comm, JaxComm(World(), device="cpu") as jax_comm:
        learner = torch_ppo.PPO(symmetric(run, "torch", spec), Policy(spec, RUN.network, seed=0), comm)
        theirs = jax_ppo.PPO(symmetric(run, "jax", spec), JaxPolicy(spec, RUN.network, seed=0), jax_comm)
        for normalizers in (learner.normalizers, theirs.normalizers):
            normalizers.observations.restore(moments)
            if spec.critic_size is not None:
                normalizers.critic_observations.restore(of_critic)
        found = learner._builder.batch(0, rollout)
        (other,) = jax_comm.unshard(theirs._builder.batches(theirs.state.params, [rollout]))
    for batch in (found, other):
        np.testing.assert_allclose(batch.mirrored_observation[:, 0], expected, atol=1e-6)
        np.testing.assert_array_equal(batch.mirrored_action[:, 0], -np.asarray(batch.action))
        if spec.critic_size is not None:
            np.testing.assert_allclose(batch.mirrored_critic[:, 0], expected_critic, atol=1e-6)


def test_the_file_of_a_symmetry_is_user_code():
    run = override(RUN, {"symmetry": "/some/where/mirror.py:mirror"})
    assert "/some/where/mirror.py:mirror" in run.user_code
    assert with_portable_paths(run).algorithm.symmetry == "mirror.py:mirror"
