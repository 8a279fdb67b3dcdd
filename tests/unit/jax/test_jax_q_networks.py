"""DQN's networks in JAX: how they begin, what noise does, what is refused. Their numbers stand in tests/parity."""

import math

import numpy as np
import pytest

pytest.importorskip("jax")


from lockstep.algorithms.dqn import DQNConfig
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.errors import ConfigError
from lockstep.jax.networks import JaxActor, LinearActor, actor_of
from lockstep.jax.q_networks import QPolicy, noisy_actor
from lockstep.run import NetworkConfig
from lockstep.world import stream

SPEC = EnvSpec(6, ActionSpec("discrete", (3,)), "same_step", True)
PONG = EnvSpec(4 * 84 * 84, ActionSpec("discrete", (6,)), "next_step", True, image=(4, 84, 84))
HIDDEN, NOISY = NetworkConfig(hidden=(16, 8)), {"noisy": True, "dueling": True}


def policy_of(spec=SPEC, network=HIDDEN, seed=3, **heads):
    return QPolicy(spec, network, DQNConfig(num_atoms=5, num_quantiles=7, v_min=-2.0, v_max=3.0, **heads), seed)


def observations(*rows):
    return np.random.default_rng(0).standard_normal((*rows, 6)).astype(np.float32)


def q_of(policy, observation, noise=None):
    return np.asarray(policy.expected(policy.outputs(policy.params, observation, noise)))


class Own:
    """A network of one's own."""

    def __init__(self, observation_size, num_outputs):
        self.shape = (num_outputs, observation_size)

    def init(self, seed):
        return {"weight": np.random.default_rng(seed).standard_normal(self.shape).astype(np.float32)}

    def apply(self, params, observation):
        return observation @ params["weight"].T


class Pair(Own):
    """What PPO asks for."""

    def apply(self, params, observation):
        q = super().apply(params, observation)
        return q, q[:, 0]


class Narrow(Own):
    """Too few numbers."""

    def apply(self, params, observation):
        return super().apply(params, observation)[:, 1:]


@pytest.mark.parametrize(
    "spec", [pytest.param(SPEC, id="vectors"), pytest.param(PONG, marks=pytest.mark.slow, id="images")]
)
@pytest.mark.parametrize("noisy", [False, True])
def test_heads_begin_uniform_and_deviations_constant(spec, noisy):
    policy = policy_of(spec, NetworkConfig(features=32), noisy=noisy, noisy_std=0.3)
    heads = {n: v for n, v in policy.params.items() if n.startswith("network.advantage")}
    assert len(heads) == (8 if noisy else 4)
    for name, value in heads.items():
        assert value.dtype == np.float32
        rows = heads[".".join(name.split(".")[:4]) + ".weight"].shape[1]
        if name.endswith("_std"):
            assert (value == np.float32(0.3 / math.sqrt(rows))).all()
        else:
            assert abs(value).max() <= 1 / math.sqrt(rows)
            assert value.std() > 0.3 / math.sqrt(rows)
    again, other = (policy_of(spec, NetworkConfig(features=32), seed, noisy=noisy) for seed in (3, 4))
    for name, value in heads.items():
        assert name.endswith("_std") or np.array_equal(value, again.params[name])
        assert name.endswith("_std") or not np.array_equal(value, other.params[name])


def test_initial_values_are_small():
    """Targets begin near 0: large initial values would have to be unlearned first."""
    for spec in (SPEC, PONG):
        images = np.random.default_rng(0).integers(256, size=(8, 4, 84, 84), dtype=np.uint8)
        q = q_of(policy_of(spec, NetworkConfig()), observations(64) if spec is SPEC else images)
        assert 1e-3 < abs(q).mean() < 1.0


def test_the_network_of_pong_has_1_69_million_parameters():
    params = policy_of(PONG, NetworkConfig()).params
    assert sum(value.size for value in params.values()) == 1_687_206


