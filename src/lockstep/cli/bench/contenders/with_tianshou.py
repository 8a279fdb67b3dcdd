"""Tianshou: PPO on CartPole-v1 and on Hopper-v5, by its collector and its algorithm."""

import argparse
from typing import Any

import gymnasium
import torch
from clock import Clock, arguments, report
from ppo_settings import WORKLOADS, Settings
from tianshou.algorithm import PPO
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy, ProbabilisticActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv, VectorEnvNormObs
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
from tianshou.utils.torch_utils import policy_within_training_step


def normal(mean_and_scale: tuple[torch.Tensor, torch.Tensor]) -> torch.distributions.Distribution:
    """Independent normal distributions of the actions."""
    return torch.distributions.Independent(torch.distributions.Normal(*mean_and_scale), 1)


def networks(workload: Settings) -> tuple[Any, Any]:
    """Policy and critic, each of two tanh layers of 64 units."""
    env = gymnasium.make(workload.task)

    def body() -> Net:
        return Net(state_shape=env.observation_space.shape, hidden_sizes=(64, 64), activation=torch.nn.Tanh)

    if not workload.continuous:
        actor = DiscreteActor(preprocess_net=body(), action_shape=env.action_space.n, softmax_output=False)
        return DiscreteActorPolicy(actor=actor, action_space=env.action_space), DiscreteCritic(preprocess_net=body())
    actor = ContinuousActorProbabilistic(
        preprocess_net=body(), action_shape=env.action_space.shape, unbounded=True
    )  # fmt: skip
    policy = ProbabilisticActorPolicy(
        actor=actor, dist_fn=normal, action_space=env.action_space, action_scaling=False, action_bound_method="clip"
    )
    return policy, ContinuousCritic(preprocess_net=body())


def main(args: argparse.Namespace) -> None:
    """Train, and print the steps per second."""
    torch.set_num_threads(1)
    workload = WORKLOADS[args.workload]
    rollout = workload.envs * workload.steps
    envs: Any = DummyVectorEnv([lambda: gymnasium.make(workload.task) for _ in range(workload.envs)])
    if workload.continuous:
        envs = VectorEnvNormObs(envs)
    policy, critic = networks(workload)
    algorithm = PPO(
        policy=policy, critic=critic, optim=AdamOptimizerFactory(lr=workload.learning_rate, eps=1e-5), eps_clip=0.2,
        ent_coef=workload.entropy, vf_coef=0.5, max_grad_norm=0.5, gae_lambda=0.95, gamma=0.99,
        return_scaling=workload.continuous,
    )  # fmt: skip
    collector = Collector(algorithm, envs, VectorReplayBuffer(rollout, workload.envs))
    collector.reset()
    clock = Clock(args.warm_up)
    for steps in range(rollout, args.warm_up + args.measured + 1, rollout):
        collector.collect(n_step=rollout)
        with policy_within_training_step(policy):
            algorithm.update(collector.buffer, rollout // workload.minibatches, workload.epochs)
        collector.reset_buffer(keep_statistics=True)
        clock.mark(steps)
    report(clock.per_second(), ["tianshou", "torch", "gymnasium", "mujoco"])


if __name__ == "__main__":
    main(arguments("workload"))
