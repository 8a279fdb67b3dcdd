"""Encoders: their sizes, and what they compute."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from lockstep.envs.spec import ActionSpec, EnvSpec, ImagePart
from lockstep.errors import ConfigError
from lockstep.run import NetworkConfig
from lockstep.session import encoder_choice
from lockstep.torch import encoders
from lockstep.torch.encoders import make_encoder
from lockstep.torch.networks import Policy, multiplications


def spec_of(image):
    channels, height, width = image
    return EnvSpec(channels * height * width, ActionSpec("discrete", (6,)), "next_step", True, image=image)


ATARI = spec_of((4, 84, 84))
SMALL_IMAGE = spec_of((3, 40, 44))


def encoder_of(kind, spec=ATARI, *, last=True, seed=0, **more):
    encoder = make_encoder(spec, NetworkConfig(encoder=kind, **more), last=last)
    torch.manual_seed(seed)
    for parameter in encoder.parameters():  # biases too: those of a fresh encoder are 0
        parameter.data.normal_(0, 0.05)
    return encoder


def pictures(spec, rows=3):
    return torch.randint(0, 256, (rows, *spec.image), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))


def multiplied(encoder):
    """How often one row is multiplied by a weight, seen from outside."""
    counts = []

    def around(function):
        def counted(x, layer_or_weight, *rest, **more):
            y = function(x, layer_or_weight, *rest, **more)
            weight = getattr(layer_or_weight, "weight", layer_or_weight)
            counts.append(weight.numel() * y[0].numel() // len(weight))
            return y

        return counted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lockstep.torch.encoders.conv2d", around(encoders.conv2d))
        patch.setattr("lockstep.torch.encoders.linear", around(encoders.linear))
        patch.setattr(encoders.F, "conv2d", around(F.conv2d)) if isinstance(encoder, encoders.Impala) else None
        encoder(pictures(ATARI))
    return sum(counts)


@pytest.mark.parametrize(
    ("kind", "features", "layers", "size", "linear"),
    [
        # Mnih et al., 2015, methods; 2013, section 4.1; Espeholt et al., 2018, figure 3; DI-engine's pong_dqn_config.
        ("nature", 512, [4 * 64 * 32 + 32, 32 * 16 * 64 + 64, 64 * 9 * 64 + 64], 64 * 7 * 7, True),
        ("small", 256, [4 * 64 * 16 + 16, 16 * 16 * 32 + 32], 32 * 9 * 9, True),
        ("wide", 512, [4 * 64 * 128 + 128, 128 * 16 * 128 + 128, 128 * 9 * 512 + 512], 512 * 7 * 7, True),
        (
            "impala",
            256,
            [4 * 9 * 16 + 16, *[16 * 9 * 16 + 16] * 4]
            + [16 * 9 * 32 + 32, *[32 * 9 * 32 + 32] * 4]
            + [32 * 9 * 32 + 32] * 5,
            32 * 11 * 11,
            True,
        ),
        ("nature", 512, [4 * 64 * 32 + 32, 32 * 16 * 64 + 64, 64 * 9 * 64 + 64], 64 * 7 * 7, False),
    ],
)
def test_sizes_are_those_of_the_papers(kind, features, layers, size, linear):
    encoder = encoder_of(kind, features=features, last=linear)
    wanted = [*layers, size * features + features] if linear else layers
    made = [m for m in encoder.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    assert [sum(p.numel() for p in m.parameters()) for m in made] == wanted
    assert encoder(pictures(ATARI)).shape == (3, encoder.num_features)
    assert encoder.num_features == (features if linear else size)
    assert encoder.uses == multiplied(encoder)


def test_the_nature_network_of_pong_has_1_69_million_parameters():
    encoder = encoder_of("auto")
    assert sum(p.numel() for p in encoder.parameters()) + 512 * 6 + 6 == 1_687_206


def test_images_too_small_for_the_nature_network_get_another():
    for size, kind in ((35, "impala"), (36, "nature")):
        spec = spec_of((3, size, 36))
        assert encoder_choice.encoder_of(NetworkConfig(), spec) == kind
        encoder_choice.check_encoder(NetworkConfig(), spec)
        assert encoder_of("auto", spec)(pictures(spec)).shape[0] == 3


def test_the_work_of_a_row_counts_a_convolution_at_every_pixel():
    """9.3 million for the Nature CNN of Pong, though it has 1.7 million parameters."""
    policy = Policy(ATARI, NetworkConfig())
    convolutions = 32 * 256 * 20 * 20 + 64 * 512 * 9 * 9 + 64 * 576 * 7 * 7
    assert multiplications(policy) == convolutions + 3136 * 512 + (512 * 6 + 6) + (512 + 1)
    vectors = Policy(EnvSpec(4, ActionSpec("discrete", (2,)), "next_step", True), NetworkConfig())
    assert multiplications(vectors) == sum(p.numel() for p in vectors.parameters())


def plain(encoder, x, strides, *, activate_last):
    """The same network in torch's words, in double precision."""
    x = x.double() / 255
    for layer, stride in zip(encoder.layers, strides, strict=True):
        x = F.relu(F.conv2d(x, layer.weight.double(), layer.bias.double(), stride))
    x = x.flatten(1)
    if encoder.linear is not None:
        x = x @ encoder.linear.weight.double().T + encoder.linear.bias.double()
        x = F.relu(x) if activate_last else x
    return x


