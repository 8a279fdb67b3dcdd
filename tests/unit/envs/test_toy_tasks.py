"""Built-in environments: rules by hand, endings, seeds, state."""

import math

import numpy as np
import pytest

from lockstep.envs.cartpole import Cartpole
from lockstep.envs.make import make_vector_env
from lockstep.envs.toy_tasks import Corridor, Match, Reach
from lockstep.envs.vector import BUILT_IN
from lockstep.run import EnvConfig


def random_actions(env, generator):
    spec = env.spec.action
    if spec.kind == "continuous":
        return generator.normal(size=(env.num_envs, spec.width)).astype(np.float32)
    actions = generator.integers(0, spec.sizes, (env.num_envs, spec.width))
    return actions[:, 0] if spec.kind == "discrete" else actions


def roll(env, steps, seed=0):
    generator = np.random.default_rng(seed)
    return [[np.array(part) for part in env.step(random_actions(env, generator))] for _ in range(steps)]


def same(one, other):
    return all(np.array_equal(a, b) for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=True))


@pytest.mark.parametrize("task", sorted(BUILT_IN))
def test_the_seed_decides_and_the_state_restores(task):
    env, again = (make_vector_env(task, EnvConfig(), 5) for _ in range(2))
    first = env.reset([3, 0, 0, 0, 0])
    assert first.shape == (5, env.spec.observation_size) and first.dtype == np.float32
    np.testing.assert_array_equal(first, again.reset([3]))
    assert same(roll(env, 40), roll(again, 40))
    saved = env.state()
    onward = roll(env, 300, seed=1)
    assert any(step[2].any() or step[3].any() for step in onward)
    again.reset([8])
    again.restore(saved)
    assert same(onward, roll(again, 300, seed=1))
    env.reset([4])
    assert not same(onward, roll(env, 300, seed=1))


@pytest.mark.parametrize("task", sorted(BUILT_IN))
def test_episodes_end_at_the_limit_and_show_the_true_last_observation(task):
    env = make_vector_env(task, EnvConfig(max_episode_steps=2), 64)
    env.reset([0])
    generator = np.random.default_rng(0)
    age = np.zeros(64, int)
    for _ in range(6):
        observation, reward, terminated, truncated, final = env.step(random_actions(env, generator))
        age += 1
        ended = terminated | truncated
        np.testing.assert_array_equal(truncated, age == 2)
        np.testing.assert_array_equal(observation[~ended], final[~ended])
        assert not ended.any() or (observation[ended] != final[ended]).any()
        assert [a.dtype for a in (observation, reward, terminated, final)] == [np.float32, np.float32, bool, np.float32]
        age[ended] = 0


def test_corridor_rules():
    env = Corridor(2, length=4)
    env.reset([0])
    env._cell[:] = (2, 0)
    observation, reward, terminated, _, final = env.step(np.array([1, 0]))
    np.testing.assert_allclose(reward, [0.99, -0.01], atol=1e-6)
    np.testing.assert_array_equal(terminated, [True, False])
    np.testing.assert_array_equal(final, [[0, 0, 0, 1], [1, 0, 0, 0]])
    assert observation[0, :2].sum() == 1  # begins anew in the left half


def test_reach_rules():
    env = Reach(2, dims=1)
    env.reset([0])
    env._point[:], env._goal[:] = [[0.0], [0.5]], [[0.15], [-0.5]]
    _, reward, terminated, _, final = env.step(np.array([[1.0], [-9.0]], np.float32))
    np.testing.assert_allclose(reward, [-0.05, -0.9], atol=1e-6)
    np.testing.assert_array_equal(terminated, [True, False])
    np.testing.assert_allclose(final, [[0.1, 0.05], [0.4, -0.9]], atol=1e-6)


def test_match_rules():
    env = Match(3, components=2, choices=3)
    env.reset([0])
    env._symbols[:] = [[0, 2], [1, 1], [2, 0]]
    np.testing.assert_array_equal(env._observe()[0], [1, 0, 0, 0, 0, 1])
    _, reward, terminated, _, _ = env.step(np.array([[0, 2], [1, 0], [0, 1]]))
    np.testing.assert_array_equal(reward, [1, 0.5, 0])
    np.testing.assert_array_equal(terminated, [False, False, True])


