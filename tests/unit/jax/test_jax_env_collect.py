"""A rollout on the device against the same steps made one by one, and what surrounds it."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp

from lockstep.algorithms.ppo import PPOConfig
from lockstep.envs.spec import ActionSpec
from lockstep.errors import ConfigError
from lockstep.experience.normalize import DiscountedReturns, RunningMoments
from lockstep.jax import moments
from lockstep.jax.batch_builder import batch_of
from lockstep.jax.device_rollout import DeviceRollout
from lockstep.jax.device_shard import OBSERVATION, REWARD, clipper, keys_of
from lockstep.jax.envs.make import make_device_env
from lockstep.jax.envs.packed import PackedEnv, wrap_key
from lockstep.jax.envs.pixel_pong import PixelPong
from lockstep.jax.networks import Policy
from lockstep.jax.symmetry import Symmetry
from lockstep.record.episodes import KEPT
from lockstep.run import EnvConfig, NetworkConfig
from quick import others_slow

sys.path.insert(0, str(Path(__file__).parents[2] / "ranks"))
from device_envs import Drift, GroupedDrift

T, B, GAMMA, UPDATE, SCALE = 40, 4, 0.9, 3, 0.5


def frozen(mean, variance):
    host = RunningMoments(len(mean))
    host.restore({"count": np.array([50.0]), "mean": np.array(mean), "variance": np.array(variance)})
    return moments.read(host)


FROZEN = {"observations": frozen([0.1, 0.4], [0.2, 0.1]), "returns": frozen([0.0], [4.0])}
CRITIC = frozen([99.0, 2.0, 0.1], [50.0, 3.0, 0.2])
GROUPS = {"observations": FROZEN["observations"], "critic_observations": CRITIC, "returns": FROZEN["returns"]}


def mirror(observation, action):
    """For `symmetry`."""
    return jnp.concatenate([observation, -observation]), jnp.concatenate([action, action])


def mirror_groups(observation, action, critic):
    """For `symmetry`."""
    return *mirror(observation, action), jnp.concatenate([critic, 200 - critic])


def made(continuous=False, reward_scale=1.0, grouped=False, **kwargs):
    env = PackedEnv((GroupedDrift if grouped else Drift)(continuous=continuous, **kwargs))
    policy = Policy(env.spec, NetworkConfig(hidden=(8,)), seed=1)
    collect = DeviceRollout(
        env, policy, num_steps=T, shard_envs=B, gamma=GAMMA, reward_scale=reward_scale,
        symmetry=Symmetry(f"{__name__}:mirror{'_groups' * grouped}", env.spec),
    )  # fmt: skip
    return env, policy, collect, jax.jit(collect.begin)(*keys_of(0, 1, B))


def by_hand(env, policy, shard, normalizers):
    """The steps of environment after environment, in Python."""

    def normalize(rows, name="observations"):
        return normalizers[name].normalize(rows[None]) if normalizers else rows[None]

    def normalize_critic(rows):
        return None if rows is None else normalize(rows, "critic_observations")

    noise = policy.distribution.draw_noise(jax.random.fold_in(wrap_key(shard.action_key), UPDATE), (T, B))
    rows = {name: np.zeros((T, B)) for name in ("reward", "terminated", "ended", "final_value", "is_final", "returned")}
    seen, action = np.zeros((T + 1, B, 2), np.float32), np.zeros((T, B), np.float32)
    valued = np.zeros((T + 1, B, env.spec.critic_size or 0), np.float32)
    for b in range(B):
        key = jax.random.fold_in(wrap_key(shard.keys[b]), UPDATE)
        steps, resets = (jax.random.split(jax.random.fold_in(key, what), T) for what in range(2))
        state = tuple(leaf[b] for leaf in shard.state)
        observation, returned = jax.tree.map(lambda rows, b=b: rows[b], shard.observation), 0.0
        for t in range(T):
            seen[t, b] = normalize(observation.policy)[0]
            if observation.critic is not None:
                valued[t, b] = normalize_critic(observation.critic)[0]
            parameters, _ = policy.apply(policy.params, seen[t, b][None])
            chosen = policy.distribution.sample(policy.params, parameters, noise[t, b][None])[0]
            action[t, b] = np.asarray(chosen).reshape(())
            given = jnp.clip(chosen, -1, 1) if env.spec.action.kind == "continuous" else chosen
            state, observation, reward, terminated, truncated = env.step(state, given, steps[t])
            returned += float(reward)
            rows["reward"][t, b], rows["terminated"][t, b] = reward, terminated
            rows["ended"][t, b], rows["returned"][t, b] = terminated | truncated, returned
            if truncated and not terminated:
                rows["is_final"][t, b] = 1
                last = normalize(observation.policy), normalize_critic(observation.critic)
                rows["final_value"][t, b] = policy.apply(policy.params, last[0], critic=last[1])[1][0]
            if terminated | truncated:
                state, returned = env.reset(resets[t]), 0.0
                observation = env.observe(state)
        seen[T, b] = normalize(observation.policy)[0]
        if observation.critic is not None:
            valued[T, b] = normalize_critic(observation.critic)[0]
    return seen, valued, action, rows


@pytest.mark.parametrize(
    ("continuous", "normalizers"),
    others_slow(
        [(False, {}), (False, FROZEN), (True, {}), (True, FROZEN), (True, GROUPS)], (True, GROUPS), several=True
    ),
    ids=["discrete-plain", "discrete-normalized", "continuous-plain", "continuous-normalized", "groups-normalized"],
)
def test_a_rollout_is_the_steps_made_one_by_one(continuous, normalizers):
    grouped = "critic_observations" in normalizers
    env, policy, collect, shard = made(continuous, SCALE, grouped, max_episode_steps=9, push=0.2)
    after, steps, sums = jax.jit(collect.rollout)(policy.params, normalizers, shard, jnp.int32(UPDATE))
    seen, valued, action, rows = by_hand(env, policy, shard, normalizers)
    np.testing.assert_allclose(steps.observation, seen, atol=1e-4)
    if grouped:
        np.testing.assert_allclose(steps.critic, valued, atol=1e-4)
    np.testing.assert_allclose(np.asarray(steps.action).reshape(T, B), action, atol=1e-4)
    for name in ("terminated", "ended", "is_final"):
        np.testing.assert_array_equal(getattr(steps, name), rows[name])
    final = np.asarray(steps.final_value)[rows["is_final"] > 0]
    np.testing.assert_allclose(final, rows["final_value"][rows["is_final"] > 0], atol=1e-4)
    reward = SCALE * rows["reward"] / (np.sqrt(4 + 1e-8) if normalizers else 1)
    np.testing.assert_allclose(steps.reward, reward, atol=1e-4)
    assert rows["terminated"].sum() >= 1
    assert rows["is_final"].sum() >= 4
    where = rows["ended"] > 0
    totals = after.totals
    assert (int(totals.ended), float(totals.returns)) == (
        where.sum(),
        pytest.approx(rows["returned"][where].sum(), rel=1e-4),
    )
    lengths = [np.diff(np.flatnonzero(np.append(1, where[:, b]))) for b in range(B)]
    assert int(totals.lengths) == sum(int(each.sum()) for each in lengths)
    newest = [int(totals.recent_ended[-1]), float(totals.recent_returns[-1]), int(totals.updates[-1])]
    assert newest == pytest.approx([where.sum(), rows["returned"][where].sum(), UPDATE], rel=1e-4)
    assert not totals.recent_ended[:-1].any()
    if normalizers:
        host, discounted = RunningMoments(2), DiscountedReturns(B, GAMMA)
        moments.write(FROZEN["observations"], host)
        raw = (seen[:-1] * np.sqrt(np.array([0.2, 0.1]) + 1e-8) + np.array([0.1, 0.4])).reshape(-1, 2)
        mirrored = FROZEN["observations"].normalize(-raw.reshape(T, B, 2))
        np.testing.assert_allclose(steps.mirrored_observation[:, :, 0], mirrored, rtol=1e-3, atol=1e-3)
        np.testing.assert_array_equal(steps.mirrored_action[:, :, 0], steps.action)
        expected = host.sums(raw, np.ones(T * B))
        np.testing.assert_allclose(sums[:5], expected, rtol=1e-3, atol=1e-2)
        if grouped:
            host = RunningMoments(3)
            moments.write(CRITIC, host)
            raw = (valued[:-1] * np.sqrt(np.asarray(CRITIC.variance) + 1e-8) + np.asarray(CRITIC.mean)).reshape(-1, 3)
            np.testing.assert_allclose(sums[5:12], host.sums(raw, np.ones(T * B)), rtol=1e-3, atol=0.05)
            mirrored = CRITIC.normalize(200 - raw.reshape(T, B, 3))
            np.testing.assert_allclose(steps.mirrored_critic[:, :, 0], mirrored, rtol=1e-3, atol=1e-3)
        given = discounted.update(SCALE * rows["reward"], where)
        np.testing.assert_allclose(sums[-3:], [T * B, given.sum(), np.square(given).sum()], rtol=1e-3)
        np.testing.assert_allclose(after.discounted, discounted.value, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_parameters_that_are_known_need_not_be_computed_again():
    _, policy, collect, shard = made()
    _, steps, _ = jax.jit(collect.rollout)(policy.params, {}, shard, jnp.int32(0))
    known = batch_of(PPOConfig(), policy, policy.params, steps, "float32")
    again = batch_of(PPOConfig(), policy, policy.params, steps._replace(parameters=None), "float32")
    for one, other in zip(jax.tree.leaves(known), jax.tree.leaves(again), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_what_is_random_is_keyed_by_environment_and_update():
    _, policy, collect, shard = made()
    rollout = jax.jit(collect.rollout)
    _, one, _ = rollout(policy.params, {}, shard, jnp.int32(0))
    _, same, _ = rollout(policy.params, {}, shard, jnp.int32(0))
    _, other, _ = rollout(policy.params, {}, shard, jnp.int32(1))
    np.testing.assert_array_equal(one.observation, same.observation)
    assert (np.asarray(one.observation)[1:] != np.asarray(other.observation)[1:]).any(-1).all()
    whole, halves = keys_of(0, 0, 8), [keys_of(0, shard, 4) for shard in range(2)]
    np.testing.assert_array_equal(whole[0], np.concatenate([half[0] for half in halves]))
    assert (halves[0][1] != halves[1][1]).any()
    assert len({key.tobytes() for half in halves for key in (half[1], half[2], *half[0])}) == 12
    assert (keys_of(1, 0, 8)[0] != whole[0]).any(1).all()


@pytest.mark.parametrize(
    ("spoil", "what"),
    others_slow(
        [("reward", REWARD), ("observation", OBSERVATION), ("critic", OBSERVATION)],
        ("reward", REWARD),
        ("critic", OBSERVATION),
        several=True,
    ),
)
def test_the_first_bad_number_is_found(spoil, what):
    _, policy, collect, shard = made(grouped=spoil == "critic", spoil=spoil, spoil_at=5, max_episode_steps=20)
    after, *_ = jax.jit(collect.rollout)(policy.params, {}, shard, jnp.int32(0))
    fault = after.fault
    assert (int(fault.what), int(fault.step), int(fault.env)) == (what, 4, 0)
    assert not np.isfinite(fault.value)
    assert np.isfinite(after.returned).all()


@pytest.mark.parametrize(("recurrent", "normalizers"), [("none", {}), ("none", FROZEN), ("gru", FROZEN)])
def test_a_bad_observation_at_a_truncation_is_found(recurrent, normalizers):
    env = PackedEnv(Drift(spoil="observation", spoil_at=5, max_episode_steps=5, push=0.0))
    policy = Policy(env.spec, NetworkConfig(hidden=(8,), recurrent=recurrent), seed=1)  # tanh of infinity is finite
    collect = DeviceRollout(env, policy, num_steps=T, shard_envs=B, gamma=GAMMA)
    shard = collect.begin(*keys_of(0, 1, B))
    after, *_ = jax.jit(collect.rollout)(policy.params, normalizers, shard, jnp.int32(0))
    assert (int(after.fault.what), int(after.fault.step), int(after.fault.env)) == (OBSERVATION, 4, 0)


def test_actions_are_clipped_to_bounds_rounded_to_the_inside():
    action = ActionSpec("continuous", (2,), (-0.1, 1.0), (0.3, 2.0))
    found = np.asarray(clipper(action)(jnp.array([[-9.0, jnp.nan], [9.0, 1.5]])), np.float64)
    assert (found >= action.low).all()
    assert (found <= action.high).all()
    np.testing.assert_allclose(found, [[-0.1, 1.0], [0.3, 1.5]], rtol=1e-6)


class Choices(Drift):
    """Says that its choices are counted from 1."""

    def __init__(self):
        super().__init__()
        self.spec = replace(self.spec, action=ActionSpec("discrete", (3,), start=(1,)))


def test_a_class_whose_choices_are_not_counted_from_0_is_refused():
    with pytest.raises(
        ConfigError, match=r"spec.action has start=\(1,\).*leave start out, and convert the action in step"
    ):
        make_device_env(f"{__file__}:Choices", EnvConfig())


def test_a_healthy_rollout_after_a_spoiled_one_is_healthy():
    _, policy, collect, shard = made(spoil="reward", spoil_at=T, max_episode_steps=3 * T, push=0.0)
    rollout, found = jax.jit(collect.rollout), []
    for update in range(2):
        shard, *_ = rollout(policy.params, {}, shard, jnp.int32(update))
        found.append(int(shard.fault.what))
    assert found == [REWARD, 0]


def test_the_newest_updates_are_kept_in_their_order():
    _, policy, collect, shard = made(max_episode_steps=1)
    rollout, returns = jax.jit(collect.rollout), list[float]()
    for update in range(2):
        shard, steps, _ = rollout(policy.params, {}, shard, jnp.int32(update))
        returns.append(float(np.asarray(steps.reward, np.float64).sum()))
    totals = shard.totals
    assert int(totals.ended) == 2 * T * B
    assert totals.recent_ended.tolist() == [0] * (KEPT - 2) + [T * B] * 2
    np.testing.assert_allclose(totals.recent_returns[-2:], returns, rtol=1e-4)
    assert totals.updates[-2:].tolist() == [0, 1]


def test_images_stay_bytes():
    env = PackedEnv(PixelPong(size=21, max_episode_steps=5))
    policy = Policy(env.spec, NetworkConfig(encoder="small", features=8), seed=1)
    collect = DeviceRollout(env, policy, num_steps=T, shard_envs=B, gamma=GAMMA)
    shard = jax.eval_shape(collect.begin, *keys_of(0, 1, B))
    program = str(jax.make_jaxpr(collect.rollout)(policy.params, {}, shard, jnp.int32(0)))
    assert f"u8[{T + 1},{B},4,21,21]" in program
    assert f"f32[{T + 1},{B},4,21,21]" not in program, "a copy of all images as numbers"
