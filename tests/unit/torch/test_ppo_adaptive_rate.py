"""The adaptive learning rate of PPO: which KL it follows and when, and the limit of normalized values."""

import numpy as np
import pytest
import torch
from torch.distributions import Normal, kl_divergence

from lockstep import World
from lockstep.algorithms.ppo import PPOConfig
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.errors import ConfigError
from lockstep.experience.rollout import Rollout
from lockstep.run import NetworkConfig, Run
from lockstep.session.task_checks import check_task
from lockstep.torch import ppo as ppo_module
from lockstep.torch.comm import Comm
from lockstep.torch.networks import Policy
from lockstep.torch.ppo import PPO
from lockstep.world import stream

SPEC = EnvSpec(3, ActionSpec("continuous", (2,), low=(-1.0,) * 2, high=(1.0,) * 2), "same_step", True)
STEPS, ENVS = 16, 8


def learner(**config):
    algorithm = PPOConfig(
        num_steps=STEPS, num_epochs=4, learning_rate_schedule="adaptive", adapt_every="minibatch",
        **{"num_minibatches": 2, "learning_rate": 5e-3, **config},
    )  # fmt: skip
    run = Run(task="t", num_envs=ENVS, network=NetworkConfig(hidden=(8,)), algorithm=algorithm)
    return PPO(run, Policy(SPEC, run.network, seed=0), Comm(World(), device="cpu"))


def make_rollout(scale=1.0):
    draw = stream(0, "test")
    shape = (STEPS, ENVS)
    ended = draw.random(shape) < 0.1
    return Rollout(
        draw.standard_normal((STEPS + 1, ENVS, 3)).astype(np.float32),
        draw.standard_normal((*shape, 2)).astype(np.float32),
        (scale * draw.standard_normal(shape)).astype(np.float32),
        ended,
        ended,
        np.ones(shape, np.float32),
        [],
    )


def test_every_gradient_step_is_a_sign_of_life(monkeypatch):
    """A world of one sends no messages, and an update may take longer than `timeout_s`."""
    ppo, entered = learner(), []
    monkeypatch.setattr(ppo.comm.timers, "enter", entered.append)
    ppo.update([make_rollout()], np.zeros((1, 0)))
    assert len(entered) >= 4 * 2


def update_recorded(ppo, monkeypatch):
    """The KL of each change of the rate; observations, distribution and rate of each gradient step, as it begins."""
    kls, steps = [], []
    adapted, step, loss = ppo_module.adapted, ppo.optimizer.step, ppo._backward._loss

    def record_kl(rate, kl, desired):
        kls.append(kl.item())
        return adapted(rate, kl, desired)

    def record_step(skipped):
        steps[-1]["rate"] = ppo.learning_rate.item()
        step(skipped)

    def record_loss(batch):
        with torch.no_grad():
            mean = ppo.policy(batch.observation)[0].clone()
            log_std = ppo.policy.distribution.log_std.clone()
        steps.append({"observation": batch.observation.clone(), "mean": mean, "std": log_std.exp().expand_as(mean)})
        return loss(batch)

    monkeypatch.setattr(ppo_module, "adapted", record_kl)
    monkeypatch.setattr(ppo.optimizer, "step", record_step)
    monkeypatch.setattr(ppo._backward, "_loss", record_loss)
    ppo.update([make_rollout()], np.zeros((1, 1)))
    return kls, steps


def test_previous_epoch_kl_is_from_each_rows_last_gradient_step(monkeypatch):
    ppo = learner(kl_reference="previous_epoch")
    start = Policy(SPEC, NetworkConfig(hidden=(8,)), seed=0)
    kls, steps = update_recorded(ppo, monkeypatch)
    last = {}
    expected = []
    for one in steps:
        terms = []
        for observation, mean, std in zip(one["observation"], one["mean"], one["std"], strict=True):
            key = tuple(observation.tolist())
            if key not in last:
                last[key] = start(observation[None])[0][0].detach(), torch.ones(2)
            terms.append(kl_divergence(Normal(mean, std), Normal(*last[key])).sum())
            last[key] = mean, std
        expected.append(torch.stack(terms).mean().item())
    assert len(last) == STEPS * ENVS
    assert kls == pytest.approx(expected, rel=1e-3, abs=1e-6), "not the KL from the last gradient step of the rows"
    assert min(kls[2:]) > 1e-4


def test_rollout_kl_grows_over_the_epochs(monkeypatch):
    kls, _ = update_recorded(learner(), monkeypatch)
    assert kls[-1] > 4 * kls[2] > 0


@pytest.mark.parametrize("before", [False, True])
def test_the_rate_changes_before_or_after_the_step_of_its_minibatch(before, monkeypatch):
    kls, steps = update_recorded(learner(adapt_before_step=before, desired_kl=1e-3), monkeypatch)
    rate, rates = 5e-3, []
    for kl in kls:
        after = min(rate * (1 / 1.5 if kl > 2e-3 else 1.5 if kl < 0.5e-3 else 1.0), 1e-2)
        rates.append(after if before else rate)
        rate = after
    assert len(set(rates)) > 2
    assert [one["rate"] for one in steps] == pytest.approx(rates), "the rate does not follow the KL of its minibatch"


def test_values_and_targets_are_clipped_at_value_limit():
    ppo = learner(normalize_value=True, value_limit=0.5)
    rollout = make_rollout(scale=50.0)
    (batch,), *_ = ppo._prepare([rollout], np.zeros((1, 1)))
    assert batch.target.abs().max() == 0.5
    assert (batch.target.abs() < 0.5).any()
    with torch.no_grad():  # a prediction of 3 deviations counts as half a deviation
        for layer in ppo.policy.network.critic.layers:
            layer.weight.zero_()
            layer.bias.fill_(3.0)
    builder, moments = ppo._builder, ppo.normalizers.values
    mean, deviation = moments.center_and_deviation
    assert builder.batch(0, rollout).value == pytest.approx(mean + 0.5 * deviation, rel=1e-5)


def test_settings_that_contradict_are_refused():
    with pytest.raises(ConfigError, match="adapt_before_step=true needs adapt_every=minibatch"):
        PPOConfig(adapt_before_step=True)


def test_an_adaptive_rate_begins_within_its_limits():
    with pytest.raises(ConfigError, match=r"learning_rate=0\.05 is not from 1e-6 to 1e-2"):
        PPOConfig(learning_rate=0.05, learning_rate_schedule="adaptive")
    assert PPOConfig(learning_rate=1e-2, learning_rate_schedule="adaptive").learning_rate == 1e-2
    with pytest.raises(ConfigError, match="kl_reference=previous_epoch"):
        PPOConfig(symmetry="a:b", kl_reference="previous_epoch")


def test_kl_reference_is_refused_in_jax_and_for_discrete_actions():
    algorithm = PPOConfig(kl_reference="previous_epoch")
    with pytest.raises(ConfigError, match="not available in JAX"):
        check_task(Run(task="t", ml_framework="jax", algorithm=algorithm), SPEC)
    with pytest.raises(ConfigError, match="those of task=t are discrete"):
        check_task(Run(task="t", algorithm=algorithm), EnvSpec(3, ActionSpec("discrete", (2,)), "same_step", True))
