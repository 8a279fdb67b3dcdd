"""Distributions against the frequencies of draws and against definitions; parity with torch stands in tests/parity."""

import numpy as np
import pytest

pytest.importorskip("jax")

import jax

from lockstep.envs.spec import ActionSpec
from lockstep.experience import sampling
from lockstep.jax.distributions import (
    LOG_STD,
    Categorical,
    DiagonalGaussian,
    MultiCategorical,
    distribution_of,
)

DISCRETE, MULTI = ActionSpec("discrete", (5,)), ActionSpec("multi_discrete", (2, 4, 3))
CONTINUOUS = ActionSpec("continuous", (3,), (-1.0,) * 3, (1.0,) * 3)
STD = {LOG_STD: np.float32([-1.0, 0.0, 0.5])}


def made(action):
    return distribution_of(action, lambda: STD[LOG_STD], state_dependent_std=False)


def test_each_kind_of_action_has_its_distribution():
    kinds = {
        DISCRETE: (Categorical, sampling.Categorical, 5),
        MULTI: (MultiCategorical, sampling.MultiCategorical, 9),
        CONTINUOUS: (DiagonalGaussian, sampling.DiagonalGaussian, 3),
    }
    for action, (kind, sampler, parameters) in kinds.items():
        one = made(action)
        assert type(one) is kind
        assert type(one.sampler) is sampler
        assert one.num_parameters == one.sampler.num_parameters == parameters == action.num_parameters


def test_extreme_logits_stay_finite_and_so_do_their_gradients():
    logits = np.float32([[1e4, -1e4, 0.0, 0.0, 0.0]])

    def of_first(logits):
        log_prob, entropy = made(DISCRETE).log_prob_and_entropy({}, logits, np.array([0]))
        return (log_prob + entropy).sum(), (log_prob, entropy)

    gradient, (log_prob, entropy) = jax.grad(of_first, has_aux=True)(logits)
    assert log_prob.tolist() == [0.0]
    assert entropy.tolist() == [0.0]
    assert np.isfinite(gradient).all()


def test_noise_of_the_device_lets_no_unlikely_action_win():
    """Every uniform number that float32 noise is made from: 2**23 of them, from 0 on."""
    drawn = np.asarray(made(DISCRETE).draw_noise(jax.random.key(0), (1 << 20,)))
    assert -4.5 < drawn.min() < drawn.max() < 16
    uniform = np.arange(1 << 23, dtype=np.float32) / (1 << 23)
    uniform[0] = np.finfo(np.float32).tiny
    noise = np.asarray(jax.jit(lambda u: -jax.numpy.log(-jax.numpy.log(u)))(uniform))
    assert -4.5 < noise.min() < noise.max() < 16


@pytest.mark.parametrize("on_device", [True, False])
def test_draws_have_the_frequencies_of_the_softmax(on_device):
    categorical, logits = made(DISCRETE), np.array([0.0, 1.0, -1.0, 2.0, -30.0], np.float32)
    if on_device:
        noise = categorical.draw_noise(jax.random.key(0), (20_000,))
        drawn = np.asarray(jax.jit(categorical.sample)({}, np.broadcast_to(logits, noise.shape), noise))
        assert drawn.dtype == np.int32
    else:
        noise = categorical.sampler.draw_noise(np.random.default_rng(0), (20_000,))
        drawn = categorical.sampler.sample(np.broadcast_to(logits, noise.shape), noise)
    assert noise.shape == (20_000, 5)
    expected = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(np.bincount(drawn, minlength=5) / 20_000, expected, atol=0.015)


def test_each_choice_has_its_own_frequencies():
    multi, logits = made(MULTI), np.array([0, 1, 0, 0, 0, 2, 1, 0, -1], np.float32)
    noise = multi.draw_noise(jax.random.key(1), (20_000,))
    drawn = np.asarray(multi.sample({}, np.broadcast_to(logits, noise.shape), noise))
    assert drawn.shape == (20_000, 3)
    for column, part in zip(drawn.T, np.split(logits, [2, 6]), strict=True):
        expected = np.exp(part) / np.exp(part).sum()
        np.testing.assert_allclose(np.bincount(column, minlength=len(part)) / 20_000, expected, atol=0.015)
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 0.03


def test_gaussian_draws_have_its_mean_and_deviation():
    gaussian, mean = made(CONTINUOUS), np.float32([1.0, -2.0, 0.0])
    noise = gaussian.draw_noise(jax.random.key(2), (20_000,))
    drawn = np.asarray(gaussian.sample(STD, np.broadcast_to(mean, noise.shape), noise))
    assert drawn.dtype == np.float32
    np.testing.assert_allclose(drawn.mean(0), mean, atol=0.04)
    np.testing.assert_allclose(drawn.std(0), np.exp(STD[LOG_STD]), rtol=0.03)


def test_the_log_probability_is_that_of_a_normal_density():
    action, mean = np.float32([[0.5, 1.0, -1.0]]), np.float32([[0.0, 2.0, 0.0]])
    log_prob, entropy = made(CONTINUOUS).log_prob_and_entropy(STD, mean, action)
    std = np.exp(STD[LOG_STD])
    density = np.exp(-(((action - mean) / std) ** 2) / 2) / (std * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(log_prob, np.log(density).sum(-1), rtol=1e-5)
    np.testing.assert_allclose(entropy, [np.log(std * np.sqrt(2 * np.pi * np.e)).sum()], rtol=1e-5)


@pytest.mark.parametrize(
    ("action", "parameters", "mode"),
    [
        (DISCRETE, [[0, 3, 1, 2, -1]], [1]),
        (MULTI, [[0, 1, 0, 5, 1, 2, 7, 0, 0]], [[1, 1, 0]]),
        (CONTINUOUS, [[0.5, -3.0, 0.0]], [[0.5, -3.0, 0.0]]),
    ],
)
def test_the_mode_is_the_most_likely_action(action, parameters, mode):
    parameters = np.array(parameters, np.float32)
    assert made(action).mode(STD, parameters).tolist() == made(action).sampler.mode(parameters).tolist() == mode
