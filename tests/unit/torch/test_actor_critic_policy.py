"""Squashed normal distributions, critics and policies of SAC and TD3."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from first_weights import check_first_weights
from lockstep.algorithms.sac import SACConfig
from lockstep.algorithms.td3 import TD3Config
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.experience.exploration import UniformStart
from lockstep.experience.normalize import RunningMoments
from lockstep.run import NetworkConfig, Run
from lockstep.torch.continuous_policy import ContinuousPolicy
from lockstep.torch.deploy.acting_export import GreedyPolicy
from lockstep.torch.distributions import SquashedGaussian
from lockstep.torch.export import load_player, load_policy, save_policy
from lockstep.torch.networks import TorchActor, actor_of

AT_BOUND = torch.tensor(1 - 1e-5, dtype=torch.float64)
LOW, HIGH = (-2.0, 0.5), (2.0, 3.5)
ACTION = ActionSpec("continuous", (2,), LOW, HIGH)
SPEC = EnvSpec(3, ACTION, "same_step", True)
NETWORK = NetworkConfig(hidden=(8, 5), activation="relu")


def test_log_density_integrates_to_one():
    """Over the whole interval of an action, in the environment's units."""
    action = ActionSpec("continuous", (1,), (-1.0,), (3.0,))
    distribution = SquashedGaussian(action)
    grid = torch.linspace(-1.0, 1.0, 200_001)[1:-1].unsqueeze(1)
    parameters = torch.tensor([[0.3, -0.7]]).expand(len(grid), -1)
    density = distribution.log_density(parameters, grid, torch.full((1,), 2.0).double(), AT_BOUND).exp()
    assert float(density.sum() * (4.0 / 200_000)) == pytest.approx(1.0, rel=1e-3)


def test_log_density_of_drawn_action_is_that_of_its_value():
    distribution = SquashedGaussian(ACTION)
    generator = torch.Generator().manual_seed(0)
    parameters = 0.5 * torch.randn(100, 4, generator=generator)  # far from the bounds, where float32 has digits left
    noise = torch.randn(100, 2, generator=generator)
    action, log_prob = distribution.scaled_action_and_log_prob(parameters, noise)
    center, half_range = torch.from_numpy(distribution.center), torch.from_numpy(distribution.half_range)
    in_units = distribution.log_density(parameters, action, half_range.double(), AT_BOUND)
    assert torch.allclose(in_units, (log_prob - half_range.log().sum()).double(), atol=1e-3)
    sampled = distribution.sample(parameters.numpy(), noise.numpy())
    assert np.allclose(sampled, (center + half_range * action).numpy(), atol=1e-6)
    assert ((sampled >= LOW) & (sampled <= HIGH)).all()


def test_log_prob_and_its_gradient_are_finite_where_tanh_rounds_to_one():
    distribution = SquashedGaussian(ACTION)
    mean = torch.tensor([[40.0, -40.0]], requires_grad=True)
    action, log_prob = distribution.scaled_action_and_log_prob(torch.cat([mean, mean * 0], -1), torch.zeros(1, 2))
    log_prob.sum().backward()
    assert (action.abs() == 1).all()
    assert float(log_prob.detach()) == pytest.approx(2 * (80 - 2 * math.log(2) - 0.5 * math.log(2 * math.pi)))
    assert mean.grad is not None and mean.grad.isfinite().all()


@pytest.mark.parametrize("config", [SACConfig(layer_norm=True, num_critics=3), TD3Config()], ids=["sac", "td3"])
def test_numpy_and_torch_act_alike(config):
    policy = ContinuousPolicy(SPEC, NETWORK, config, seed=1)
    observation = np.random.default_rng(0).standard_normal((5, 3), dtype=np.float32)
    fast, plain = (
        actor_of(policy, torch.device("cpu"))(observation),
        TorchActor(policy, torch.device("cpu"))(observation),
    )
    assert not isinstance(actor_of(policy, torch.device("cpu")), TorchActor)
    assert np.allclose(fast, plain, atol=1e-6)


@pytest.mark.parametrize("config", [SACConfig(), TD3Config(num_critics=1)], ids=["sac", "td3"])
@pytest.mark.parametrize("initialization", [None, "uniform", "orthogonal"])
def test_first_weights_are_those_of_the_setting(config, initialization):
    policy = ContinuousPolicy(SPEC, replace(NETWORK, initialization=initialization), config, seed=3)
    check_first_weights({name: p.numpy(force=True) for name, p in policy.named_parameters()}, initialization)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_the_first_critics_alone_have_the_values_that_they_have_among_all(layer_norm):
    critics = ContinuousPolicy(SPEC, NETWORK, SACConfig(layer_norm=layer_norm, num_critics=3), seed=1).critics
    observation, action = torch.randn(6, 3), torch.rand(6, 2)
    assert torch.allclose(critics(observation, action, 2), critics(observation, action)[:2], atol=1e-6)


