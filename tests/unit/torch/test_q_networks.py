"""Networks that value actions: every combination of heads, noise, and how they act."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

from lockstep.algorithms.dqn import DQNConfig
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.errors import ConfigError
from lockstep.run import NetworkConfig
from lockstep.torch.flat import FlatParameters
from lockstep.torch.networks import NumpyActor, TorchActor, actor_of
from lockstep.torch.q_networks import NoisyLinear, QPolicy, noisy_actor
from lockstep.world import stream

SPEC = EnvSpec(6, ActionSpec("discrete", (3,)), "same_step", True)
PONG = EnvSpec(4 * 84 * 84, ActionSpec("discrete", (6,)), "next_step", True, image=(4, 84, 84), frames=4)
CPU = torch.device("cpu")
DISTRIBUTIONS = {"none": 1, "categorical": 11, "quantile": 7}
HEADS = list(itertools.product(DISTRIBUTIONS, [False, True], [False, True]))


def heads(distribution="none", dueling=False, noisy=False, **changes):
    config = {"num_atoms": 11, "num_quantiles": 7, "dueling": dueling, "noisy": noisy} | changes
    return DQNConfig(value_distribution=distribution, **config)


def policy_of(*head, spec=SPEC, network=None, seed=1, **changes):
    return QPolicy(spec, network or NetworkConfig(hidden=(8, 5)), heads(*head, **changes), seed)


def observations(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal((*shape, 6), dtype=np.float32)


def images(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (*shape, 4, 84, 84), dtype=np.uint8)


def equal(a, b):
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


class Own(nn.Module):
    """A network of the user's own."""

    def __init__(self, observation_size, num_outputs):
        super().__init__()
        self.layer = nn.Linear(observation_size, num_outputs)

    def forward(self, observation):
        return self.layer(observation)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("hidden", [(), (8,), (8, 5)])
def test_every_combination_of_heads_gives_values_and_learns(head, hidden):
    policy = policy_of(*head, network=NetworkConfig(hidden=hidden))
    flat = FlatParameters(policy)
    policy.set_noise(np.random.default_rng(0).standard_normal(policy.num_noise, np.float32))
    observation = torch.from_numpy(observations(4))
    outputs = policy.outputs(observation)
    assert outputs.shape == ((4, 3) if head[0] == "none" else (4, 3, DISTRIBUTIONS[head[0]]))
    q, best = policy(observation)
    assert q.shape == (4, 3)
    assert q.dtype == torch.float32
    assert torch.equal(q, policy.expected(outputs))
    assert torch.equal(best, q.max(-1).values)
    (outputs * torch.randn(outputs.shape, generator=torch.Generator().manual_seed(0))).sum().backward()
    for name, parameter in policy.named_parameters():
        assert parameter.grad.abs().sum() > 0, f"{name} does not learn"
    assert flat.gradient.count_nonzero() > len(flat.gradient) / 2


@pytest.mark.parametrize("head", HEADS)
def test_actions_follow_the_network(head):
    policy = policy_of(*head)
    actor = actor_of(policy, CPU)
    assert isinstance(actor, NumpyActor if head == ("none", False, False) else TorchActor)
    observation = observations(2, 7)
    wanted = [policy(torch.from_numpy(part))[0].detach() for part in observation]
    np.testing.assert_allclose(actor(observation), np.stack(wanted), rtol=1e-4, atol=1e-6)


