"""The replay buffer on the device against a list of all transitions, and SAC and TD3 that learn from it."""

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp

from lockstep.algorithms.sac import SACConfig
from lockstep.algorithms.td3 import TD3Config
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.errors import ConfigError
from lockstep.jax.continuous_policy import ContinuousPolicy
from lockstep.jax.device_replay import DeviceReplay, ReplayRows, TransitionRows
from lockstep.jax.device_shard import first_shard, keys_of
from lockstep.jax.device_transitions import TransitionRollout
from lockstep.jax.envs.packed import PackedEnv
from lockstep.run import NetworkConfig, Run, override
from lockstep.session import placement
from lockstep.session.placement import learns_on_device

sys.path.insert(0, str(Path(__file__).parents[2] / "ranks"))

SPEC = EnvSpec(
    observation_size=2,
    action=ActionSpec("continuous", (1,), (-2.0,), (4.0,)),
    autoreset="same_step",
    separately_seedable=True,
)
B, T, GAMMA, DRAWN = 3, 2, 0.9, 400


def rollout(number, generator):
    """Transitions that name themselves: the observation is (step, env), and its successor has 0.5 more."""
    step = np.arange(number * T, (number + 1) * T)[:, None] + np.zeros((1, B))
    observation = np.stack([step, np.zeros((T, 1)) + np.arange(B)], -1).astype(np.float32)
    reward = generator.normal(size=(T, B)).astype(np.float32)
    end = generator.choice(3, (T, B), p=[0.7, 0.15, 0.15]).astype(np.uint8)
    return TransitionRows(observation, observation[..., :1], reward, observation + 0.5, end)