@pytest.mark.parametrize(
    ("kind", "strides", "activate_last"),
    [("nature", (4, 2, 1), True), ("small", (4, 2), True), ("wide", (4, 2, 1), False)],
)
@pytest.mark.parametrize("spec", [ATARI, SMALL_IMAGE], ids=["atari", "small image"])
def test_convolutions_are_what_they_are_called(kind, strides, activate_last, spec):
    encoder, x = encoder_of(kind, spec, features=32), pictures(spec)
    found, wanted = encoder(x), plain(encoder, x, strides, activate_last=activate_last)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)
    assert (found < 0).any() != activate_last
    (mine,) = torch.autograd.grad(found.square().sum(), encoder.layers[1].weight)
    (other,) = torch.autograd.grad(wanted.square().sum(), encoder.layers[1].weight)
    # As a whole: where a pixel is within rounding of 0, its part is in one of the two and not in the other.
    assert (mine - other).norm() < 0.01 * other.norm()


def test_impala_is_what_it_is_called():
    encoder, x = encoder_of("impala", SMALL_IMAGE, features=32), pictures(SMALL_IMAGE)
    layers = iter(encoder.layers)

    def convolution(y):
        layer = next(layers)
        return F.conv2d(F.pad(y, (1, 1, 1, 1)), layer.weight, layer.bias)

    y = x / 255
    for _ in range(3):
        y = F.max_pool2d(convolution(y), kernel_size=3, stride=2, padding=1)
        for _ in range(2):
            y = y + convolution(F.relu(convolution(F.relu(y))))
    y = F.relu(F.linear(F.relu(y).flatten(1), encoder.linear.weight, encoder.linear.bias))
    assert y.any()
    torch.testing.assert_close(encoder(x), y, rtol=1e-4, atol=1e-5)


def test_images_as_vectors_are_read_row_by_row():
    encoder, x = encoder_of("mlp", SMALL_IMAGE, hidden=(5,)), pictures(SMALL_IMAGE)
    layer = encoder.layers[0]
    torch.testing.assert_close(encoder(x), torch.tanh(F.linear(x.reshape(3, -1) / 255, layer.weight, layer.bias)))


def test_a_row_has_the_same_features_beside_other_rows():
    """Not to the bit: kernels differ by shape. But nothing of one image reaches another."""
    for kind in ("nature", "impala"):
        encoder, x = encoder_of(kind, SMALL_IMAGE, features=8), pictures(SMALL_IMAGE, rows=4)
        torch.testing.assert_close(encoder(x)[2:3], encoder(x[2:3]), rtol=1e-4, atol=1e-5)


def test_images_too_small_for_an_encoder_are_refused():
    with pytest.raises(ConfigError, match="images of at least 36 by 36, and this task observes 20 by 84"):
        make_encoder(spec_of((1, 20, 84)), NetworkConfig(encoder="nature"))
    make_encoder(spec_of((1, 36, 36)), NetworkConfig(encoder="nature", features=4))  # the smallest


