"""How many minibatches an update keeps, to find the source of a number that is not finite."""

from unittest import mock

import jax.numpy as jnp
import pytest
import torch

import lockstep
from lockstep.errors import RunError
from lockstep.jax import dqn as jax_dqn
from lockstep.jax.actor_critic import ActorCritic as JaxActorCritic
from lockstep.run import NetworkConfig, Run, override
from lockstep.session.kept_minibatches import MAX_KEPT
from lockstep.torch.actor_critic import ActorCritic
from lockstep.torch.dqn import DQN

STEPS = 2 * MAX_KEPT
BROKEN = MAX_KEPT + 6


def broken(method, cls):
    """The method, and in its `BROKEN`-th call parameters that are not finite."""
    calls = 0

    def call(self, *args):
        nonlocal calls
        calls += 1
        if calls == BROKEN and cls in (DQN, ActorCritic):
            with torch.no_grad():
                self.flat.params.fill_(float("nan"))
        elif calls == BROKEN:
            name = "params" if cls is jax_dqn.DQN else "critic_params"
            self.state = self.state._replace(**{name: jnp.full_like(getattr(self.state, name), jnp.nan)})
        return method(self, *args)

    return call


@pytest.mark.parametrize(
    ("cls", "algo", "method"),
    [
        (DQN, "dqn", "_step"),
        (ActorCritic, "sac", "_step"),
        pytest.param(ActorCritic, "td3", "_step", marks=pytest.mark.slow),
        pytest.param(jax_dqn.DQN, "dqn", "_parts", marks=pytest.mark.slow),
        pytest.param(JaxActorCritic, "td3", "_parts", marks=pytest.mark.slow),
    ],
)
def test_finite_minibatches_are_not_kept_for_the_whole_update(tmp_path, cls, algo, method):
    run = Run(
        task="CartPole-v1" if algo == "dqn" else "Pendulum-v1",
        algo=algo,
        ml_framework="jax" if "jax" in cls.__module__ else "torch",
        device="cpu",
        num_envs=4,
        total_steps=STEPS,
        evaluate_every=None,
        evaluate_episodes=4,
        network=NetworkConfig(hidden=(4,)),
    )
    changes = {"num_steps": STEPS // 4, "updates_per_step": 1, "learning_starts": 0, "batch_size": 8, "capacity": 256}
    kept = []

    def report(self, rollouts, minibatches, progress, original=cls._non_finite_error):
        kept.append(sum(len(parts) > 0 for parts in minibatches))
        return original(self, rollouts, minibatches, progress)

    with (
        mock.patch.object(cls, method, broken(getattr(cls, method), cls)),
        mock.patch.object(cls, "_non_finite_error", report),
        pytest.raises(RunError, match=rf"in gradient step {MAX_KEPT} after the rollout of update 1 "),
    ):
        lockstep.train(override(run, changes), run_dir=tmp_path / "run")
    assert kept == [STEPS - MAX_KEPT]
