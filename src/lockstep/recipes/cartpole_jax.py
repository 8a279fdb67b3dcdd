"""CartPole-v1 on the device with PPO in JAX: environments, rollouts and updates in one compiled function."""

from dataclasses import replace

from lockstep.recipes import cartpole
from lockstep.run import Run


def recipe() -> Run:
    """As `cartpole`, but ranks are compared every 100 updates: a transfer to the host costs as much as an update."""
    return replace(
        cartpole.recipe(),
        task="jax/CartPole-v1",
        ml_framework="jax",
        total_steps=500_000,
        log_every=50_000,
        evaluate_every=50_000,
        check_every=100,
    )
