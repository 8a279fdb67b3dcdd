"""Networks, how they begin, and how they act."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.errors import ConfigError
from lockstep.run import NetworkConfig
from lockstep.torch.encoders import Mlp
from lockstep.torch.flat import FlatParameters
from lockstep.torch.networks import NumpyActor, Policy, TorchActor, actor_of

SPEC = EnvSpec(6, ActionSpec("discrete", (3,)), "same_step", True)
CPU = torch.device("cpu")


class Own(nn.Module):
    """A network of the user's own."""

    def __init__(self, observation_size, num_parameters):
        super().__init__()
        self.actor, self.critic = nn.Linear(observation_size, num_parameters), nn.Linear(observation_size, 1)

    def forward(self, observation):
        return self.actor(observation), self.critic(observation).squeeze(-1)


class Sized(Own):
    """Keeps the number that it is given, under the name that recurrent policies have for theirs."""

    def __init__(self, state_size, num_parameters):
        super().__init__(state_size, num_parameters)
        self.state_size = self.actor_state_size = state_size


class Filled(Own):
    """Has a layer of Lockstep's, with numbers of its own, as from a file."""

    def __init__(self, observation_size, num_parameters):
        super().__init__(observation_size, num_parameters)
        self.actor = Mlp((observation_size, num_parameters), "tanh", last_gain=1.0)
        for parameter in self.actor.parameters():
            nn.init.constant_(parameter, 0.125)


def not_a_network(observation_size, num_parameters):
    return "network"


def equal(a, b):
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("activation", ["tanh", "relu", "elu", "silu"])
@pytest.mark.parametrize("hidden", [(), (8,), (8, 5)])
def test_acting_in_numpy_is_acting_in_torch(shared, activation, hidden):
    policy = Policy(SPEC, NetworkConfig(hidden=hidden, activation=activation, shared=shared), seed=1)
    actor = actor_of(policy, CPU)
    assert isinstance(actor, NumpyActor)
    observation = np.random.default_rng(0).standard_normal((2, 7, 6), dtype=np.float32)
    for _ in range(2):
        np.testing.assert_allclose(actor(observation), TorchActor(policy, CPU)(observation), rtol=1e-4, atol=1e-6)
        for parameter in policy.parameters():  # changed in place, as the optimizer does
            parameter.data.mul_(1.5).add_(0.1)


def test_the_actor_follows_flattened_parameters():
    policy = Policy(SPEC, NetworkConfig(hidden=(8,)))
    flat = FlatParameters(policy)
    actor, observation = actor_of(policy, CPU), np.ones((4, 6), np.float32)
    before = actor(observation).copy()
    flat.params.data.add_(1.0)
    assert (actor(observation) != before).any()
    np.testing.assert_allclose(actor(observation), TorchActor(policy, CPU)(observation), rtol=1e-4)


@pytest.mark.parametrize("kind", [NumpyActor, TorchActor])
def test_each_shards_rows_are_computed_as_if_alone(kind):
    policy = Policy(SPEC, NetworkConfig(hidden=(64, 64)))
    actor = actor_of(policy, CPU) if kind is NumpyActor else TorchActor(policy, CPU)
    assert isinstance(actor, kind)
    observation = np.random.default_rng(0).standard_normal((4, 8, 6), dtype=np.float32)
    together = actor(observation)
    for shard in range(4):
        assert (actor(observation[shard : shard + 1])[0] == together[shard]).all(), "bits depend on the neighbours"


def test_initialisation_is_orthogonal_with_gains_and_zero_biases():
    wide = EnvSpec(20, ActionSpec("discrete", (3,)), "same_step", True)
    policy = Policy(wide, NetworkConfig(hidden=(16, 16)), seed=2)
    gains = {"actor": [math.sqrt(2), math.sqrt(2), 0.01], "critic": [math.sqrt(2), math.sqrt(2), 1.0]}
    for name, expected in gains.items():
        for layer, gain in zip(getattr(policy.network, name).layers, expected, strict=True):
            singular = torch.linalg.svdvals(layer.weight)
            torch.testing.assert_close(singular, torch.full_like(singular, gain), rtol=1e-4, atol=1e-6)
            assert not layer.bias.any()


