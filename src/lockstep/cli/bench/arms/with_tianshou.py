"""Tianshou: PPO on CartPole-v1, by its collector and its algorithm."""

import argparse

import gymnasium
import torch
from clock import Clock, arguments, report
from tianshou.algorithm import PPO
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.utils.net.common import Net
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
from tianshou.utils.torch_utils import policy_within_training_step

ENVS, STEPS, EPOCHS, MINIBATCHES = 8, 128, 4, 4
ROLLOUT = ENVS * STEPS


def body() -> Net:
    """Two tanh layers of 64 units."""
    return Net(state_shape=(4,), hidden_sizes=(64, 64), activation=torch.nn.Tanh)


def main(args: argparse.Namespace) -> None:
    """Train, and print the steps per second."""
    torch.set_num_threads(1)
    envs = DummyVectorEnv([lambda: gymnasium.make("CartPole-v1") for _ in range(ENVS)])
    actor = DiscreteActor(preprocess_net=body(), action_shape=2, softmax_output=False)
    policy = DiscreteActorPolicy(actor=actor, action_space=gymnasium.make("CartPole-v1").action_space)
    algorithm = PPO(
        policy=policy, critic=DiscreteCritic(preprocess_net=body()), optim=AdamOptimizerFactory(lr=2.5e-4, eps=1e-5),
        eps_clip=0.2, ent_coef=0.01, vf_coef=0.5, max_grad_norm=0.5, gae_lambda=0.95, gamma=0.99,
    )  # fmt: skip
    collector = Collector(algorithm, envs, VectorReplayBuffer(ROLLOUT, ENVS))
    collector.reset()
    clock = Clock(args.warm_up)
    for steps in range(ROLLOUT, args.warm_up + args.measured + 1, ROLLOUT):
        collector.collect(n_step=ROLLOUT)
        with policy_within_training_step(policy):
            algorithm.update(collector.buffer, ROLLOUT // MINIBATCHES, EPOCHS)
        collector.reset_buffer(keep_statistics=True)
        clock.mark(steps)
    report(clock.per_second(), ["tianshou", "torch", "gymnasium"])


if __name__ == "__main__":
    main(arguments("work"))