def test_numpy_acts_with_the_newest_parameters():
    policy = policy_of()
    flat, observation = FlatParameters(policy), observations(1, 4)
    actor = actor_of(policy, CPU)
    flat.params.data.mul_(1.5).add_(0.1)
    np.testing.assert_allclose(actor(observation), TorchActor(policy, CPU)(observation), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("config", [NetworkConfig(hidden=(8,)), NetworkConfig(module=f"{__file__}:Own")])
def test_initial_parameters_depend_only_on_the_seed(config):
    torch.manual_seed(1)
    first = policy_of(network=config, seed=5)
    torch.manual_seed(2)
    assert equal(first, policy_of(network=config, seed=5))
    assert not equal(first, policy_of(network=config, seed=6))


def test_expected_values_are_the_means_of_the_distributions():
    atoms = policy_of("categorical", num_atoms=3, v_min=-1.0, v_max=3.0)
    logits = torch.log(torch.tensor([[[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]]]))
    torch.testing.assert_close(atoms.expected(logits), torch.tensor([[-0.5 + 0.25 + 0.75, 1.0]]))
    torch.testing.assert_close(atoms.probability(logits), logits.exp())
    quantiles = policy_of("quantile", num_quantiles=4)
    assert quantiles.expected(torch.tensor([[[1.0, 2, 3, 6]]])).tolist() == [[3.0]]
    single = policy_of("quantile", num_quantiles=1)
    assert single.outputs(torch.zeros(2, 6)).shape == (2, 3, 1)


# -- images ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", [HEADS[0], HEADS[-1], ("categorical", True, True)])
@pytest.mark.parametrize("encoder", ["nature", "impala", "wide", "small", "mlp"])
def test_images_go_through_every_encoder(encoder, head):
    network = NetworkConfig(encoder=encoder, features=16)
    policy = policy_of(*head, spec=PONG, network=network)
    policy.set_noise(np.random.default_rng(0).standard_normal(policy.num_noise, np.float32))
    outputs = policy.outputs(torch.from_numpy(images(2)))
    assert outputs.shape[:2] == (2, 6)
    assert outputs.isfinite().all()
    outputs.square().sum().backward()
    assert all(p.grad.abs().sum() > 0 for p in policy.parameters())
    policy.disable_noise()
    assert actor_of(policy, CPU)(images(3, 2)).shape == (3, 2, 6)


def test_pixels_are_taken_as_numbers_from_0_to_1():
    policy = policy_of(spec=PONG, network=NetworkConfig(encoder="small", features=16))
    seen = []
    policy.network.advantage.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    white = torch.full((1, 4, 84, 84), 255, dtype=torch.uint8)
    policy(white)
    policy(torch.ones(1, 4, 84, 84))
    torch.testing.assert_close(seen[0], seen[1])


def test_the_reference_network_is_the_references():
    """128, 128 and 512 channels, 512 units without an activation, two streams with 512 units each: 14.26 million."""
    policy = policy_of("none", True, spec=PONG, network=NetworkConfig(encoder="wide"))
    convolutions = (4 * 64 + 1) * 128 + (128 * 16 + 1) * 128 + (128 * 9 + 1) * 512
    streams = 2 * (512 + 1) * 512 + (512 + 1) * (6 + 1)
    assert sum(p.numel() for p in policy.parameters()) == convolutions + (7 * 7 * 512 + 1) * 512 + streams
    seen = []
    policy.network.value.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    policy(torch.from_numpy(images(2)))
    assert (seen[0] < 0).any(), "an activation follows the linear layer"


def test_each_dueling_stream_has_a_hidden_layer_after_the_nature_cnn():
    """As in Wang et al. (2016) and, with noise in both of its layers, in Fortunato et al. (2018)."""
    policy = policy_of("none", True, True, spec=PONG, network=NetworkConfig())
    for head, out in ((policy.network.value, 1), (policy.network.advantage, 6)):
        assert [tuple(layer.weight.shape) for layer in head.layers] == [(512, 3136), (out, 512)]
        assert all(isinstance(layer, NoisyLinear) for layer in head.layers)
    plain = policy_of(spec=PONG, network=NetworkConfig())
    assert sum(p.numel() for p in plain.parameters()) == 77_984 + 3137 * 512 + 513 * 6


# -- noise -------------------------------------------------------------------------------------------------------------


def noisy_layers(policy):
    return [module for module in policy.modules() if isinstance(module, NoisyLinear)]


def test_noise_is_that_of_the_paper():
    """Means uniform within 1 / sqrt(in), deviations 0.5 / sqrt(in), weights w + s_w * (f(e_out) f(e_in)^T)."""
    layer = NoisyLinear(16, 400, 0.5)
    layer.initialize(torch.Generator().manual_seed(0))
    for mean in (layer.weight.detach(), layer.bias.detach()):
        assert 0.24 < float(mean.abs().max()) <= 0.25
        assert abs(float(mean.mean())) < 0.03
    assert torch.equal(layer.weight_std, torch.full((400, 16), 0.125))
    assert torch.equal(layer.bias_std, torch.full((400,), 0.125))
    x = torch.randn(3, 16, generator=torch.Generator().manual_seed(1))
    assert torch.equal(layer(x), nn.functional.linear(x, layer.weight, layer.bias))
    before, after = torch.linspace(-1, 1, 16), torch.linspace(-2, 2, 400)
    layer.noise = before, after
    with torch.no_grad():
        layer.bias_std *= 3
        weight = layer.weight + layer.weight_std * torch.outer(after, before)
        wanted = nn.functional.linear(x, weight, layer.bias + layer.bias_std * after)
    torch.testing.assert_close(layer(x), wanted)


def test_noise_is_scaled_by_the_root_and_spread_over_the_layers():
    policy = policy_of("none", True, True)
    shapes = [tuple(layer.weight.shape) for layer in noisy_layers(policy)]
    assert policy.num_noise == sum(map(sum, shapes)) == (5 + 8) * 2 + (3 + 5) + (1 + 5)
    numbers = np.arange(policy.num_noise, dtype=np.float32) - 10
    policy.set_noise(numbers)
    noise = [part for layer in noisy_layers(policy) for part in layer.noise]
    assert [len(part) for part in noise] == [size for out, inner in shapes for size in (inner, out)]
    got = torch.cat(noise).numpy()
    np.testing.assert_allclose(got * np.abs(got), numbers, rtol=1e-6, atol=1e-6)


def test_noise_is_drawn_from_the_generator_and_can_be_disabled():
    policy, observation = policy_of("none", False, True), torch.from_numpy(observations(4))
    means = policy(observation)[0]
    drawn = []
    for seed in (0, 0, 1):
        policy.set_noise(np.random.default_rng(seed).standard_normal(policy.num_noise, np.float32))
        drawn.append(policy(observation)[0])
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], means)
    policy.disable_noise()
    assert torch.equal(policy(observation)[0], means)
    draws = []
    generator = np.random.default_rng(2)
    for _ in range(400):
        policy.set_noise(generator.standard_normal(policy.num_noise, np.float32))
        draws.append(policy(observation)[0].detach())
    # E f(e) = 0, so that in the last layer, which is linear, the noise has mean 0 around the noise of the one before.
    layer = noisy_layers(policy)[0].noise[0].numpy()
    assert np.isfinite(layer).all()
    assert float(torch.stack(draws).std(0).min()) > 0.05