@pytest.mark.parametrize("config", [NetworkConfig(hidden=(8,)), NetworkConfig(module=f"{__file__}:Own")])
def test_initial_parameters_depend_only_on_the_seed(config):
    torch.manual_seed(1)
    first = Policy(SPEC, config, seed=5)
    torch.manual_seed(2)
    assert equal(first, Policy(SPEC, config, seed=5))
    assert not equal(first, Policy(SPEC, config, seed=6))


def test_a_custom_network_acts_in_torch():
    policy = Policy(SPEC, NetworkConfig(module=f"{__file__}:Own"))
    actor = actor_of(policy, CPU)
    assert isinstance(actor, TorchActor)
    assert actor(np.zeros((2, 4, 6), np.float32)).shape == (2, 4, 3)


def test_a_custom_network_with_a_state_size_is_not_recurrent():
    policy = Policy(SPEC, NetworkConfig(module=f"{__file__}:Sized"))
    assert (policy.state_size, policy.actor_state_size) == (0, 0)
    assert isinstance(actor_of(policy, CPU), TorchActor)


def test_a_custom_network_of_lockstep_s_layers_keeps_its_numbers():
    policy = Policy(SPEC, NetworkConfig(module=f"{__file__}:Filled"), seed=1)
    assert all((parameter == 0.125).all() for parameter in policy.network.actor.parameters())


def test_what_is_no_network_is_refused():
    with pytest.raises(ConfigError, match=r"network\.module=.*made a str, not a torch\.nn\.Module"):
        Policy(SPEC, NetworkConfig(module=f"{__file__}:not_a_network"))


def test_shared_networks_have_one_body():
    policy = Policy(SPEC, NetworkConfig(hidden=(8, 8), shared=True))
    parameters, value = policy(torch.zeros(5, 6))
    assert (parameters.shape, value.shape) == ((5, 3), (5,))
    (value.sum() + parameters.sum()).backward()
    assert all(p.grad is not None for p in policy.parameters())
    separate = Policy(SPEC, NetworkConfig(hidden=(8, 8)))
    assert sum(p.numel() for p in policy.parameters()) < sum(p.numel() for p in separate.parameters())


class OneColumn(torch.nn.Module):
    """Of any number of outputs, one: it would be broadcast to all."""

    def __init__(self, observation_size, num_outputs):
        super().__init__()
        self.layer = torch.nn.Linear(observation_size, 1)

    def forward(self, observation):
        return self.layer(observation), self.layer(observation)[:, 0]


class OnlyParameters(OneColumn):
    def __init__(self, observation_size, num_outputs):
        super().__init__(observation_size, num_outputs)
        self.layer = torch.nn.Linear(observation_size, num_outputs)

    def forward(self, observation):
        return self.layer(observation)


class NoArguments(torch.nn.Module):
    def __init__(self):
        super().__init__()


class Fails(OneColumn):
    def forward(self, observation):
        return self.layer(observation.T)


class NoParameters(torch.nn.Module):
    def __init__(self, observation_size, num_outputs):
        super().__init__()
        self.num_outputs = num_outputs

    def forward(self, observation):
        return torch.zeros(len(observation), self.num_outputs), torch.zeros(len(observation))


class NoGradients(OnlyParameters):
    @torch.no_grad()
    def forward(self, observation):
        return self.layer(observation), self.layer(observation)[:, 0]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("NoParameters", "has no parameters to train"),
        ("NoGradients", r"outputs without gradients; remove torch\.no_grad"),
        ("OneColumn", r"made \(\[2, 1\], \[2\]\) of 2 observations; algo=ppo needs .*\(\[2, 4\], \[2\]\)"),
        ("OnlyParameters", r"made \[2, 4\] of 2 observations; algo=ppo needs"),
        ("NoArguments", r"NoArguments\(3, 4\) failed: TypeError"),
        ("Fails", r"failed with observations \[2, 3\]: RuntimeError"),
    ],
)
def test_a_network_of_the_user_that_does_not_fit_is_refused(name, said):
    four = EnvSpec(3, ActionSpec("continuous", (4,), low=(-1.0,) * 4, high=(1.0,) * 4), "same_step", True)
    with pytest.raises(ConfigError, match=said):
        Policy(four, NetworkConfig(module=f"{__name__}:{name}"), seed=0)
