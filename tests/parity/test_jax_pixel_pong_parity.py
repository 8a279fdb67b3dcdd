"""`lockstep/PixelPong-v0` in numpy, torch and JAX: the same pictures, rewards and ends, to the bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from lockstep.envs.pixel_pong import PixelPong
from lockstep.envs.pixel_pong_dynamics import SEEDS, first_state, shown
from lockstep.jax.envs.pixel_pong import PixelPong as JaxPong
from lockstep.torch.envs.pixel_pong import PixelPong as TorchPong

ENVS = 16
CPU = torch.device("cpu")


def of_numpy(numbers, actions, **kwargs):
    env = PixelPong(ENVS, **kwargs)
    env.reset([0])
    env._state[:] = first_state(numbers)
    env._seen[:, :, -1] = shown(first_state(numbers))
    yield env._observe(), None, None, None
    for action in actions:
        _, reward, terminated, truncated, final = env.step(action)
        yield final, reward, terminated, truncated


def of_torch(numbers, actions, **kwargs):
    env = TorchPong(ENVS, device=CPU, **kwargs)
    env.reset([0])
    state = first_state(torch.from_numpy(numbers))
    env._state = torch.stack(state)
    env._seen[:, :, -1] = torch.stack(shown(state))
    yield env._observe(env._seen).policy.numpy(), None, None, None
    for action in actions:
        step = env.step(torch.from_numpy(action))
        parts = (step.final.policy, step.reward, step.terminated, step.truncated)
        yield tuple(part.numpy() for part in parts)


def of_jax(numbers, actions, **kwargs):
    env = JaxPong(**kwargs)
    step = jax.jit(jax.vmap(env.step, (0, 0, None)))
    episode = jax.vmap(lambda key: env.reset(key))(jax.random.split(jax.random.key(0), ENVS))
    state = first_state(jnp.asarray(numbers))
    episode = episode._replace(state=state, seen=episode.seen.at[:, :, -1].set(jnp.stack(shown(state), 1)))
    yield np.asarray(jax.vmap(env.observe)(episode)), None, None, None
    for action in actions:
        episode, final, reward, terminated, truncated = step(episode, jnp.asarray(action, jnp.int32), None)
        yield tuple(np.asarray(part) for part in (final, reward, terminated, truncated))


@pytest.mark.parametrize(
    ("kwargs", "steps"),
    [
        ({"size": 27}, 120),
        pytest.param({"size": 42, "points": 100, "max_episode_steps": 700}, 700, marks=pytest.mark.slow),
        pytest.param({"size": 84}, 120, marks=pytest.mark.slow),
    ],
)
def test_all_three_play_the_same_game(kwargs, steps):
    draw = np.random.default_rng(0)
    numbers = draw.integers(0, SEEDS, ENVS, np.int32)
    actions = np.repeat(draw.integers(0, 3, (steps // 4, ENVS)), 4, 0)  # moves long enough to meet the ball
    games = zip(*(play(numbers, actions, **kwargs) for play in (of_numpy, of_torch, of_jax)), strict=True)
    goes_on, points, ends = np.ones(ENVS, bool), {1.0: 0, -1.0: 0}, 0
    for step, of_others in enumerate((first, others) for first, *others in games):
        first, others = of_others
        assert first[0].dtype == np.uint8
        for other in others:
            for mine, theirs in zip(first, other, strict=True):
                assert (mine is None) == (theirs is None)
                if mine is not None:
                    assert mine.dtype == theirs.dtype
                    np.testing.assert_array_equal(mine[goes_on], theirs[goes_on], f"step {step}")
        if step == 0:
            continue
        for value in points:
            points[value] += int((first[1][goes_on] == value).sum())
        over = first[2] | first[3]
        ends += int((over & goes_on).sum())
        goes_on &= ~over  # the next episode's serves come from generators of their own
        if not goes_on.any():
            break
    assert min(points.values()) > 3 and ends > 3, "both make points, and episodes end"


def test_all_three_have_the_same_spec_but_for_seeds():
    numpy_spec = PixelPong(1, size=42).spec
    assert TorchPong(1, device=CPU, size=42).spec == numpy_spec
    assert JaxPong(size=42).spec.to_dict() == numpy_spec.to_dict() | {"separately_seedable": True}


def test_all_three_draw_their_serves_from_all_there_are():
    keys = jax.random.split(jax.random.key(0), 5000)
    by_jax = jax.vmap(JaxPong(size=21).reset)(keys).state.number
    by_numpy, by_torch = PixelPong(5000, size=21), TorchPong(5000, size=21, device=CPU)
    by_numpy.reset([0])
    by_torch.reset([0])
    for numbers in (by_numpy._state[-1], by_torch._state[-1].numpy(), np.asarray(by_jax)):
        assert 0 <= numbers.min() < 100 and SEEDS - 100 < numbers.max() < SEEDS
        assert len(np.unique(numbers)) > 4700
