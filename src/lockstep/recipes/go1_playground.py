"""playground/Go1JoystickFlatTerrain: MuJoCo Playground's Unitree Go1 walks as a joystick says, on the device in JAX."""

import math

from lockstep.algorithms.ppo import PPOConfig
from lockstep.run import NetworkConfig, Run


def recipe() -> Run:
    """The PPO settings that MuJoCo Playground publishes for this task: `brax_ppo_config` of its `locomotion_params`.

    A minibatch there is 256 rollouts of 20 steps; 32 of them are 8192 environments x 20. The first standard deviation
    is softplus(0). Lockstep clips actions where Brax takes their tanh, normalizes advantages over a whole rollout, and
    draws the first weights within 1 / sqrt(inputs) where Brax (lecun_uniform) draws them within sqrt(3 / inputs).
    """
    return Run(
        task="playground/Go1JoystickFlatTerrain",
        ml_framework="jax",
        num_envs=8192,
        total_steps=200_000_000,
        log_every=2_000_000,
        evaluate_every=20_000_000,
        check_every=20,
        network=NetworkConfig(
            hidden=(512, 256, 128),
            activation="silu",
            initialization="uniform",
            initial_log_std=math.log(math.log(2.0)),
            state_dependent_std=True,
        ),
        algorithm=PPOConfig(
            num_steps=20,
            num_epochs=4,
            num_minibatches=32,
            learning_rate=3e-4,
            learning_rate_schedule="constant",
            gamma=0.97,
            gae_lambda=0.95,
            clip_range=0.3,
            value_coef=0.5,
            entropy_coef=0.01,
            max_grad_norm=1.0,
            normalize_observation=True,
            adam_eps=1e-8,
        ),
    )
