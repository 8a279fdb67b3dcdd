"""Mirrored copies of transitions in the loss, in both frameworks, and functions that are refused."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
jnp = pytest.importorskip("jax.numpy")

from networks_alike import acted, arrays, observed, spec_of  # noqa: E402

from lockstep import World  # noqa: E402
from lockstep.algorithms.ppo import PPOConfig  # noqa: E402
from lockstep.errors import ConfigError  # noqa: E402
from lockstep.jax import ppo as jax_ppo  # noqa: E402
from lockstep.jax.batch import Batch as JaxBatch  # noqa: E402
from lockstep.jax.comm import Comm as JaxComm  # noqa: E402
from lockstep.jax.networks import Policy as JaxPolicy  # noqa: E402
from lockstep.preflight.user_code_paths import with_portable_paths  # noqa: E402
from lockstep.run import NetworkConfig, Run, override  # noqa: E402
from lockstep.session.checks import check_task  # noqa: E402
from lockstep.torch import ppo as torch_ppo  # noqa: E402
from lockstep.torch.batch import Batch  # noqa: E402
from lockstep.torch.comm import Comm  # noqa: E402
from lockstep.torch.networks import Policy  # noqa: E402
from lockstep.torch.symmetry import Symmetry  # noqa: E402

SPEC, ROWS = spec_of("continuous"), 6
RUN = Run(
    task="t", num_envs=4, network=NetworkConfig(hidden=(16,)), algorithm=PPOConfig(num_steps=4, num_minibatches=1)
)


def in_torch(observation, action):
    return torch.cat([observation, -observation]), torch.cat([action, -action])


def in_jax(observation, action):
    return jnp.concatenate([observation, -observation]), jnp.concatenate([action, -action])


def same_rows(observation, action):
    return -observation, -action


def one_result(observation, action):
    return observation


def too_many_actions(observation, action):
    return observation, torch.cat([action, action])


def of_environment(env, obs=None, actions=None):
    return obs, actions


def of_three(observation, action, other):
    return observation, action


def losses(symmetry, columns):
    """Loss and sums in torch, and in JAX with the same parameters; `symmetry` in both or neither."""
    with Comm(World(), device="cpu") as comm, JaxComm(World(), device="cpu") as jax_comm:
        run = override(RUN, {"symmetry": f"{__name__}:in_torch"}) if symmetry else RUN
        policy = Policy(SPEC, RUN.network, seed=0)
        params = {name: tensor.detach().numpy().copy() for name, tensor in policy.state_dict().items()}
        found = torch_ppo.PPO(run, policy, comm).loss(Batch(*map(torch.from_numpy, columns)))
        run = override(RUN, {"symmetry": f"{__name__}:in_jax"}) if symmetry else RUN
        learner = jax_ppo.PPO(run, JaxPolicy(SPEC, RUN.network, seed=0), jax_comm)
        theirs = learner.loss(arrays(params), JaxBatch(*arrays(columns)))
    return [x.detach().numpy() for x in found], [np.asarray(x) for x in theirs]


def test_the_loss_is_that_of_all_copies_and_the_metrics_those_of_the_first():
    draws = np.random.default_rng(0)
    weight = (np.arange(ROWS) % 3 > 0).astype(np.float32)
    others = [*draws.standard_normal((4, ROWS)).astype(np.float32), weight]
    observation, action = observed(SPEC, ROWS), acted(SPEC, ROWS)
    mirrored = [np.concatenate([x, -x]) for x in (observation, action)]
    copies = [*mirrored, *(np.tile(column, 2) for column in others[:-1]), np.tile(weight / 2, 2)]
    columns = [observation, action, *others]
    plain, whole, found = losses(False, columns), losses(False, copies), losses(True, columns)
    for i in range(2):
        np.testing.assert_allclose(found[i][0], whole[i][0], rtol=1e-5)
        np.testing.assert_allclose(found[i][1], plain[i][1], rtol=1e-5)
        assert abs(found[i][0] - plain[i][0]) > 1e-4
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("same_rows", "first observations; the given rows must come first, unchanged"),
        ("one_result", "must return observation and action"),
        ("too_many_actions", r"returned actions of shape \[6, 3\] for \[3, 3\]"),
        ("of_environment", "reads the environment"),
        ("of_three", "called with two arguments"),
        ("SPEC", "is not a function"),
        ("none", "has no none"),
    ],
)
def test_functions_that_cannot_be_used_are_refused(name, words):
    with pytest.raises(ConfigError, match=rf"symmetry={__name__}:{name}.*{words}"):
        Symmetry(f"{__name__}:{name}", SPEC, torch.device("cpu"))


def test_symmetry_is_refused_with_normalized_observations():
    run = override(RUN, {"symmetry": f"{__name__}:in_torch", "normalize_observation": True})
    with pytest.raises(ConfigError, match=r"symmetry=.*normalize_observation=false"):
        check_task(run, SPEC)


def test_the_file_of_a_symmetry_is_user_code():
    run = override(RUN, {"symmetry": "/some/where/mirror.py:mirror"})
    assert "/some/where/mirror.py:mirror" in run.user_code
    assert with_portable_paths(run).algorithm.symmetry == "mirror.py:mirror"
