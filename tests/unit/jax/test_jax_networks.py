"""PPO's networks in JAX: how they begin, how they act, what is refused. What they compute stands in tests/parity."""

import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("jax")

import jax

from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.errors import ConfigError
from lockstep.jax.distributions import LOG_STD
from lockstep.jax.encoders import elu
from lockstep.jax.networks import JaxActor, LinearActor, Policy, actor_of
from lockstep.run import NetworkConfig

SPEC = EnvSpec(6, ActionSpec("discrete", (3,)), "same_step", True)
BOX = EnvSpec(6, ActionSpec("continuous", (2,), (-1.0,) * 2, (1.0,) * 2), "same_step", True)
IMAGES = EnvSpec(3 * 40 * 44, ActionSpec("discrete", (6,)), "next_step", True, image=(3, 40, 44))


def observations(*rows, spec=SPEC):
    draws = np.random.default_rng(0)
    if spec.image:
        return draws.integers(256, size=(*rows, *spec.image), dtype=np.uint8)
    return draws.standard_normal((*rows, spec.observation_size)).astype(np.float32)


class Own:
    """A network of one's own: as many outputs as asked for, and a value."""

    def __init__(self, observation_size, num_parameters):
        self.shape = (num_parameters + 1, observation_size)

    def init(self, seed):
        return {"weight": np.random.default_rng(seed).standard_normal(self.shape).astype(np.float32)}

    def apply(self, params, observation):
        outputs = observation @ params["weight"].T
        return outputs[:, :-1], outputs[:, -1]


class Double(Own):
    """Of another type."""

    def init(self, seed):
        return {name: value.astype(np.float64) for name, value in super().init(seed).items()}


class Nested(Own):
    """Parameters in groups, as flax has them."""

    def init(self, seed):
        return {"params": super().init(seed)}


class Numbered(Own):
    """Parameters by number."""

    def init(self, seed):
        return {0: super().init(seed)["weight"]}


class Empty(Own):
    """Without parameters."""

    def init(self, seed):
        return None


class Values(Own):
    """Only one of two."""

    def apply(self, params, observation):
        return super().apply(params, observation)[0]


class Column(Own):
    """A value with an axis too many."""

    def apply(self, params, observation):
        parameters, value = super().apply(params, observation)
        return parameters, value[:, None]


class Broken(Own):
    """Cannot be made."""

    def __init__(self, observation_size, num_parameters):
        raise ValueError("no such size")


class NoLayers(Own):
    """Cannot be initialized."""

    def init(self, seed):
        return {"weight": {}["layers"]}


class Transposed(Own):
    """Multiplies matrices that do not fit."""

    def apply(self, params, observation):
        return observation @ params["weight"], observation[:, 0]


class Stopped(Own):
    """Learns nothing."""

    def apply(self, params, observation):
        return jax.lax.stop_gradient(super().apply(params, observation))


class KeepsState(Own):
    """A recurrent network that keeps its state itself."""

    state = 0.0

    def apply(self, params, observation):
        self.state = self.state + observation
        return super().apply(params, self.state)


class KeepsFeatures(Own):
    """Keeps what it computed, and does not use it again."""

    def apply(self, params, observation):
        self.features = super().apply(params, observation)
        return self.features


class Zeros(Own):
    """Begins with zeros, which its gradient is not."""

    def init(self, seed):
        return {name: np.zeros_like(value) for name, value in super().init(seed).items()}


def text(observation_size, num_parameters):
    return "network"


def test_torch_is_not_needed():
    program = "import sys, lockstep.jax.networks, lockstep.jax.q_networks, lockstep.jax.export\n"
    assert subprocess.run([sys.executable, "-c", program + "sys.exit('torch' in sys.modules)"]).returncode == 0


@pytest.mark.parametrize("spec", [SPEC, IMAGES], ids=["vectors", "images"])
def test_a_seed_decides_how_they_begin(spec):
    config = NetworkConfig(hidden=(8,), features=16)
    one, same, other = (Policy(spec, config, seed).params for seed in (3, 3, 4))
    for name, value in one.items():
        assert value.dtype == np.float32
        np.testing.assert_array_equal(value, same[name])
        assert name.endswith(".bias") or not np.array_equal(value, other[name])


