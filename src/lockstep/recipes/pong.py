"""Pong from pixels with DQN: the settings of DI-engine's example for two GPUs, its network of 14 million parameters."""

from lockstep.algorithms.dqn import DQNConfig
from lockstep.run import NetworkConfig, Run


def recipe() -> Run:
    """DI-engine's `pong_dqn_ddp_config.py`; counts are the sums over its two ranks.

    10 gradient steps on 64 transitions follow every 192 environment steps. Its loss is the squared error, ours half of
    it; Adam's step does not depend on that factor.
    """
    return Run(
        task="PongNoFrameskip-v4",
        algo="dqn",
        num_envs=8,
        total_steps=3_000_000,
        stop_return=20.0,
        evaluate_every=76_800,
        evaluate_episodes=8,
        checkpoint_every=300_000,
        num_checkpoints=2,
        network=NetworkConfig(encoder="wide", features=512),
        algorithm=DQNConfig(
            num_steps=24,
            updates_per_step=10 / 192,
            batch_size=64,
            learning_starts=192,
            capacity=200_000,
            learning_rate=1e-4,
            gamma=0.99,
            n_step=3,
            double=True,
            dueling=True,
            loss="mse",
            max_grad_norm=None,
            target_update_every=500,
            epsilon_start=1.0,
            epsilon_end=0.05,
            epsilon_steps=250_000,
            epsilon_schedule="exponential",
        ),
    )
