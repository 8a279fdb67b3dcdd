"""Pong from pixels with DQN and the CNN of 2015, for CPUs."""

from lockstep.algorithms.dqn import DQNConfig
from lockstep.run import NetworkConfig, Run


def recipe() -> Run:
    """A gradient step on 32 transitions for every 4 environment steps, and three-step targets as in `pong`.

    A game is won by up to 21 points; a mean return of 18 counts as solved.
    """
    return Run(
        task="PongNoFrameskip-v4",
        algo="dqn",
        num_envs=8,
        total_steps=2_000_000,
        stop_return=18.0,
        evaluate_every=100_000,
        evaluate_episodes=8,
        checkpoint_every=200_000,
        num_checkpoints=2,
        check_every=100,
        network=NetworkConfig(encoder="nature", features=512),
        algorithm=DQNConfig(
            num_steps=4,
            updates_per_step=0.25,
            batch_size=32,
            learning_starts=10_000,
            capacity=100_000,
            learning_rate=1e-4,
            n_step=3,
            double=True,
            target_update_every=250,
            epsilon_end=0.02,
            epsilon_steps=200_000,
        ),
    )
