"""Epsilon-greedy exploration."""

import math

import numpy as np
import pytest

from lockstep.algorithms.dqn import DQNConfig
from lockstep.envs.spec import ActionSpec
from lockstep.errors import ConfigError
from lockstep.experience.exploration import EpsilonGreedy, UniformStart, epsilon
from lockstep.experience.sampling import NoisyDeterministic, SquashedGaussian

FOUR = ActionSpec("discrete", (4,))
LOW, HIGH = (-2.0, 0.5), (2.0, 3.5)
BOUNDED = ActionSpec("continuous", (2,), LOW, HIGH)
SAMPLERS = {"sac": SquashedGaussian(BOUNDED), "td3": NoisyDeterministic(BOUNDED, 0.3)}


def test_linear_epsilon_falls_to_its_end_and_stays():
    config = DQNConfig(epsilon_start=0.9, epsilon_end=0.1, epsilon_steps=1000)
    assert [epsilon(config, steps) for steps in (0, 250, 1000, 10**9)] == pytest.approx([0.9, 0.7, 0.1, 0.1])


def test_exponential_epsilon_is_that_of_di_engine():
    # Its Pong example: 0.40 after 250 000 steps of all ranks, 0.067 after a million.
    config = DQNConfig(epsilon_schedule="exponential", epsilon_steps=250_000)
    assert epsilon(config, 0) == 1.0
    assert epsilon(config, 250_000) == pytest.approx(0.05 + 0.95 / math.e)
    assert epsilon(config, 1_000_000) == pytest.approx(0.0674, abs=1e-4)


def test_learned_noise_replaces_epsilon_unless_both_are_asked_for():
    assert epsilon(DQNConfig(noisy=True), 0) == 0.0
    assert epsilon(DQNConfig(noisy=True, epsilon_start=0.5), 0) == 0.5
    assert epsilon(DQNConfig(noisy=True, epsilon_start=0.5), 10**9) == 0.0


def test_no_steps_are_the_end_at_once():
    assert epsilon(DQNConfig(epsilon_steps=0), 0) == 0.05


def test_actions_are_uniformly_random_with_probability_epsilon():
    explorer, rows = EpsilonGreedy(FOUR, 0.4), 100_000
    values = np.tile(np.float32([0, 3, 1, 2]), (rows, 1))
    actions = explorer.sample(values, explorer.draw_noise(np.random.default_rng(0), (rows,)))
    counts = np.bincount(actions, minlength=4) / rows
    assert counts == pytest.approx([0.1, 0.7, 0.1, 0.1], abs=0.01)


def test_without_epsilon_only_the_best_and_with_1_never_by_value():
    explorer = EpsilonGreedy(FOUR)
    values = np.random.default_rng(0).standard_normal((3, 50, 4)).astype(np.float32)
    noise = explorer.draw_noise(np.random.default_rng(1), (3, 50))
    assert (explorer.sample(values, noise) == values.argmax(-1)).all()
    explorer.epsilon = 1.0
    assert (explorer.sample(values, noise) == explorer.sample(-values, noise)).all()


def test_of_equal_values_the_first_is_the_best():
    assert EpsilonGreedy(FOUR).mode(np.float32([[1, 2, 2, 0]])) == [1]


def test_environments_explore_independently():
    explorer = EpsilonGreedy(FOUR, 0.5)
    values = np.zeros((1000, 4), np.float32)
    coins = explorer.sample(values, explorer.draw_noise(np.random.default_rng(0), (1000,))) != 0
    assert 0.3 < coins.mean() < 0.45, "half of the environments explore, of them three of four away from action 0"


def test_how_far_a_stream_has_come_does_not_depend_on_epsilon():
    ahead = []
    for of in (0.0, 1.0):
        explorer, generator = EpsilonGreedy(FOUR, of), np.random.default_rng(0)
        explorer.sample(np.zeros((8, 4)), explorer.draw_noise(generator, (8,)))
        ahead.append(generator.random())
    assert ahead[0] == ahead[1]


@pytest.mark.parametrize(
    ("action", "kind"),
    [
        (ActionSpec("multi_discrete", (2, 3)), "several choices"),
        (ActionSpec("continuous", (2,), (-1.0, -1.0), (1.0, 1.0)), "real numbers"),
    ],
)
def test_other_actions_are_refused(action, kind):
    with pytest.raises(ConfigError, match=f"discrete action.*{kind}.*algo"):
        EpsilonGreedy(action)


@pytest.mark.parametrize("algo", SAMPLERS)
def test_noise_after_the_uniform_start_is_standard_normal(algo):
    explorer = UniformStart(BOUNDED, SAMPLERS[algo])
    explorer.random = False
    noise = explorer.draw_noise(np.random.default_rng(0), (100, 50))
    assert noise.shape == (100, 50, 2)
    assert noise.dtype == np.float32
    np.testing.assert_allclose(noise.mean((0, 1)), 0.0, atol=0.05)
    np.testing.assert_allclose(noise.std((0, 1)), 1.0, atol=0.03)
    np.testing.assert_allclose((noise**4).mean((0, 1)), 3.0, atol=0.4)
    assert abs(np.corrcoef(noise.reshape(-1, 2).T)[0, 1]) < 0.05


@pytest.mark.parametrize("algo", SAMPLERS)
def test_actions_after_the_uniform_start_are_the_policys(algo):
    explorer = UniformStart(BOUNDED, SAMPLERS[algo])
    explorer.random = False
    generator = np.random.default_rng(0)
    parameters = 2 * generator.standard_normal((1000, SAMPLERS[algo].num_parameters), dtype=np.float32)
    noise = explorer.draw_noise(generator, (1000,))
    center, half_range = np.array([0.0, 2.0]), np.array([2.0, 1.5])
    if algo == "sac":
        scaled = np.tanh(parameters[:, :2] + np.exp(parameters[:, 2:].clip(-20, 2)) * noise)
    else:
        unclipped = np.tanh(parameters) + 0.3 * noise
        scaled = np.clip(unclipped, -1.0, 1.0)
        assert 0.05 < (scaled != unclipped).mean() < 0.5, "too few actions at the bounds, or too many"
    drawn = explorer.sample(parameters, noise)
    assert drawn.dtype == np.float32
    np.testing.assert_allclose(drawn, center + half_range * scaled, rtol=1e-5, atol=1e-5)
    assert ((drawn >= LOW) & (drawn <= HIGH)).all()