@pytest.mark.parametrize(("kind", "points"), [("none", 1), ("categorical", 5), ("quantile", 7)])
def test_outputs_and_what_they_say_of_q(kind, points):
    policy = policy_of(value_distribution=kind)
    outputs = policy.outputs(policy.params, observations(4))
    assert outputs.shape == ((4, 3) if kind == "none" else (4, 3, points))
    outputs = np.asarray(outputs)
    if kind == "categorical":
        p = np.exp(outputs) / np.exp(outputs).sum(-1, keepdims=True)
        wanted = (p * np.linspace(-2, 3, 5)).sum(-1)
        np.testing.assert_allclose(policy.probability(outputs), p, rtol=1e-5)
    else:
        wanted = outputs if kind == "none" else outputs.mean(-1)
    q, best = policy.apply(policy.params, observations(4))
    np.testing.assert_allclose(q, wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(best, wanted.max(-1), rtol=1e-5, atol=1e-6)


def test_noise_changes_values_and_its_absence_is_the_mean():
    policy, seen = policy_of(**NOISY), observations(4)
    assert policy.num_noise == 2 * ((16 + 8) + 8) + 3 + 1
    one, same, other = (q_of(policy, seen, policy.draw_noise(np.random.default_rng(s))) for s in (0, 0, 1))
    quiet = q_of(policy, seen)
    np.testing.assert_array_equal(one, same)
    assert not np.isclose(one, other).any()
    assert not np.isclose(one, quiet).any()
    np.testing.assert_allclose(policy.apply(policy.params, seen)[0], quiet, rtol=1e-6)
    np.testing.assert_allclose(actor_of(policy)(seen), quiet, rtol=1e-5, atol=1e-6)


def test_without_noisy_layers_nothing_is_drawn():
    policy, generator = policy_of(), np.random.default_rng(0)
    state = generator.bit_generator.state
    assert policy.num_noise == 0
    assert policy.draw_noise(generator) is None
    assert generator.bit_generator.state == state


def test_noise_of_each_row_is_that_row_alone():
    policy, seen = policy_of(value_distribution="quantile", **NOISY), observations(4)
    numbers = np.random.default_rng(0).standard_normal((4, policy.num_noise), np.float32)
    together = q_of(policy, seen, numbers)
    for row in range(4):
        np.testing.assert_allclose(q_of(policy, seen[row : row + 1], numbers[row])[0], together[row], 1e-5, 1e-6)


def test_each_environment_explores_by_noise_of_its_own_wherever_it_is():
    policy, seen = policy_of(**NOISY), observations(8)
    seen[1:] = seen[0]  # what differs is the noise

    def acts(envs, iteration, calls=2):
        actor = noisy_actor(policy, 3, envs)
        actor.begin(iteration)
        first = seen.reshape(len(envs), -1, 6)
        return np.stack([actor(first).reshape(8, 3) for _ in range(calls)])

    one = acts([range(8)], 5)
    assert len({tuple(q) for q in one.reshape(-1, 3).tolist()}) == 16, "noise was drawn twice"
    np.testing.assert_allclose(acts([range(4), range(4, 8)], 5), one, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(acts([range(8)], 5), one)
    assert not (acts([range(8)], 6) == one).any()
    numbers = stream(3, "noise of env 2", 5).standard_normal(policy.num_noise, np.float32)
    np.testing.assert_allclose(one[0, 2], q_of(policy, seen[2:3], numbers)[0], rtol=1e-5, atol=1e-6)


def test_shards_of_one_process_act_as_if_alone(monkeypatch):
    policy, seen = policy_of(network=NetworkConfig(hidden=(64, 64)), **NOISY), observations(4, 8)
    envs = [range(8 * k, 8 * k + 8) for k in range(4)]
    compute, shapes = policy.outputs, list[tuple[int, ...]]()
    monkeypatch.setattr(policy, "outputs", lambda *given: shapes.append(given[1].shape) or compute(*given))
    together = noisy_actor(policy, 0, envs)(seen)
    assert shapes == [(8, 6)], "kernels of another shape than a shard's, or compiled twice"
    for k in range(4):
        alone = noisy_actor(policy, 0, envs[k : k + 1])(seen[k : k + 1])
        assert (alone[0] == together[k]).all(), "bits depend on the neighbours"


def test_a_noisy_actor_uses_the_newest_parameters():
    policy, seen = policy_of(**NOISY), observations(1, 4)
    actor, fresh = (noisy_actor(policy, 0, [range(4)]) for _ in range(2))
    before = actor(seen)
    policy.params = {name: value + np.float32(0.1) for name, value in policy.params.items()}
    actor.begin(0)
    np.testing.assert_array_equal(actor(seen), fresh(seen))
    actor.begin(0)
    assert not np.allclose(actor(seen), before)


def test_plain_vectors_are_acted_on_by_numpy():
    assert isinstance(actor_of(policy_of()), LinearActor)
    for heads in ({"dueling": True}, {"noisy": True}, {"value_distribution": "quantile"}):
        assert isinstance(actor_of(policy_of(**heads)), JaxActor)


def test_a_network_of_ones_own():
    network = NetworkConfig(module=f"{__file__}:Own")
    policy = policy_of(network=network, value_distribution="quantile")
    assert policy.outputs(policy.params, observations(2)).shape == (2, 3, 7)
    assert policy.params["network.weight"].shape == (21, 6)
    for name in ("dueling", "noisy"):
        with pytest.raises(ConfigError, match=rf"algorithm\.{name}=true .*; use --set {name}=false"):
            policy_of(network=network, **{name: True})
    for name, words in {
        "Pair": r"made \[2, 3\], \[2\] of 2 observations; algo=dqn needs values of actions, an array \[2, 3\]",
        "Narrow": r"made \[2, 2\] of 2 observations; .* an array \[2, 3\]",
    }.items():
        with pytest.raises(ConfigError, match=words):
            policy_of(network=NetworkConfig(module=f"{__file__}:{name}"))


@pytest.mark.parametrize("kind", [("multi_discrete", (2, 3)), ("continuous", (2,), (-1.0, -1.0), (1.0, 1.0))])
def test_actions_that_are_not_one_choice_are_refused(kind):
    with pytest.raises(ConfigError, match="algo=dqn needs a task with one discrete action"):
        policy_of(EnvSpec(6, ActionSpec(*kind), "same_step", True))