def test_noise_has_no_effect_without_noisy_layers():
    policy, observation = policy_of(), torch.from_numpy(observations(4))
    before, generator = policy(observation)[0], np.random.default_rng(0)
    state = generator.bit_generator.state
    policy.set_noise(generator.standard_normal(policy.num_noise, np.float32))
    assert torch.equal(policy(observation)[0], before)
    assert generator.bit_generator.state == state


def test_noise_is_no_part_of_what_ranks_hold_alike():
    policy = policy_of("categorical", True, True)
    names, buffers = set(policy.state_dict()), dict(policy.named_buffers())
    policy.set_noise(np.random.default_rng(0).standard_normal(policy.num_noise, np.float32))
    assert set(policy.state_dict()) == names == {name for name, _ in policy.named_parameters()}
    assert set(buffers) == {"support"}


def test_new_noise_between_forward_and_backward_changes_no_gradient():
    policy, observation = policy_of("none", True, True), torch.from_numpy(observations(4))
    gradients = []
    for again in (False, True):
        policy.zero_grad()
        policy.set_noise(np.random.default_rng(0).standard_normal(policy.num_noise, np.float32))
        loss = policy.outputs(observation).square().sum()
        if again:
            policy.set_noise(np.random.default_rng(1).standard_normal(policy.num_noise, np.float32))
        loss.backward()
        gradients.append([p.grad.clone() for p in policy.parameters()])
    assert all(map(torch.equal, *gradients))


def test_a_copy_has_separate_noise():
    policy, observation = policy_of("none", True, True), torch.from_numpy(observations(4))
    target = copy.deepcopy(policy)
    target.set_noise(np.random.default_rng(0).standard_normal(target.num_noise, np.float32))
    assert all(layer.noise is None for layer in noisy_layers(policy))
    assert not torch.equal(policy(observation)[0], target(observation)[0])