def test_weights_begin_orthogonal_and_biases_at_zero():
    params = Policy(SPEC, NetworkConfig(hidden=(16, 8)), seed=3).params
    for name, value in params.items():
        if name.endswith(".bias"):
            assert not value.any()
            continue
        last = name.split(".")[3] == "2"
        gain = (0.01 if "actor" in name else 1.0) if last else np.sqrt(2)
        short = value @ value.T if len(value) <= value.shape[1] else value.T @ value
        np.testing.assert_allclose(short, gain**2 * np.eye(len(short)), rtol=1e-5, atol=1e-6, err_msg=name)
    ours = [params[f"network.{part}.layers.0.weight"] for part in ("actor", "critic")]
    assert not np.array_equal(*ours), "two parts of a network were drawn alike"


def test_convolutions_begin_orthogonal_and_those_of_the_reference_uniform():
    params = Policy(IMAGES, NetworkConfig(features=16)).params
    for i in range(3):
        rows = params[f"network.body.layers.{i}.weight"].reshape(len(params[f"network.body.layers.{i}.bias"]), -1)
        np.testing.assert_allclose(rows @ rows.T, 2 * np.eye(len(rows)), rtol=1e-5, atol=1e-5)
    params = Policy(IMAGES, NetworkConfig(encoder="wide", features=16)).params
    for name in ("layers.0", "layers.1", "linear"):
        weight, bias = (params[f"network.body.{name}.{kind}"] for kind in ("weight", "bias"))
        bound = weight[0].size ** -0.5
        assert 0.99 * bound < abs(weight).max() <= bound
        assert 0.8 * bound < abs(bias).max() <= bound


def test_two_bodies_begin_unlike_each_other():
    params = Policy(IMAGES, NetworkConfig(features=16, shared=False)).params
    assert not np.array_equal(*(params[f"network.bodies.{i}.layers.0.weight"] for i in range(2)))


def test_deviations_begin_as_the_config_has_them():
    policy = Policy(BOX, NetworkConfig(initial_log_std=-1.5))
    assert policy.params[LOG_STD].tolist() == [-1.5, -1.5]
    noise = np.ones((1, 2), np.float32)
    np.testing.assert_allclose(policy.sampler.sample(np.zeros((1, 2)), noise), np.exp([[-1.5, -1.5]]), rtol=1e-6)
    policy.params = policy.params | {LOG_STD: np.float32([0, 0])}
    assert policy.sampler.sample(np.zeros((1, 2)), noise).tolist() == [[1, 1]], "it draws by what was"


def test_images_too_small_for_an_encoder_are_refused():
    small = EnvSpec(20 * 84, ActionSpec("discrete", (6,)), "next_step", True, image=(1, 20, 84))
    with pytest.raises(ConfigError, match="images of at least 36 by 36, and this task observes 20 by 84"):
        Policy(small, NetworkConfig(encoder="nature"))
    assert Policy(small, NetworkConfig()).params.keys() == Policy(small, NetworkConfig(encoder="impala")).params.keys()
    with pytest.raises(ConfigError, match=r"network\.encoder=nature needs images"):
        Policy(SPEC, NetworkConfig(encoder="nature"))


@pytest.mark.parametrize("kind", [LinearActor, JaxActor])
def test_actors_use_the_newest_parameters(kind):
    policy = Policy(SPEC, NetworkConfig(hidden=(8,)))
    actor = actor_of(policy) if kind is LinearActor else JaxActor(policy, jax.devices()[0])
    assert isinstance(actor, kind)
    seen = observations(4)
    before = actor(seen)
    np.testing.assert_allclose(before, policy.apply(policy.params, seen)[0], rtol=1e-5, atol=1e-6)
    policy.params = jax.tree.map(lambda value: jax.numpy.asarray(value) + 1.0, policy.params)
    np.testing.assert_allclose(actor(seen), policy.apply(policy.params, seen)[0], rtol=1e-5, atol=1e-5)
    assert not np.allclose(actor(seen), before)


@pytest.mark.parametrize("kind", [LinearActor, JaxActor])
def test_each_shards_rows_are_computed_as_if_alone(kind, monkeypatch):
    policy = Policy(SPEC, NetworkConfig(hidden=(64, 64)))
    actor = actor_of(policy) if kind is LinearActor else JaxActor(policy, jax.devices()[0])
    seen, compute, shapes = observations(4, 8), policy.apply, []
    monkeypatch.setattr(policy, "apply", lambda *given: shapes.append(given[1].shape) or compute(*given))
    together = actor(seen)
    assert shapes == [(8, 6)] * (kind is JaxActor), "kernels of another shape than a shard's, or compiled twice"
    assert together.shape == (4, 8, 3)
    for k in range(4):
        assert (actor(seen[k : k + 1])[0] == together[k]).all(), "bits depend on the neighbours"


