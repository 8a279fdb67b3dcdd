"""Built-in environments: rules by hand, endings, seeds, state."""

import numpy as np
import pytest

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
    assert first.shape == (5, *env.spec.observation_shape) and first.dtype == env.spec.observation_dtype
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
        seen = env.spec.observation_dtype
        assert [a.dtype for a in (observation, reward, terminated, final)] == [seen, np.float32, bool, seen]
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
