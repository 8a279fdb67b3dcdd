"""TorchRL: PPO on CartPole-v1, written as its own example does."""

import argparse

import torch
from clock import Clock, arguments, report
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
from torchrl.envs import GymEnv, SerialEnv
from torchrl.modules import ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

ENVS, STEPS, EPOCHS, MINIBATCHES = 8, 128, 4, 4
ROLLOUT = ENVS * STEPS


def network(outputs: int) -> nn.Sequential:
    """Two tanh layers of 64 units."""
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))


def main(args: argparse.Namespace) -> None:
    """Train, and print the steps per second."""
    torch.set_num_threads(1)
    total = args.warm_up + args.measured
    envs = SerialEnv(ENVS, lambda: GymEnv("CartPole-v1", categorical_action_encoding=True))
    actor = ProbabilisticActor(
        TensorDictModule(network(2), in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"], distribution_class=torch.distributions.Categorical, return_log_prob=True,
    )  # fmt: skip
    critic = ValueOperator(network(1), in_keys=["observation"])
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic, average_gae=True)
    loss = ClipPPOLoss(
        actor, critic, clip_epsilon=0.2, entropy_coeff=0.01, critic_coeff=0.5, loss_critic_type="l2",
    )  # fmt: skip
    optimizer = torch.optim.Adam(loss.parameters(), lr=2.5e-4, eps=1e-5)
    rows = ReplayBuffer(
        storage=LazyTensorStorage(ROLLOUT), sampler=SamplerWithoutReplacement(), batch_size=ROLLOUT // MINIBATCHES
    )
    collector = Collector(envs, actor, frames_per_batch=ROLLOUT, total_frames=total)
    clock, steps = Clock(args.warm_up), 0
    for rollout in collector:
        with torch.no_grad():
            advantage(rollout)
        rows.extend(rollout.reshape(-1))
        for _ in range(EPOCHS):
            for minibatch in rows:
                terms = loss(minibatch)
                optimizer.zero_grad()
                (terms["loss_objective"] + terms["loss_critic"] + terms["loss_entropy"]).backward()
                nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
                optimizer.step()
        steps += ROLLOUT
        clock.mark(steps)
    collector.shutdown()
    report(clock.per_second(), ["torchrl", "tensordict", "torch", "gymnasium"])


if __name__ == "__main__":
    main(arguments("work"))
