"""The penalty for means of actions beyond their bounds, and layers of the value network, in both frameworks."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("jax")

import torch
from networks_alike import acted, arrays, observed, spec_of

from lockstep import World
from lockstep.algorithms.ppo import PPOConfig
from lockstep.jax import ppo as jax_ppo
from lockstep.jax.batch import Batch as JaxBatch
from lockstep.jax.comm import Comm as JaxComm
from lockstep.jax.networks import Policy as JaxPolicy
from lockstep.run import NetworkConfig, Run
from lockstep.torch.batch import Batch
from lockstep.torch.comm import Comm
from lockstep.torch.networks import Policy
from lockstep.torch.ppo import PPO

SPEC, ROWS = spec_of("continuous"), 6
MEANS = [1.5, -2.0, 0.3]
NETWORK = NetworkConfig(hidden=(16,), critic_hidden=(12, 8))


def run_with(coefficient):
    config = PPOConfig(num_steps=4, num_minibatches=1, bounds_loss_coef=coefficient)
    return Run(task="t", num_envs=4, network=NETWORK, algorithm=config)


def losses(coefficient):
    """In torch, and in JAX with the same parameters, of a policy whose means are MEANS but for their small weights."""
    run, draws = run_with(coefficient), np.random.default_rng(0)
    policy = Policy(SPEC, NETWORK, seed=0)
    with torch.no_grad():
        policy.network.actor.layers[-1].bias.copy_(torch.tensor(MEANS))
    weight = (np.arange(ROWS) % 3 > 0).astype(np.float32)
    columns = [*draws.standard_normal((4, ROWS)).astype(np.float32), weight]
    rows = (observed(SPEC, ROWS), acted(SPEC, ROWS))
    params = {name: tensor.detach().numpy().copy() for name, tensor in policy.state_dict().items()}
    with Comm(World(), device="cpu") as comm, JaxComm(World(), device="cpu") as jax_comm:
        batch = Batch(*(torch.from_numpy(column) for column in (*rows, *columns)))
        theirs = JaxPolicy(SPEC, NETWORK, seed=0)
        assert {name: array.shape for name, array in theirs.params.items()} == {n: p.shape for n, p in params.items()}
        ours = jax_ppo.PPO(run, theirs, jax_comm).loss(arrays(params), JaxBatch(*arrays((*rows, *columns))))[0]
        mean = policy(batch.observation)[0].detach().numpy()
        return PPO(run, policy, comm).loss(batch)[0].item(), float(ours), mean, weight


def test_means_beyond_the_bounds_are_penalized():
    plain, penalized = losses(0.0), losses(3.0)
    *_, mean, weight = plain
    excess = np.maximum(mean - 1.1, 0) ** 2 + np.maximum(-mean - 1.1, 0) ** 2
    expected = 3.0 * weight @ excess.sum(1)
    assert expected > 1.0
    for before, after in zip(plain[:2], penalized[:2], strict=True):
        assert after - before == pytest.approx(expected, rel=1e-4)
    assert penalized[0] == pytest.approx(penalized[1], rel=1e-4)


def test_the_value_network_has_layers_of_its_own():
    shapes = [tuple(layer.weight.shape) for layer in Policy(SPEC, NETWORK, seed=0).network.critic.layers]
    assert shapes == [(12, 6), (8, 12), (1, 8)]