def cartpole(state, **kwargs):
    env = Cartpole(1, **kwargs)
    env.reset([0])
    env._state[:, 0] = state
    return env


def test_cartpole_begins_within_isaac_lab_ranges():
    first = Cartpole(20_000).reset([0])
    bounds = np.array([1, math.pi / 4, 0.5, math.pi / 4])
    assert (np.abs(first) <= bounds + 1e-6).all()
    assert (np.abs(first).max(axis=0) > 0.99 * bounds).all() and (np.abs(first.mean(axis=0)) < 0.03 * bounds).all()


def test_cartpole_reward_terms():
    env = cartpole([0, 0.3, 0.2, -0.4])
    _, reward, terminated, _, final = env.step(np.array([[0.1]], np.float32))
    _, angle, velocity, spin = final[0]
    expected = (1 - angle**2 - 0.01 * abs(velocity) - 0.005 * abs(spin)) / 60
    assert not terminated[0] and reward[0] == pytest.approx(expected, rel=1e-5)
    # A full turn more costs nothing: the angle is wrapped for the reward, not for the observation.
    _, turned, _, _, final = cartpole([0, 0.3 + 2 * math.pi, 0.2, -0.4]).step(np.array([[0.1]], np.float32))
    assert turned[0] == pytest.approx(reward[0], rel=1e-4) and final[0, 1] > 6


def test_cartpole_terminates_outside_three_metres():
    inside, outside = (cartpole([x, 0, 0, 0]).step(np.zeros((1, 1), np.float32)) for x in (-2.99, -3.01))
    assert not inside[2][0] and outside[2][0]
    assert outside[1][0] == pytest.approx(-2 / 60, rel=1e-3) and outside[4][0, 0] < -3 and abs(outside[0][0, 0]) <= 1


def test_cartpole_is_truncated_after_five_seconds():
    env = cartpole([0, 0, 0, 0])
    cut = [bool(env.step(np.zeros((1, 1), np.float32))[3][0]) for _ in range(300)]
    assert cut.index(True) == 299


def test_cartpole_physics():
    # Alone, a cart is pushed by force over mass; a very light pole hardly matters. Effort is cut at 400 N.
    kwargs = {"pole_mass": 1e-6, "cart_mass": 2.0}
    for action, force in ((1.0, 100.0), (9.0, 400.0)):
        final = cartpole([0, 0, 0, 0], **kwargs).step(np.array([[action]], np.float32))[4][0]
        first = force / 2 / 120
        second = first + (force - 10 * first) / 2 / 120
        assert final[2] == pytest.approx(second, rel=1e-4) and final[0] == pytest.approx(
            (first + second) / 120, rel=1e-4
        )
        assert final[1] < 0  # a push to the right leaves the pole behind
    # On a cart too heavy to move, a hanging uniform rod of 1 m swings with omega^2 = 3 g / (2 L).
    env = cartpole([0, math.pi - 0.05, 0, 0], cart_mass=1e9)
    angles = [env.step(np.zeros((1, 1), np.float32))[4][0, 1] - math.pi for _ in range(200)]
    crossings = np.flatnonzero(np.diff(np.sign(angles)) != 0)
    period = 2 * np.diff(crossings).mean() / 60
    assert period == pytest.approx(2 * math.pi / math.sqrt(1.5 * 9.81), rel=0.02)


def test_cartpole_can_be_balanced():
    env = Cartpole(64)
    observation = env.reset([0])
    total = np.zeros(64)
    for _ in range(300):
        action = observation @ np.array([[0.0], [2.3], [0.5], [0.5]], np.float32)
        observation, reward, terminated, truncated, _ = env.step(action)
        assert not terminated.any()
        total += reward
    assert truncated.all() and total.mean() > env.spec.reward_threshold
