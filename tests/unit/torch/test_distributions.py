"""Against torch.distributions and against the frequencies of draws."""

import numpy as np
import pytest
import torch
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Independent, Normal

from lockstep.envs.spec import ActionSpec
from lockstep.experience.sampling import gumbel
from lockstep.torch.distributions import (
    Categorical,
    DiagonalGaussian,
    MultiCategorical,
    StateDependentGaussian,
    distribution_of,
)

DISCRETE, MULTI = ActionSpec("discrete", (5,)), ActionSpec("multi_discrete", (2, 4, 3))
CONTINUOUS = ActionSpec("continuous", (3,), (-1.0,) * 3, (1.0,) * 3)


def drawn_actions(distribution, parameters, shape, *, on_tensors):
    """Actions [*shape, ...] of the same parameters [P] in every row, by the sampler in numpy or its twin in torch."""
    rows = np.broadcast_to(np.array(parameters, np.float32), (*shape, len(parameters)))
    if not on_tensors:
        return distribution.sample(rows, distribution.draw_noise(np.random.default_rng(0), shape))
    noise = distribution.draw_noise_tensor(torch.Generator().manual_seed(0), shape)
    return distribution.sample_tensor(torch.from_numpy(rows.copy()), noise).detach().numpy()


def test_each_kind_of_action_has_its_distribution():
    kinds = {DISCRETE: (Categorical, 5), MULTI: (MultiCategorical, 9), CONTINUOUS: (DiagonalGaussian, 3)}
    for action, (kind, parameters) in kinds.items():
        made = distribution_of(action)
        assert type(made) is kind
        assert made.num_parameters == parameters == action.num_parameters
    assert distribution_of(CONTINUOUS, -1.5).log_std.tolist() == [-1.5] * 3


def test_categorical_is_torchs():
    logits, action = 3 * torch.randn(50, 5), torch.randint(5, (50,))
    log_prob, entropy = Categorical(DISCRETE).log_prob_and_entropy(logits, action)
    reference = TorchCategorical(logits=logits)
    torch.testing.assert_close(log_prob, reference.log_prob(action))
    torch.testing.assert_close(entropy, reference.entropy())


def test_multi_categorical_is_the_sum_of_torchs():
    logits = 2 * torch.randn(50, 9)
    action = torch.stack([torch.randint(n, (50,)) for n in MULTI.sizes], -1)
    log_prob, entropy = MultiCategorical(MULTI).log_prob_and_entropy(logits, action)
    references = [TorchCategorical(logits=part) for part in logits.split(list(MULTI.sizes), -1)]
    torch.testing.assert_close(log_prob, sum(r.log_prob(action[:, i]) for i, r in enumerate(references)))
    torch.testing.assert_close(entropy, sum(r.entropy() for r in references))


def test_gaussian_is_torchs():
    gaussian = DiagonalGaussian(CONTINUOUS)
    gaussian.log_std.data = torch.tensor([-2.0, 0.0, 1.0])
    mean, action = torch.randn(50, 3), 2 * torch.randn(50, 3)
    log_prob, entropy = gaussian.log_prob_and_entropy(mean, action)
    reference = Independent(Normal(mean, gaussian.log_std.exp()), 1)
    torch.testing.assert_close(log_prob, reference.log_prob(action))
    torch.testing.assert_close(entropy, reference.entropy())
    log_prob.sum().backward()
    assert gaussian.log_std.grad is not None


def test_extreme_logits_stay_finite():
    logits = torch.tensor([[1e4, -1e4, 0.0, 0.0, 0.0]])
    log_prob, entropy = Categorical(DISCRETE).log_prob_and_entropy(logits, torch.tensor([0]))
    assert log_prob.tolist() == [0.0]
    assert entropy.tolist() == [0.0]


@pytest.mark.parametrize("on_tensors", [False, True])
def test_draws_have_the_frequencies_of_the_softmax(on_tensors):
    logits = [0.0, 1.0, -1.0, 2.0, -30.0]
    drawn = drawn_actions(Categorical(DISCRETE), logits, (20, 1000), on_tensors=on_tensors)
    assert drawn.shape == (20, 1000)
    assert drawn.dtype == np.int64
    expected = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(np.bincount(drawn.ravel(), minlength=5) / 20_000, expected, atol=0.015)


@pytest.mark.parametrize("on_tensors", [False, True])
def test_each_choice_has_its_own_frequencies(on_tensors):
    logits = [0, 1, 0, 0, 0, 2, 1, 0, -1]
    drawn = drawn_actions(MultiCategorical(MULTI), logits, (20_000,), on_tensors=on_tensors)
    assert drawn.shape == (20_000, 3)
    for column, part in zip(drawn.T, np.split(logits, [2, 6]), strict=True):
        expected = np.exp(part) / np.exp(part).sum()
        np.testing.assert_allclose(np.bincount(column, minlength=len(part)) / 20_000, expected, atol=0.015)
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 0.03


@pytest.mark.parametrize("on_tensors", [False, True])
@pytest.mark.parametrize("kind", [DiagonalGaussian, StateDependentGaussian])
def test_gaussian_draws_have_its_mean_and_deviation(kind, on_tensors):
    gaussian, parameters = kind(CONTINUOUS, 0.5), [1.0, -2.0, 0.0]
    if kind is DiagonalGaussian:
        gaussian.log_std.data = torch.tensor([-1.0, 0.0, 0.5])
    else:
        parameters += [-1.5, -0.5, 0.0]  # beside `initial_log_std`
    drawn = drawn_actions(gaussian, parameters, (20_000,), on_tensors=on_tensors)
    assert drawn.shape == (20_000, 3)
    assert drawn.dtype == np.float32
    np.testing.assert_allclose(drawn.mean(0), [1, -2, 0], atol=0.04)
    np.testing.assert_allclose(drawn.std(0), np.exp([-1, 0, 0.5]), rtol=0.03)
    assert np.abs(np.corrcoef(drawn.T) - np.eye(3)).max() < 0.03, "dimensions share noise"


@pytest.mark.parametrize(
    ("action", "parameters", "mode"),
    [
        (DISCRETE, [[0, 3, 1, 2, -1]], [1]),
        (MULTI, [[0, 1, 0, 5, 1, 2, 7, 0, 0]], [[1, 1, 0]]),
        (CONTINUOUS, [[0.5, -3.0, 0.0]], [[0.5, -3.0, 0.0]]),
    ],
)
def test_the_mode_is_the_most_likely_action(action, parameters, mode):
    assert distribution_of(action).mode(np.array(parameters, np.float32)).tolist() == mode


def test_a_variate_of_zero_is_no_noise_that_lets_any_action_win():
    class Zero:
        def standard_exponential(self, shape, dtype):
            return np.zeros(shape, dtype)

    largest = 24 * np.log(2)  # a probability of 2**-24, as fine as float32 numbers below 1 are
    np.testing.assert_allclose(gumbel(Zero(), (3,)), largest, rtol=1e-6)
    drawn = gumbel(np.random.default_rng(217), (50_000,))  # numpy's variate number 30051 of this seed is 0
    assert drawn.dtype == np.float32
    assert drawn[30051] == drawn.max() < 16.7
    assert np.sort(drawn)[-2] < 13


def test_all_other_noise_is_numpys():
    variates = np.random.default_rng(0).standard_exponential((1000, 3), dtype=np.float32)
    assert np.array_equal(gumbel(np.random.default_rng(0), (1000, 3)), -np.log(variates))