@pytest.mark.parametrize("algo", ["sac", "td3"])
def test_policy_file_plays_the_mean_action(tmp_path, algo):
    run = Run(task="Pendulum-v1", algo=algo, network=NETWORK)
    policy = ContinuousPolicy(SPEC, NETWORK, run.algorithm, seed=1)
    save_policy(tmp_path / "policy.safetensors", policy, None, run)
    loaded, _ = load_policy(tmp_path / "policy.safetensors")
    assert isinstance(loaded, ContinuousPolicy)
    assert all(torch.equal(a, b) for a, b in zip(policy.parameters(), loaded.parameters(), strict=True))
    observation = np.array([0.1, -0.4, 2.0], np.float32)
    _, player = load_player(tmp_path / "policy.safetensors")
    parameters = policy.actor(torch.from_numpy(observation))[:2].detach().numpy()
    expected = (np.add(HIGH, LOW) + np.subtract(HIGH, LOW) * np.tanh(parameters)) / 2
    assert np.allclose(player.act(observation), expected, atol=1e-6)
    exported = GreedyPolicy(policy, RunningMoments(3))(torch.from_numpy(observation[None]))
    assert np.allclose(exported["action"].detach().numpy()[0], expected, atol=1e-6)


def test_a_player_refuses_observations_of_another_shape(tmp_path):
    """A choice of a discrete space would be broadcast against one-hot vectors."""
    run = Run(task="Pendulum-v1", algo="sac", network=NETWORK)
    save_policy(tmp_path / "policy.safetensors", ContinuousPolicy(SPEC, NETWORK, run.algorithm), None, run)
    _, player = load_player(tmp_path / "policy.safetensors")
    for observation in (2, [1.0, 2.0], np.zeros((2, 3)), None, {"goal": np.zeros(3)}, [[1.0], [2.0, 3.0]]):
        with pytest.raises(
            ValueError, match=r"observes \[3\] numbers, not (\[\d\]|a dict|a list): .* one-hot.*frame_stack"
        ):
            player.act(observation)
    with pytest.raises(ValueError, match=r"the observation is not finite at \[1\]: \[0.0, nan, 0.0\]"):
        player.act([0.0, float("nan"), 0.0])
    assert player.act([[1.0], [2.0], [3.0]]).shape == (2,)


def test_first_actions_are_uniform_within_the_bounds():
    explorer = UniformStart(ACTION, SquashedGaussian(ACTION))
    noise = explorer.draw_noise(np.random.default_rng(0), (1000, 4))
    drawn = explorer.sample(np.zeros((1000, 4, 4), np.float32), noise)
    assert np.allclose(drawn.mean((0, 1)), np.add(LOW, HIGH) / 2, atol=0.1)
    assert np.allclose(drawn.std((0, 1)), np.subtract(HIGH, LOW) / math.sqrt(12), rtol=0.05)
    explorer.random = False
    assert explorer.draw_noise(np.random.default_rng(0), (2, 3)).shape == (2, 3, 2)


def test_dropout_follows_its_generator():
    policy = ContinuousPolicy(SPEC, NETWORK, SACConfig(dropout=0.5), seed=1)
    observation, action = torch.randn(6, 3), torch.rand(6, 2)
    undisturbed = policy.critics(observation, action)
    policy.critics.generator = torch.Generator()

    def dropped(seed: int) -> torch.Tensor:
        policy.critics.generator.manual_seed(seed)
        return policy.critics(observation, action)

    assert torch.equal(dropped(0), dropped(0))
    assert not torch.equal(dropped(0), dropped(1))
    assert not torch.equal(dropped(0), undisturbed)


def test_exploration_noise_of_td3_has_the_deviation_of_the_setting():
    policy = ContinuousPolicy(SPEC, NETWORK, TD3Config(exploration_noise=0.25), seed=1)
    moved = policy.distribution.sample(np.zeros((1, 2), np.float32), np.float32([[1.0, -2.0]]))
    half_range = np.subtract(HIGH, LOW) / 2
    assert np.allclose((moved - policy.distribution.center) / half_range, [[0.25, -0.5]])
