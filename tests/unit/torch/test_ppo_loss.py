"""The loss and its parts against the equations of the papers, written out plainly."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.distributions import Categorical

from lockstep import World
from lockstep.algorithms.ppo import METRICS, PPOConfig
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.experience.rollout import Rollout
from lockstep.record.progress import Progress
from lockstep.run import NetworkConfig, Run
from lockstep.torch.comm import Comm
from lockstep.torch.networks import Policy
from lockstep.torch.ppo import PPO, Batch, adapted

SPEC = EnvSpec(4, ActionSpec("discrete", (3,)), "same_step", True)
ROWS = 64


def learner(**config):
    run = Run(
        task="t", num_envs=4, network=NetworkConfig(hidden=(8,)),
        algorithm=PPOConfig(**{"num_steps": 16, "num_minibatches": 2, "learning_rate_schedule": "constant", **config}),
    )  # fmt: skip
    return PPO(run, Policy(SPEC, run.network, seed=0), Comm(World(), device="cpu"))


def make_batch(seed=0):
    draw = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=draw)  # noqa: E731
    weight = (torch.rand(ROWS, generator=draw) < 0.8).float()
    action = torch.randint(3, (ROWS,), generator=draw)
    # Old log-probabilities far enough off that a part of the ratios is clipped.
    return Batch(
        normal(ROWS, 4), action, -1.1 + 0.4 * normal(ROWS), normal(ROWS), normal(ROWS), 2 * normal(ROWS), weight
    )


def plain(ppo, batch):
    """Schulman et al., 2017, eq. 7 and 9, one row after the other; sums over rows of weight 1."""
    c = ppo.config
    parameters, values = ppo.policy(batch.observation)
    total, told = 0.0, np.zeros(6)
    for i in range(ROWS):
        if batch.weight[i] == 0:
            continue
        distribution = Categorical(logits=parameters[i])
        log_ratio = distribution.log_prob(batch.action[i]) - batch.log_prob[i]
        ratio, advantage = log_ratio.exp(), batch.advantage[i]
        clipped = torch.clamp(ratio, 1 - c.clip_range, 1 + c.clip_range)
        surrogate = torch.minimum(ratio * advantage, clipped * advantage)
        square = (values[i] - batch.target[i]) ** 2
        if c.value_clip_range is not None:
            near = batch.value[i] + torch.clamp(values[i] - batch.value[i], -c.value_clip_range, c.value_clip_range)
            square = torch.maximum(square, (near - batch.target[i]) ** 2)
        entropy = distribution.entropy()
        total = total - surrogate + c.value_coef * square / 2 - c.entropy_coef * entropy
        kl = ratio - 1 - log_ratio
        told += [1, -surrogate.item(), square.item() / 2, entropy.item(), kl.item(), float(ratio != clipped)]
    return total, told


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"value_clip_range": 0.2},
        {"clip_range": 0.05, "value_coef": 0.0, "entropy_coef": 0.0},
        {"value_coef": 2.0, "entropy_coef": 0.5},
    ],
)
def test_loss_sums_and_gradient_are_those_of_the_equations(config):
    ppo, batch = learner(**config), make_batch()
    ppo.flat.zero_gradient_()
    loss, sums = ppo.loss(batch)
    loss.backward()
    ours = ppo.flat.gradient.clone()
    ppo.flat.zero_gradient_()
    expected, told = plain(ppo, batch)
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(sums.numpy(), told, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours, ppo.flat.gradient, rtol=1e-4, atol=1e-4)
    assert 0.1 < told[5] / told[0] < 0.95, "nothing or everything is clipped; the test proves little"


def test_rows_of_weight_0_change_nothing():
    ppo, batch = learner(), make_batch()
    odd = dataclasses.replace(batch, advantage=torch.where(batch.weight > 0, batch.advantage, 1e6))
    assert torch.equal(ppo.loss(batch)[0], ppo.loss(odd)[0])


@pytest.mark.parametrize(("kl", "factor"), [(0.0, 1.5), (0.0049, 1.5), (0.006, 1.0), (0.019, 1.0), (0.03, 1 / 1.5)])
def test_the_adaptive_rate_keeps_the_kl_near_what_is_wanted(kl, factor):
    assert adapted(torch.tensor(1e-3), torch.tensor(kl), 0.01).item() == pytest.approx(1e-3 * factor)


def test_the_adaptive_rate_has_bounds():
    assert adapted(torch.tensor(1e-2), torch.tensor(0.0), 0.01).item() == pytest.approx(1e-2)
    assert adapted(torch.tensor(1e-6), torch.tensor(1.0), 0.01).item() == pytest.approx(1e-6)


def make_rollout(same_step=True):
    draw = np.random.default_rng(1)
    ended = draw.random((16, 4)) < 0.2
    terminated = ended & (draw.random((16, 4)) < 0.5)
    observation = draw.standard_normal((17, 4, 4), dtype=np.float32)
    action, reward = draw.integers(0, 3, (16, 4)), draw.standard_normal((16, 4)).astype(np.float32)
    final = []
    for t in range(16):
        rows = np.flatnonzero(ended[t] & ~terminated[t])
        if len(rows) and same_step:
            final.append((t, rows, draw.standard_normal((len(rows), 4), dtype=np.float32)))
    return Rollout(observation, action, reward, terminated, ended, np.ones((16, 4), np.float32), final)


def test_truncated_episodes_are_valued_at_their_true_last_observation():
    ppo, rollout = learner(gamma=0.9, gae_lambda=0.8), make_rollout()
    assert rollout.final
    batch = ppo._builder.batch(0, rollout)
    value = lambda x: ppo.policy(torch.from_numpy(x))[1].detach().double().numpy()  # noqa: E731
    values = value(rollout.observation.reshape(-1, 4)).reshape(17, 4)
    following = values[1:].copy()
    for t, rows, last in rollout.final:
        following[t, rows] = value(last)
    expected, after = np.zeros((16, 4)), np.zeros(4)
    for t in reversed(range(16)):
        delta = rollout.reward[t] + 0.9 * (1 - rollout.terminated[t]) * following[t] - values[t]
        after = expected[t] = delta + 0.9 * 0.8 * (1 - rollout.ended[t]) * after
    np.testing.assert_allclose(batch.advantage.view(16, 4).numpy(), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(batch.target.view(16, 4).numpy(), expected + values[:-1], rtol=1e-4, atol=1e-5)
    distribution = Categorical(logits=ppo.policy(batch.observation)[0])
    torch.testing.assert_close(batch.log_prob, distribution.log_prob(batch.action).detach())


def test_an_update_returns_the_extra_sums_and_every_metric_once():
    ppo = learner()
    told = ppo.update([make_rollout()], np.array([[3.0, -1.0]]), Progress(100, env_steps=50))
    assert told.tolist() == [3.0, -1.0]
    metrics = ppo.metrics.read()
    assert set(metrics) == set(METRICS)
    assert all(np.isfinite(list(metrics.values())))


def test_a_linear_schedule_falls_to_0_at_the_end():
    ppo = learner(learning_rate_schedule="linear", learning_rate=0.01)
    before = ppo.flat.params.detach().clone()
    ppo.update([make_rollout()], np.zeros((1, 1)), Progress(100, env_steps=100))
    assert torch.equal(ppo.flat.params.detach(), before)
    ppo.update([make_rollout()], np.zeros((1, 1)), Progress(100, env_steps=75))
    assert ppo.learning_rate.item() == pytest.approx(0.0025)
    assert not torch.equal(ppo.flat.params.detach(), before)


def test_explained_variance_is_that_of_the_returns():
    ppo, rollout = learner(gamma=1.0, gae_lambda=1.0), make_rollout(same_step=False)
    batch = ppo._builder.batch(0, rollout)
    target, advantage = batch.target.double().numpy(), batch.advantage.double().numpy()
    ppo.update([rollout], np.zeros((1, 1)))
    expected = 1 - np.square(advantage).mean() / target.var()
    assert ppo.metrics.read()["value/explained_variance"] == pytest.approx(expected, rel=1e-4)


def test_minibatches_that_do_not_divide_are_refused():
    with pytest.raises(
        ValueError, match=r"num_minibatches=3 does not divide a shard's 64 transitions .*; use 2 or 4, or"
    ):
        learner(num_minibatches=3)
