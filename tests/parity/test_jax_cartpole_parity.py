"""`lockstep/Cartpole-v0` in numpy, torch and JAX: the same states and rewards."""

import jax
import jax.numpy as jnp
import numpy as np
import torch

from lockstep.envs.cartpole import Cartpole
from lockstep.envs.cartpole_dynamics import START, CartpoleState
from lockstep.jax.envs.cartpole import Cartpole as JaxCartpole
from lockstep.jax.envs.cartpole import CartpoleEpisode
from lockstep.torch.envs.cartpole import Cartpole as TorchCartpole

ENVS, STEPS = 64, 20


def given(seed):
    draw = np.random.default_rng(seed)
    state = (draw.uniform(-1, 1, (4, ENVS)) * np.array(START)[:, None] * [[2.9], [2], [2], [2]]).astype(np.float32)
    return state, draw.standard_normal((STEPS, ENVS, 1), dtype=np.float32) * 2


def of_numpy(state, actions, **kwargs):
    env = Cartpole(ENVS, **kwargs)
    env._state[:] = state
    for action in actions:
        _, reward, terminated, _, final = env.step(action)
        yield final, reward, terminated
        env._state[:] = final.T  # without the reset


def of_torch(state, actions, **kwargs):
    env = TorchCartpole(ENVS, device=torch.device("cpu"), **kwargs)
    env._state = torch.from_numpy(state.copy())
    for action in actions:
        step = env.step(torch.from_numpy(action))
        yield step.final.policy.numpy(), step.reward.numpy(), step.terminated.numpy()
        env._state = step.final.policy.T


def of_jax(state, actions, **kwargs):
    env = JaxCartpole(**kwargs)
    step = jax.jit(jax.vmap(env.step, (0, 0, None)))
    episode = CartpoleEpisode(CartpoleState(*map(jnp.asarray, state)), jnp.zeros(ENVS, jnp.int32))
    for action in actions:
        episode, final, reward, terminated, _ = step(episode, jnp.asarray(action), None)
        yield np.asarray(final), np.asarray(reward), np.asarray(terminated)


def test_all_three_take_the_same_steps():
    for seed, kwargs in enumerate(({}, {"cart_mass": 2.0, "pole_mass": 0.3, "pole_length": 0.7})):
        rows = zip(*(take(*given(seed), **kwargs) for take in (of_numpy, of_torch, of_jax)), strict=True)
        ended = np.zeros(ENVS, bool)
        for numpy_step, *others in rows:
            for other in others:
                scale = 1 + np.abs(numpy_step[0])
                assert (np.abs(other[0] - numpy_step[0]) / scale).max() < 1e-5
                np.testing.assert_allclose(other[1], numpy_step[1], atol=1e-5)
                np.testing.assert_array_equal(other[2], numpy_step[2])
            ended |= numpy_step[2]
        assert ended.any() and not ended.all()


def test_all_three_have_the_same_spec_but_for_seeds():
    numpy_spec, torch_spec = Cartpole(1).spec, TorchCartpole(1, device=torch.device("cpu")).spec
    assert numpy_spec == torch_spec
    assert JaxCartpole().spec.to_dict() == numpy_spec.to_dict() | {"separately_seedable": True}


def test_all_three_start_episodes_in_the_same_ranges():
    keys = jax.random.split(jax.random.key(0), 5000)
    env = JaxCartpole()
    firsts = (
        Cartpole(5000).reset([0]),
        TorchCartpole(5000, device=torch.device("cpu")).reset([0]).policy.numpy(),
        np.asarray(jax.vmap(env.observe)(jax.vmap(env.reset)(keys))),
    )
    for first in firsts:
        assert (np.abs(first) <= np.array(START) + 1e-6).all()
        assert (np.abs(first).max(0) > 0.99 * np.array(START)).all()
        assert (np.abs(first.mean(0)) < 0.05 * np.array(START)).all()
