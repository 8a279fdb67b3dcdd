"""Gaussian actions whose deviations depend on the observation: numpy, torch and JAX against torch.distributions."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("jax")

import jax
import torch
from networks_alike import observed, spec_of
from torch.distributions import Independent, Normal

from lockstep.jax import distributions as jax_distributions
from lockstep.jax import export as jax_export
from lockstep.run import NetworkConfig, Run
from lockstep.torch.distributions import StateDependentGaussian, distribution_of
from lockstep.torch.export import load_player, load_policy, save_policy
from lockstep.torch.networks import Policy

SPEC = spec_of("continuous")
NETWORK = NetworkConfig(hidden=(8,), initial_log_std=-0.5, state_dependent_std=True)


def made():
    ours = distribution_of(SPEC.action, -0.5, state_dependent_std=True)
    theirs = jax_distributions.distribution_of(SPEC.action, lambda: None, -0.5, state_dependent_std=True)
    assert isinstance(ours, StateDependentGaussian)
    assert ours.num_parameters == theirs.num_parameters == 6
    return ours, theirs


def test_log_probability_and_entropy_are_those_of_normal_distributions():
    ours, theirs = made()
    draws = np.random.default_rng(0)
    parameters, action = (draws.standard_normal((50, size)).astype(np.float32) for size in (6, 3))
    found = ours.log_prob_and_entropy(torch.from_numpy(parameters), torch.from_numpy(action))
    mean, log_std = torch.from_numpy(parameters).split(3, 1)
    reference = Independent(Normal(mean, (log_std - 0.5).exp()), 1)
    torch.testing.assert_close(found, (reference.log_prob(torch.from_numpy(action)), reference.entropy()))
    for mine, wanted in zip(theirs.log_prob_and_entropy({}, parameters, action), found, strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-5, atol=1e-5)


def test_samples_are_the_same_in_numpy_torch_and_jax():
    ours, theirs = made()
    parameters = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    noise = ours.draw_noise(np.random.default_rng(1), (4,))
    assert noise.shape == (4, 3)
    assert ours.draw_noise_tensor(torch.Generator(), (2, 4)).shape == (2, 4, 3)
    assert theirs.draw_noise(jax.random.key(0), (2, 4)).shape == (2, 4, 3)
    expected = parameters[:, :3] + np.exp(parameters[:, 3:] - 0.5) * noise
    for drawn in (
        ours.sample(parameters, noise),
        ours.sample_tensor(torch.from_numpy(parameters), torch.from_numpy(noise)).numpy(),
        np.asarray(theirs.sample({}, parameters, noise)),
        theirs.sampler.sample(parameters, noise),
    ):
        np.testing.assert_allclose(drawn, expected, rtol=1e-6, atol=1e-6)
        assert drawn.dtype == np.float32
    np.testing.assert_array_equal(ours.mode(parameters), theirs.mode({}, parameters))


def test_policy_files_are_the_same_in_both_frameworks(tmp_path):
    policy = Policy(SPEC, NETWORK, seed=1)
    path = tmp_path / "policy.safetensors"
    save_policy(path, policy, None, Run(task="t", network=NETWORK))
    observation = observed(SPEC)
    expected = policy(torch.from_numpy(observation))[0].detach().numpy()
    assert expected.shape == (5, 6)
    for loaded in (load_policy(path)[0](torch.from_numpy(observation))[0].detach().numpy(),):
        np.testing.assert_array_equal(loaded, expected)
    theirs, _ = jax_export.load_policy(path)
    np.testing.assert_allclose(theirs.apply(theirs.params, observation)[0], expected, rtol=1e-5, atol=1e-5)
    action = load_player(path)[1].act(observation[0])
    np.testing.assert_allclose(action, expected[0, :3].clip(-1, 1), rtol=1e-5, atol=1e-6)