def test_noise_of_each_row_is_that_row_alone():
    policy, observation = policy_of("quantile", True, True), torch.from_numpy(observations(4))
    numbers = np.random.default_rng(0).standard_normal((4, policy.num_noise), np.float32)
    policy.set_noise(numbers)
    together = policy(observation)[0]
    for row in range(4):
        policy.set_noise(numbers[row])
        torch.testing.assert_close(policy(observation[row : row + 1])[0][0], together[row])


def test_each_environment_has_separate_noise_on_any_rank():
    policy, observation = policy_of("none", True, True), observations(8)
    observation[1:] = observation[0]  # what differs is the noise

    def acts(envs, iteration, calls=2):
        actor = noisy_actor(policy, CPU, 3, envs)
        actor.begin(iteration)
        first = observation.reshape(len(envs), -1, 6)
        return np.stack([actor(first).reshape(8, 3) for _ in range(calls)])

    one = acts([range(8)], 5)
    assert len({tuple(q) for q in one.reshape(-1, 3)}) == 16, "noise was drawn twice"
    np.testing.assert_allclose(acts([range(4), range(4, 8)], 5), one, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(acts([range(8)], 5), one)
    assert not (acts([range(8)], 6) == one).any()
    assert all(layer.noise is None for layer in noisy_layers(policy))
    policy.set_noise(stream(3, "noise of env 2", 5).standard_normal(policy.num_noise, np.float32))
    wanted = policy(torch.from_numpy(observation[2:3]))[0][0].detach()
    np.testing.assert_allclose(one[0, 2], wanted, rtol=1e-5, atol=1e-6)


def test_shards_on_one_rank_act_as_if_alone():
    policy, observation = policy_of("none", True, True, network=NetworkConfig(hidden=(64, 64))), observations(4, 8)
    envs = [range(8 * k, 8 * k + 8) for k in range(4)]
    together = noisy_actor(policy, CPU, 0, envs)(observation)
    for k in range(4):
        alone = noisy_actor(policy, CPU, 0, envs[k : k + 1])(observation[k : k + 1])
        assert (alone[0] == together[k]).all(), "bits depend on the neighbours"


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_a_custom_network():
    network = NetworkConfig(module=f"{__file__}:Own")
    policy = policy_of("quantile", network=network)
    assert policy.outputs(torch.zeros(2, 6)).shape == (2, 3, 7)
    assert policy.network.layer.out_features == 21
    assert isinstance(actor_of(policy, CPU), TorchActor)
    for name in ("dueling", "noisy"):
        with pytest.raises(ConfigError, match=rf"algorithm\.{name}=true .*; use --set {name}=false"):
            policy_of(network=network, **{name: True})
    for name, words in {
        "not_a_network": r"made a str, not a torch\.nn\.Module",
        "Pair": r"made \(\[2, 3\], \[2\]\) of 2 observations; algo=dqn needs .* a tensor \[2, 3\]",
        "Narrow": r"made \[2, 2\] of 2 observations; .* a tensor \[2, 3\]",
    }.items():
        with pytest.raises(ConfigError, match=words):
            policy_of(network=NetworkConfig(module=f"{__file__}:{name}"))


def not_a_network(observation_size, num_outputs):
    return "network"


class Pair(Own):
    """What PPO asks for."""

    def forward(self, observation):
        return self.layer(observation), self.layer(observation)[:, 0]


class Narrow(Own):
    """Too few numbers."""

    def forward(self, observation):
        return self.layer(observation)[:, 1:]


@pytest.mark.parametrize("kind", [("multi_discrete", (2, 3)), ("continuous", (2,), (-1.0, -1.0), (1.0, 1.0))])
def test_actions_that_are_not_one_choice_are_refused(kind):
    with pytest.raises(ConfigError, match="algo=dqn needs a task with one discrete action"):
        policy_of(spec=EnvSpec(6, ActionSpec(*kind), "same_step", True))


def test_an_encoder_of_images_needs_images():
    with pytest.raises(ConfigError, match=r"network\.encoder=nature needs images"):
        policy_of(network=NetworkConfig(encoder="nature"))


def test_initial_values_are_small():
    """Targets begin near 0: large initial values would have to be unlearned first."""
    for spec, seen in ((SPEC, observations(64)), (PONG, images(8))):
        q = policy_of(spec=spec, network=NetworkConfig())(torch.from_numpy(seen))[0].detach()
        assert 1e-3 < float(q.abs().mean()) < 1.0
        assert math.isfinite(float(q.std()))