def test_weights_begin_orthogonal_and_the_same_for_a_seed():
    made = []
    for seed in (3, 3, 4):
        encoder = make_encoder(ATARI, NetworkConfig(encoder="nature", features=16))
        encoder.initialize(torch.Generator().manual_seed(seed))
        made.append(encoder)
    for layer in (*made[0].layers, made[0].linear):
        rows = layer.weight.detach().flatten(1)
        torch.testing.assert_close(rows @ rows.T, 2 * torch.eye(len(rows)), rtol=1e-4, atol=1e-4)
        assert not layer.bias.any()
    reference = make_encoder(SMALL_IMAGE, NetworkConfig(encoder="wide", features=16))
    reference.initialize(torch.Generator().manual_seed(3))
    for layer in (*reference.layers, reference.linear):
        bound = layer.weight[0].numel() ** -0.5
        assert 0.8 * bound < layer.bias.abs().max() <= bound
        assert 0.99 * bound < layer.weight.abs().max() <= bound
    one, same, other = (torch.cat([p.flatten() for p in e.parameters()]) for e in made)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_uniform_initialization_stays_within_the_bound_of_torch_layers():
    config = NetworkConfig(hidden=(32, 16), initialization="uniform")
    encoder = make_encoder(EnvSpec(8, ActionSpec("discrete", (2,)), "same_step", True), config)
    encoder.initialize(torch.Generator().manual_seed(0))
    for layer, inputs in zip(encoder.layers, (8, 32), strict=True):
        bound = inputs**-0.5
        assert 0.9 * bound < layer.weight.abs().max() <= bound
        assert not layer.bias.any()


ARM = EnvSpec(
    3 + 2 * 8 * 9 + 1 + 40 * 40 + 2,
    ActionSpec("continuous", (2,), (-1.0, -1.0), (1.0, 1.0)),
    "same_step",
    True,
    image_parts=(ImagePart(3, (2, 8, 9)), ImagePart(148, (1, 40, 40))),
    critic_size=1 + 8 * 9,
    critic_image_parts=(ImagePart(1, (1, 8, 9)),),
)


@pytest.mark.parametrize("last", [True, False])
def test_images_among_numbers_have_encoders_and_the_numbers_follow(last):
    encoder = encoder_of("auto", ARM, features=7, last=last)
    assert isinstance(encoder, encoders.ImagesAndNumbers)
    x = torch.rand(5, ARM.observation_size)
    features = encoder(x)
    assert features.shape == (5, encoder.num_features)
    first, second = encoder.encoders
    assert isinstance(first, encoders.Impala), "the smaller image decides for both"
    of_first, of_second = first(x[:, 3:147].reshape(5, 2, 8, 9)), second(x[:, 148:1748].reshape(5, 1, 40, 40))
    expected = [of_first, of_second, x[:, :3], x[:, 147:148], x[:, 1748:]]
    torch.testing.assert_close(features, torch.cat(expected, 1))


def test_policy_and_value_have_hidden_layers_behind_images_and_numbers():
    policy = Policy(ARM, NetworkConfig(hidden=(6, 5), critic_hidden=(4,), features=7, shared=None))
    x, critic = torch.rand(3, ARM.observation_size), torch.rand(3, 73)
    parameters, value = policy(x, critic)
    assert parameters.shape == (3, 2) and value.shape == (3,)
    assert [layer.out_features for layer in policy.network.actor.layers] == [6, 5, 2]
    assert policy.network.actor.layers[0].in_features == 7 + 7 + 3 + 1 + 2
    assert [layer.in_features for layer in policy.network.critic.layers] == [7 + 1, 4]
    value.sum().backward()
    assert all(parameter.grad.any() for parameter in policy.network.critic_body.parameters())
    assert policy(x)[1].isnan().all(), "without the critic's own observation"


def test_images_of_the_critic_alone_have_encoders_beside_a_policy_of_numbers():
    spec = replace(ARM, observation_size=3, image_parts=())
    policy = Policy(spec, NetworkConfig(hidden=(6,), features=7))
    assert policy.network.body is None and isinstance(policy.network.critic_body, encoders.ImagesAndNumbers)
    parameters, value = policy(torch.rand(2, 3), torch.rand(2, 73))
    assert parameters.shape == (2, 2) and value.isfinite().all()


def test_mlp_takes_images_among_numbers_as_numbers():
    policy = Policy(ARM, NetworkConfig(encoder="mlp", hidden=(6,)))
    assert policy.network.body is policy.network.critic_body is None
    assert policy(torch.rand(2, ARM.observation_size), torch.rand(2, 73))[0].shape == (2, 2)


def test_too_small_images_among_numbers_are_refused():
    with pytest.raises(ConfigError, match=r"at least 36 by 36, and this task observes 8 by 9"):
        make_encoder(ARM, NetworkConfig(encoder="nature"))
