"""TorchRL: PPO on CartPole-v1 and on Hopper-v5, written as its own examples do."""

import argparse
from typing import Any

import torch
from clock import Clock, arguments, report
from ppo_settings import WORKLOADS, Settings
from tensordict.nn import AddStateIndependentNormalScale, TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
from torchrl.envs import Compose, DoubleToFloat, GymEnv, SerialEnv, TransformedEnv, VecNorm
from torchrl.modules import IndependentNormal, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE


def layers(inputs: int, outputs: int) -> list[nn.Module]:
    """Two tanh layers of 64 units."""
    return [nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)]


def actor_of(workload: Settings) -> Any:
    """The policy."""
    body = layers(workload.observation, workload.actions)
    if not workload.continuous:
        return ProbabilisticActor(
            TensorDictModule(nn.Sequential(*body), in_keys=["observation"], out_keys=["logits"]),
            in_keys=["logits"], distribution_class=torch.distributions.Categorical, return_log_prob=True,
        )  # fmt: skip
    network = nn.Sequential(*body, AddStateIndependentNormalScale(workload.actions))
    return ProbabilisticActor(
        TensorDictModule(network, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"], distribution_class=IndependentNormal, return_log_prob=True,
    )  # fmt: skip


def envs_of(workload: Settings) -> Any:
    """The environments."""
    if not workload.continuous:
        return SerialEnv(workload.envs, lambda: GymEnv(workload.task, categorical_action_encoding=True))
    envs = SerialEnv(workload.envs, lambda: GymEnv(workload.task))
    return TransformedEnv(envs, Compose(DoubleToFloat(["observation"]), VecNorm(in_keys=["observation", "reward"])))


def main(args: argparse.Namespace) -> None:
    """Train, and print the steps per second."""
    torch.set_num_threads(1)
    workload = WORKLOADS[args.workload]
    rollout = workload.envs * workload.steps
    actor = actor_of(workload)
    critic = ValueOperator(nn.Sequential(*layers(workload.observation, 1)), in_keys=["observation"])
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic, average_gae=True)
    loss = ClipPPOLoss(
        actor, critic, clip_epsilon=0.2, entropy_coeff=workload.entropy, critic_coeff=0.5, loss_critic_type="l2",
    )  # fmt: skip
    optimizer = torch.optim.Adam(loss.parameters(), lr=workload.learning_rate, eps=1e-5)
    rows = ReplayBuffer(
        storage=LazyTensorStorage(rollout),
        sampler=SamplerWithoutReplacement(),
        batch_size=rollout // workload.minibatches,
    )
    collector = Collector(envs_of(workload), actor, frames_per_batch=rollout, total_frames=args.warm_up + args.measured)
    clock, steps = Clock(args.warm_up), 0
    for batch in collector:
        with torch.no_grad():
            advantage(batch)
        rows.extend(batch.reshape(-1))
        for _ in range(workload.epochs):
            for minibatch in rows:
                terms = loss(minibatch)
                optimizer.zero_grad()
                (terms["loss_objective"] + terms["loss_critic"] + terms["loss_entropy"]).backward()
                nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
                optimizer.step()
        steps += rollout
        clock.mark(steps)
    collector.shutdown()
    report(clock.per_second(), ["torchrl", "tensordict", "torch", "gymnasium", "mujoco"])


if __name__ == "__main__":
    main(arguments("workload"))