def test_acting_compiles_once_for_a_shape():
    policy = Policy(IMAGES, NetworkConfig(features=16))
    actor, seen = actor_of(policy), observations(3, 2, spec=IMAGES)
    assert isinstance(actor, JaxActor)
    for _ in range(3):
        actor(seen)
        policy.params = jax.tree.map(lambda value: value + np.float32(0.5), policy.params)
    assert actor._apply._cache_size() == 1


def test_bfloat16_gives_float32():
    policy = Policy(IMAGES, NetworkConfig(features=16))
    seen = observations(3, spec=IMAGES)
    exact, low = (policy.apply(policy.params, seen, precision) for precision in ("float32", "bfloat16"))
    for one, other in zip(exact, low, strict=True):
        assert other.dtype == np.float32
        assert not np.array_equal(one, other)
        np.testing.assert_allclose(other, one, atol=0.05)


def test_a_network_of_ones_own():
    policy = Policy(SPEC, NetworkConfig(module=f"{__file__}:Own"), seed=5)
    assert {name: value.shape for name, value in policy.params.items()} == {"network.weight": (4, 6)}
    parameters, value = policy.apply(policy.params, observations(2))
    assert (parameters.shape, value.shape) == ((2, 3), (2,))
    actor = actor_of(policy)
    assert isinstance(actor, JaxActor)
    np.testing.assert_allclose(actor(observations(2)), parameters, rtol=1e-6)
    box = Policy(BOX, NetworkConfig(module=f"{__file__}:Own"))
    assert box.params.keys() == {"network.weight", LOG_STD}
    zeros = Policy(SPEC, NetworkConfig(module=f"{__file__}:Zeros"))
    assert not zeros.params["network.weight"].any()
    Policy(SPEC, NetworkConfig(module=f"{__file__}:KeepsFeatures"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("text", r"made a str without init\(seed\) and apply\(params, observation\)"),
        ("Double", r"init\(seed\) gave weight as float64; use float32"),
        ("Nested", r"init\(seed\) gave params as a dict; give one dict of arrays by names such as 'Dense_0.kernel'"),
        ("Numbered", r"init\(seed\) gave a parameter with the name 0, no text; give one dict of arrays by names"),
        ("Empty", r"init\(seed\) gave a NoneType; it must give a dict"),
        ("Values", r"made \[2, 3\] of 2 observations; algo=ppo needs .*, \[2, 3\], \[2\]: see docs"),
        ("Column", r"made \[2, 3\], \[2, 1\] of 2 observations; algo=ppo needs .*, \[2, 3\], \[2\]: see docs"),
        ("Broken", r"3\) failed: ValueError: no such size"),
        ("NoLayers", r"init\(0\) failed: KeyError: 'layers'"),
        ("Transposed", r"failed with observations \[2, 6\]: TypeError"),
        ("KeepsState", r"uses what an earlier call kept, .* use network\.recurrent without a module"),
        ("Stopped", r"gave outputs without gradients; remove jax\.lax\.stop_gradient"),
    ],
)
def test_a_network_that_is_none_is_refused(name, words):
    with pytest.raises(ConfigError, match=rf"network\.module=.*:{name}.* {words}"):
        Policy(SPEC, NetworkConfig(module=f"{__file__}:{name}"))


@pytest.mark.parametrize(("kind", "error"), [("float32", 2e-7), ("bfloat16", 0)])
def test_elu_is_that_of_jax_with_its_derivatives(kind, error):
    x = jax.numpy.asarray(np.r_[np.linspace(-20, 20, 4001), 0, 1e-30, -1e-6, -np.inf, np.inf], kind)
    for wrap in (lambda f: f, lambda f: jax.vmap(jax.grad(f)), lambda f: jax.vmap(jax.grad(jax.grad(f)))):
        found, wanted = wrap(elu)(x), wrap(jax.nn.elu)(x)
        assert found.dtype == x.dtype
        np.testing.assert_allclose(np.asarray(found, np.float64), np.asarray(wanted, np.float64), rtol=0, atol=error)
    assert jax.numpy.isnan(elu(jax.numpy.asarray(np.nan, kind)))