@pytest.mark.parametrize(("n_step", "capacity"), [(1, 12), (3, 30), (4, 11)])
def test_what_is_drawn_are_the_transitions_of_the_log(n_step, capacity):
    config = SACConfig(n_step=n_step, gamma=GAMMA, batch_size=2, capacity=2, num_steps=T)
    rows = ReplayRows(config, SPEC, B, capacity, DRAWN)
    empty = rows.empty()
    replay = jax.tree.map(lambda leaf: jnp.stack([jnp.asarray(leaf)] * 2), empty)  # two shards, of which one is written
    replay = DeviceReplay(*replay)
    log, generator, draw = list[TransitionRows](), np.random.default_rng(0), jax.jit(rows.draw, static_argnums=(1, 3))
    write = jax.jit(rows.write, static_argnums=1)
    for number in range(20):
        new, keep = rollout(number, generator), number != 9
        replay = write(replay, 1, new, jnp.bool_(keep))
        if keep:
            log.append(new)
        elif log:  # what came before is cut off
            log[-1].end[-1][log[-1].end[-1] == 0] = 2
        size = int(rows.size(replay, 1))
        steps = TransitionRows(*(np.concatenate(leaves) for leaves in zip(*log, strict=True)))
        assert size == max(min(len(steps.reward), rows.num_rows) - n_step + 1, 0) * B
        if not size:
            continue
        drawn = jax.tree.map(np.asarray, draw(replay, 1, jax.random.key(number), 2))
        assert drawn.noise.shape == (DRAWN, 2, 1)
        allowed = steps.observation[len(steps.reward) - size // B - n_step + 1 :, 0, 0][: size // B]
        if number == 19:
            assert set(drawn.observation[:, 0]) == set(allowed), "some transitions are never drawn"
            assert set(drawn.observation[:, 1]) == {0, 1, 2}
        for i in range(DRAWN):
            step, env = int(drawn.observation[i, 0]), int(drawn.observation[i, 1])
            row = int(np.flatnonzero(steps.observation[:, 0, 0] == step)[0])
            expected, discount, last = 0.0, 1.0, row
            for last in range(row, row + n_step):
                expected += discount * steps.reward[last, env]
                discount *= GAMMA
                if steps.end[last, env]:
                    break
            assert drawn.reward[i] == pytest.approx(expected, rel=1e-5, abs=1e-6), "another return"
            assert drawn.discount[i] == pytest.approx(0.0 if steps.end[last, env] == 1 else discount, rel=1e-6)
            np.testing.assert_array_equal(drawn.next_observation[i], steps.next_observation[last, env])
            np.testing.assert_array_equal(drawn.action[i], steps.action[row, env])
    assert int(replay.written[0]) == 0
    assert not np.asarray(replay.rings.reward[0]).any(), "another shard's buffer"


class EndsBadly:
    """An episode of five steps ends in a state that is not finite."""

    on_device, spec = True, SPEC

    def reset(self, key):
        return jnp.zeros((), jnp.int32)

    def observe(self, state):
        return jnp.stack([state / 5.0, jnp.where(state == 5, jnp.nan, 0.0)]).astype(jnp.float32)

    def step(self, state, action, key):
        state = state + 1
        return state, self.observe(state), jnp.float32(1), state == 5, jnp.asarray(False)


def test_a_state_that_has_no_value_is_not_stored():
    """Its discount is 0, but 0 times NaN is not."""
    config, env = SACConfig(num_steps=10), PackedEnv(EndsBadly())
    policy = ContinuousPolicy(SPEC, NetworkConfig(hidden=(4,)), config)
    rollout = jax.jit(TransitionRollout(env, policy, 10, 2).rollout)
    shard = first_shard(env, *keys_of(0, 0, 2))
    shard, steps = rollout(policy.params, shard, jnp.int32(0), jnp.asarray(False))
    assert int(shard.fault.what) == 0
    assert np.asarray(steps.end).sum() == 4, "two episodes of each environment terminated"
    assert np.isfinite(steps.next_observation).all()
    goes_on = np.asarray(steps.end) == 0
    np.testing.assert_array_equal(
        np.asarray(steps.next_observation)[:-1][goes_on[:-1]], np.asarray(steps.observation)[1:][goes_on[:-1]]
    )


class Bounded:
    """The reward is how far the action lies beyond the bounds."""

    on_device = True
    spec = EnvSpec(2, ActionSpec("continuous", (1,), (0.1,), (0.7,)), "same_step", True)

    def reset(self, key):
        return jnp.zeros((), jnp.int32)

    def observe(self, state):
        return jnp.ones(2)

    def step(self, state, action, key):
        least, most = self.spec.action.float32_bounds
        beyond = jnp.maximum(least[0] - action[0], action[0] - most[0])
        return state + 1, jnp.ones(2), beyond, state == 20, jnp.asarray(False)


def test_the_environment_gets_actions_within_its_bounds():
    config, env = TD3Config(num_steps=5, exploration_noise=50.0), PackedEnv(Bounded())
    policy = ContinuousPolicy(env.spec, NetworkConfig(hidden=(4,)), config)
    rollout = jax.jit(TransitionRollout(env, policy, 5, 20).rollout)
    _, steps = rollout(policy.params, first_shard(env, *keys_of(0, 0, 20)), jnp.int32(0), jnp.asarray(False))
    assert np.asarray(steps.reward).max() == 0, "a rounded action lies beyond, or none lies on a bound"


def test_shards_draw_with_keys_of_their_own():
    keys = [np.concatenate([np.ravel(key) for key in keys_of(0, shard, 2)]) for shard in range(3)]
    assert len(np.unique(keys)) == np.size(keys), "two shards draw with the same key"


@pytest.mark.parametrize("algo", ["sac", "td3"])
def test_actions_are_those_of_the_sampler_on_the_host(algo):
    run = Run(task="Pendulum-v1", algo=algo)
    policy = ContinuousPolicy(SPEC, NetworkConfig(hidden=(8,)), run.algorithm, seed=3)
    observation, noise = np.random.default_rng(1).normal(size=(2, 50, 2)).astype(np.float32)
    parameters = np.asarray(policy.parameters(policy.params, jnp.asarray(observation)))
    expected = policy.sampler.sample(parameters, noise[:, :1])
    found = np.asarray(policy.act(policy.params, jnp.asarray(observation), jnp.asarray(noise[:, :1])))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert found.min() >= -2 and found.max() <= 4


def test_exploration_noise_of_td3_has_the_deviation_of_the_setting():
    policy = ContinuousPolicy(SPEC, NetworkConfig(hidden=(8,)), TD3Config(exploration_noise=0.25), seed=3)
    observation, ones = jnp.full((1, 2), 0.1), jnp.ones((1, 1))
    still, moved = (policy.act(policy.params, observation, noise) for noise in (0 * ones, ones))
    assert float((moved - still)[0, 0]) == pytest.approx(0.25 * 3, rel=1e-5)
    sampled = policy.sampler.sample(np.zeros((1, 1), np.float32), np.ones((1, 1), np.float32))
    assert float(sampled[0, 0]) == pytest.approx(1 + 0.25 * 3)


@pytest.mark.parametrize(
    "changes",
    [{"prioritized": True}, {"replay_path": "there"}, {"replay_device": "cpu"}],
    ids=lambda one: next(iter(one)),
)
def test_settings_of_buffers_on_the_host_keep_environments_there(changes, monkeypatch):
    monkeypatch.setattr(placement, "jax_finds_gpu", lambda: "replay_device" in changes)
    run = Run(task="device_envs:Drift", algo="sac", ml_framework="jax")
    run = override(run, {"env.kwargs": {"continuous": True}})
    assert learns_on_device(run)
    assert not learns_on_device(override(run, changes))
    if "replay_device" in changes:  # a CPU is the host
        assert learns_on_device(override(run, {**changes, "device": "cpu"}))
    with pytest.raises(ConfigError, match=rf"^{next(iter(changes))}=.* use env.placement=host"):
        learns_on_device(override(run, {**changes, "env.placement": "device"}))
