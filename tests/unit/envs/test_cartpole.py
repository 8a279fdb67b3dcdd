"""`lockstep/Cartpole-v0` in numpy: rules by hand. Its twins: tests/parity/test_jax_cartpole_parity.py."""

import math

import numpy as np
import pytest

from lockstep.envs.cartpole import Cartpole
from lockstep.envs.make import env_spec, stays_on_device
from lockstep.errors import ConfigError
from lockstep.run import EnvConfig

CARTPOLE = "lockstep/Cartpole-v0"
LINEAR_FEEDBACK = np.array([[0.42], [-4.93], [0.86], [-1.05]], np.float32)


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


def test_cartpole_is_pushed_by_at_most_400_newtons():
    # A very light pole hardly matters: two steps of force over mass, with the damping of 10 N s/m implicit.
    kwargs = {"pole_mass": 1e-6, "cart_mass": 2.0}
    for action, force in ((1.0, 100.0), (9.0, 400.0)):
        final = cartpole([0, 0, 0, 0], **kwargs).step(np.array([[action]], np.float32))[4][0]
        first = force / 120 / (2 + 10 / 120)
        second = first + (force - 10 * first) / 120 / (2 + 10 / 120)
        assert final[2] == pytest.approx(second, rel=1e-4)
        assert final[0] == pytest.approx((first + second) / 120, rel=1e-4)
        assert final[1] > 0  # a push to + turns the pole to +


def test_a_hanging_pole_swings_with_the_period_of_its_inertia():
    env = cartpole([0, math.pi - 0.05, 0, 0], cart_mass=1e9)
    angles = [env.step(np.zeros((1, 1), np.float32))[4][0, 1] - math.pi for _ in range(200)]
    crossings = np.flatnonzero(np.diff(np.sign(angles)) != 0)
    period = 2 * np.diff(crossings).mean() / 60
    squared = 9.81 * 0.47 / (0.0836333 + 0.47**2)
    assert period == pytest.approx(2 * math.pi / math.sqrt(squared), rel=0.02)


def test_one_step_equals_the_published_recursion():
    # The recursion of Isaac Lab 3.0.0 as measured, written out for one state.
    state, action = np.array([0.3, 0.4, -0.2, 0.5]), 0.7
    s, a, v, w = state
    for _ in range(2):
        c, n, h = math.cos(a), math.sin(a), 1 / 120
        mass = [[2 + 10 * h, -0.47 * c], [-0.47 * c, 0.0836333 + 0.47**2]]
        right = [100 * action - 10 * v - 0.47 * w * w * n, 0.47 * 9.81 * n]
        dv, dw = np.linalg.solve(mass, right)
        v, w = v + h * dv, w + h * dw
        s, a = s + h * v, a + h * w
    final = cartpole(state).step(np.array([[action]], np.float32))[4][0]
    np.testing.assert_allclose(final, [s, a, v, w], atol=1e-6)


def test_cartpole_can_be_balanced_by_linear_feedback():
    env = Cartpole(64)
    observation = env.reset([0])
    total = np.zeros(64)
    for _ in range(300):
        observation, reward, terminated, truncated, _ = env.step(observation @ LINEAR_FEEDBACK)
        assert not terminated.any()
        total += reward
    assert truncated.all() and total.mean() > 4.94 > env.spec.reward_threshold


@pytest.mark.parametrize("name", ["cart_mass", "pole_mass", "pole_length"])
def test_what_has_no_mass_or_length_is_refused(name):
    with pytest.raises(ConfigError, match=f"env.kwargs {name}=0 must be greater than 0"):
        env_spec(CARTPOLE, EnvConfig(kwargs={name: 0}))


def test_placement_decides_where_ppo_steps_the_environments():
    for framework in ("torch", "jax"):
        for preferred in (False, True):
            decided = stays_on_device(CARTPOLE, EnvConfig(), framework, preferred=preferred)
            assert decided == preferred
        assert stays_on_device(CARTPOLE, EnvConfig(placement="device"), framework, preferred=False)
        assert not stays_on_device(CARTPOLE, EnvConfig(placement="host"), framework, preferred=True)
        assert not stays_on_device("CartPole-v1", EnvConfig(), framework, preferred=True)
        with pytest.raises(ConfigError, match=r"env.placement=device: task=CartPole-v1 is not written for"):
            stays_on_device("CartPole-v1", EnvConfig(placement="device"), framework, preferred=True)
    assert stays_on_device("jax/CartPole-v1", EnvConfig(), "jax", preferred=False)
    assert not stays_on_device("jax/CartPole-v1", EnvConfig(), "torch", preferred=False)
