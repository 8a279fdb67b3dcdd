"""envpool/Pong-v5 with PPO: Pong from pixels on EnvPool's pool of threads."""

from lockstep.algorithms.ppo import PPOConfig
from lockstep.config.env import EnvConfig
from lockstep.run import NetworkConfig, Run


def recipe() -> Run:
    """The settings that EnvPool publishes for this task: `examples/cleanrl_examples/ppo_atari_envpool.py`.

    They are those of the command in its first lines, "solve Pong in about 5 minutes", which is CleanRL's script. It
    normalizes advantages over a minibatch, Lockstep over a whole rollout. Evaluations sample actions, too: with the
    most likely action a rally may never end.
    """
    return Run(
        task="envpool/Pong-v5",
        seed=1,
        num_envs=16,
        total_steps=10_000_000,
        stop_return=20.0,
        evaluate_every=200_000,
        evaluate_episodes=16,
        evaluate_greedy=False,
        env=EnvConfig(kwargs={"episodic_life": True, "reward_clip": True}),
        network=NetworkConfig(encoder="nature", features=512),
        algorithm=PPOConfig(
            num_steps=128,
            num_epochs=3,
            num_minibatches=8,
            learning_rate=2.5e-4,
            learning_rate_schedule="linear",
            gamma=0.99,
            gae_lambda=0.95,
            clip_range=0.2,
            value_clip_range=0.2,
            value_coef=0.5,
            entropy_coef=0.01,
            max_grad_norm=0.5,
            adam_eps=1e-5,
        ),
    )
