"""Stable-Baselines3, sb3-contrib or sbx (the library that is installed) on the workloads that they can do."""

import argparse
import importlib
from importlib.util import find_spec
from typing import Any

from clock import Clock, arguments, report
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

IN_JAX = find_spec("sbx") is not None
ALGORITHMS: Any = importlib.import_module("sbx" if IN_JAX else "stable_baselines3")


class Marks(BaseCallback):
    """Marks the time after each step; for PPO before each rollout, when the update is done."""

    def __init__(self, clock: Clock, at_rollouts: bool) -> None:
        super().__init__()
        self._to, self._at_rollouts = clock, at_rollouts

    def _on_rollout_start(self) -> None:
        if self._at_rollouts:
            self._to.mark(self.num_timesteps)

    def _on_step(self) -> bool:
        if not self._at_rollouts:
            self._to.mark(self.num_timesteps)
        return True

    def _on_training_end(self) -> None:
        self._to.mark(self.num_timesteps)


def networks(*sizes: int, **more: Any) -> dict[str, Any]:
    """Separate tanh networks for policy and values, in both libraries."""
    if not IN_JAX:
        return {"net_arch": list(sizes), **more}
    import flax.linen as nn

    return {"net_arch": list(sizes), "activation_fn": nn.tanh, **more}


def cartpole_ppo(total: int) -> Any:
    """PPO on CartPole-v1."""
    rate: Any = 2.5e-4 if IN_JAX else lambda left: 2.5e-4 * left
    return ALGORITHMS.PPO(
        "MlpPolicy", make_vec_env("CartPole-v1", n_envs=8, seed=0), n_steps=128, batch_size=256, n_epochs=4,
        learning_rate=rate, ent_coef=0.01, policy_kwargs=networks(64, 64), seed=0, device="cpu",
    )  # fmt: skip


def hopper_ppo(total: int) -> Any:
    """PPO on Hopper-v5 with normalized observations and rewards."""
    env = VecNormalize(make_vec_env("Hopper-v5", n_envs=4, seed=0))
    return ALGORITHMS.PPO(
        "MlpPolicy", env, n_steps=512, batch_size=64, n_epochs=10, learning_rate=lambda left: 3e-4 * left,
        policy_kwargs=networks(64, 64), seed=0, device="cpu",
    )  # fmt: skip


def recurrent_ppo(total: int) -> Any:
    """Recurrent PPO on CartPole-v1, an LSTM each for actor and critic."""
    from sb3_contrib import RecurrentPPO

    return RecurrentPPO(
        "MlpLstmPolicy", make_vec_env("CartPole-v1", n_envs=8, seed=0), n_steps=128, batch_size=256, n_epochs=4,
        learning_rate=2.5e-4, seed=0, device="cpu",
        policy_kwargs={"lstm_hidden_size": 64, "n_lstm_layers": 1, "enable_critic_lstm": True, "net_arch": [64, 64]},
    )  # fmt: skip


def pong_dqn(total: int) -> Any:
    """DQN on Pong from pixels, with CleanRL's settings."""
    import ale_py
    import gymnasium

    gymnasium.register_envs(ale_py)
    env = VecFrameStack(make_atari_env("PongNoFrameskip-v4", n_envs=1, seed=0), 4)
    return ALGORITHMS.DQN(
        "CnnPolicy", env, learning_rate=1e-4, buffer_size=20_000, learning_starts=1000, batch_size=32, gamma=0.99,
        train_freq=4, gradient_steps=1, target_update_interval=1000, exploration_fraction=500 / total,
        exploration_final_eps=0.01, seed=0, device="cpu",
    )  # fmt: skip


def halfcheetah(name: str) -> Any:
    """SAC or TD3 on HalfCheetah-v5."""
    return getattr(ALGORITHMS, name)(
        "MlpPolicy", "HalfCheetah-v5", learning_rate=3e-4, batch_size=256, buffer_size=100_000, learning_starts=256,
        train_freq=1, gradient_steps=1, policy_kwargs={"net_arch": [256, 256]}, device="cpu", seed=0,
    )  # fmt: skip


WORKLOADS = {
    "cartpole_ppo": cartpole_ppo,
    "hopper_ppo": hopper_ppo,
    "recurrent_ppo": recurrent_ppo,
    "pong_dqn": pong_dqn,
    "halfcheetah_sac": lambda total: halfcheetah("SAC"),
    "halfcheetah_td3": lambda total: halfcheetah("TD3"),
}


def main(args: argparse.Namespace) -> None:
    """Train, and print the steps per second."""
    import torch

    torch.set_num_threads(1)
    clock = Clock(args.warm_up)
    total = args.warm_up + args.measured
    WORKLOADS[args.workload](total).learn(total, callback=Marks(clock, args.workload.endswith("_ppo")))
    report(clock.per_second(), ["stable-baselines3", "sb3-contrib", "sbx-rl", "torch", "jax", "gymnasium"])


if __name__ == "__main__":
    main(arguments("workload"))
