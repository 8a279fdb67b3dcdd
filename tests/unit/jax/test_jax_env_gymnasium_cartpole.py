"""`jax/CartPole-v1` is Gymnasium's CartPole-v1."""

import gymnasium
import numpy as np
import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp

from lockstep.envs.make import env_spec, make_vector_env
from lockstep.jax.envs.gymnasium_cartpole import CartPole, CartPoleState
from lockstep.run import EnvConfig

ULP = float(np.finfo(np.float32).eps)


def states(count):
    """Everywhere within bounds, and a little beyond."""
    rng = np.random.default_rng(0)
    high = np.array([2.5, 3.0, 0.22, 3.0])
    return rng.uniform(-high, high, (count, 4)).astype(np.float32)


def theirs(state, action):
    """Gymnasium's next state in float64 and as shown, reward and end."""
    env = gymnasium.make("CartPole-v1").unwrapped
    env.reset(seed=0)
    env.state = state.astype(np.float64)
    seen, reward, terminated, _, _ = env.step(int(action))
    return np.array(env.state), seen, reward, terminated


def ours(batch, action):
    return jax.vmap(CartPole().step, (0, 0, None))(batch, action, jax.random.key(0))


def test_in_float64_it_is_the_same_function():
    given = states(200)
    with jax.enable_x64(True):
        columns = [jnp.asarray(column, jnp.float64) for column in given.T]
        for action in (0, 1):
            moved, _, reward, terminated, _ = ours(
                CartPoleState(*columns, jnp.zeros(200, jnp.int32)), jnp.full(200, action, jnp.int32)
            )
            for i, state in enumerate(given):
                exact, _, their_reward, ended = theirs(state, action)
                np.testing.assert_allclose(np.array([column[i] for column in moved[:4]]), exact, rtol=1e-12, atol=1e-14)
                assert (float(reward[i]), bool(terminated[i])) == (their_reward, ended)


def test_in_float32_it_shows_the_same_numbers():
    given, rng = states(500), np.random.default_rng(1)
    action = rng.integers(0, 2, 500).astype(np.int32)
    moved, seen, reward, terminated, truncated = ours(
        CartPoleState(*map(jnp.asarray, given.T), jnp.zeros(500, jnp.int32)), jnp.asarray(action)
    )
    assert seen.dtype == reward.dtype == jnp.float32
    assert not truncated.any()
    ends = 0
    for i, state in enumerate(given):
        _, shown, their_reward, ended = theirs(state, action[i])
        np.testing.assert_allclose(seen[i], shown, rtol=4 * ULP, atol=ULP)
        assert (float(reward[i]), bool(terminated[i])) == (their_reward, ended)
        ends += ended
    assert 50 < ends < 450, "both must be seen"
    np.testing.assert_array_equal(seen, np.stack(moved[:4], 1))


def test_whole_episodes_go_the_same_way():
    # Each step begins where Gymnasium's is: rounding would grow from step to step.
    env, device = gymnasium.make("CartPole-v1"), CartPole()
    step = jax.jit(device.step)
    lengths = set[tuple[int, bool]]()
    for seed in range(6):
        seen, _ = env.reset(seed=seed)
        steps, balances = jnp.zeros((), jnp.int32), seed % 2 == 0
        for t in range(1, 501):
            pushed = seen @ np.array([0.1, 0.5, 10.0, 2.0]) > 0 if balances else t % 7 > 2
            state = CartPoleState(*jnp.asarray(seen, jnp.float32), steps)
            seen, reward, terminated, truncated, _ = env.step(int(pushed))
            (*_, steps), mine, my_reward, my_end, my_cut = step(state, jnp.int32(pushed), jax.random.key(0))
            np.testing.assert_allclose(mine, seen, rtol=1e-5, atol=1e-6)
            assert (float(my_reward), bool(my_end), bool(my_cut)) == (reward, terminated, truncated), (seed, t)
            if terminated or truncated:
                lengths.add((t, truncated))
                break
    assert (500, True) in lengths
    assert any(not cut for _, cut in lengths)


def test_it_begins_as_gymnasiums_does():
    first = jax.vmap(CartPole().reset)(jax.random.split(jax.random.key(3), 4000))
    columns = np.stack(first[:4])
    assert np.abs(columns).max() <= 0.05
    assert np.abs(columns).max() > 0.0499
    assert np.abs(columns.mean(1)).max() < 0.003
    np.testing.assert_allclose(columns.std(1), 0.1 / 12**0.5, rtol=0.05)
    assert np.abs(np.corrcoef(columns) - np.eye(4)).max() < 0.07
    assert not np.asarray(first.steps).any()


def test_the_spec_is_gymnasiums():
    ours, theirs = env_spec("jax/CartPole-v1", EnvConfig()), env_spec("CartPole-v1", EnvConfig())
    for name in ("observation_size", "action", "reward_threshold", "max_episode_steps", "image"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert env_spec("jax/CartPole-v1", EnvConfig(max_episode_steps=200)).max_episode_steps == 200


def test_episodes_are_cut_where_the_run_says():
    env = make_vector_env("jax/CartPole-v1", EnvConfig(max_episode_steps=3), 2)
    env.reset([0, 1])
    cut = [env.step(np.array([0, 1]))[3].tolist() for _ in range(6)]
    assert cut == [[False] * 2, [False] * 2, [True] * 2] * 2
