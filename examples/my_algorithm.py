"""An algorithm of your own on Lockstep's parts: advantage actor-critic (A2C; Mnih et al., 2016, arXiv:1602.01783).

    python examples/my_algorithm.py                                     one rank
    python examples/my_algorithm.py --ranks 2                           two; the same learning curve up to rounding
    python examples/my_algorithm.py --ranks 2 --num-shards 2            pinned: the same *bits* as with --ranks 1

This file contains no rank-dependent code: it loops over the shards of this process, and `comm` and `session`
make sums and decisions global. Shapes: K shards of this rank, T steps, B environments of a shard, O observation.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lockstep import Comm, PPOConfig, Progress, Run, spawn, stream_seed
from lockstep.experience import Collector, Rollout
from lockstep.torch import Adam, FlatParameters, Metrics, Policy, Session, actor_of, gae

METRICS = ("loss/policy", "loss/value", "policy/entropy")


class A2C:
    """One gradient step per rollout, with everything that crosses ranks in two messages."""

    def __init__(self, run: Run, policy: Policy, comm: Comm) -> None:
        self.config, self.policy, self.comm = run.algorithm, policy, comm
        comm.broadcast_(policy)
        self.flat = FlatParameters(policy, len(comm.world.shards), num_sums=1 + len(METRICS))
        rate = torch.tensor(self.config.learning_rate, device=comm.device)
        self.optimizer = Adam(self.flat.values, self.flat.gradient, rate, eps=self.config.adam_eps)
        self.metrics = Metrics(METRICS, comm.device)

    def update(self, rollouts: list[Rollout], statistics: np.ndarray) -> np.ndarray:
        """Learn from one rollout of each local shard; returns `statistics` [K, M] summed over all shards."""
        for k, rollout in enumerate(rollouts):
            self.flat.zero_gradient_()  # not zero_grad(): gradients are views of one buffer
            loss, sums = self.loss(rollout)
            loss.backward()
            self.flat.store_shard(k, sums)
        sums = self.comm.average_gradients_(self.flat)  # divides by the weight of all ranks, so clip after it
        gradient = self.flat.gradient
        gradient.mul_((0.5 / (gradient.norm() + 1e-6)).clamp_(max=1.0))
        self.optimizer.step()
        self.metrics.add(METRICS, sums[1:], sums[0])
        return self.comm.sum_shards(torch.from_numpy(statistics), "facts").numpy()

    def shared_tensors(self) -> dict[str, Tensor]:
        """State that is equal on all ranks: compared while training and saved in checkpoints."""
        optimizer = {f"optimizer.{name}": tensor for name, tensor in self.optimizer.state().items()}
        return self.policy.state_dict() | optimizer | {"metrics": self.metrics.table}

    def shard_state(self, k: int) -> dict:
        """State of one shard besides that of its environments; here none."""
        return {}

    def restore_shard(self, k: int, state: dict) -> None:
        """Restore the result of `shard_state`."""

    def loss(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """-A log pi(a|s) + c_v (V(s) - target)^2 / 2 - c_e H, *summed* over rows; sums for the log, weight first."""
        c, device, (steps, size) = self.config, self.comm.device, rollout.reward.shape
        parameters, values = self.policy(torch.from_numpy(rollout.observation).to(device).flatten(0, 1))
        value, next_value = values.view(steps + 1, size)[:-1], values.view(steps + 1, size)[1:].detach().clone()
        with torch.no_grad():
            for t, envs, final in rollout.final:  # truncated: the row after is the next episode's, use the true one
                next_value[t, torch.from_numpy(envs)] = self.policy(torch.from_numpy(final).to(device))[1]
            statistics = (rollout.reward, rollout.terminated, rollout.ended)
            reward, terminated, ended = (torch.from_numpy(x).to(device, torch.float32) for x in statistics)
            advantage = gae(
                reward, value.detach(), next_value, terminated, ended, gamma=c.gamma, gae_lambda=c.gae_lambda
            )
        action = torch.from_numpy(rollout.action).to(device).flatten(0, 1)
        log_prob, entropy = self.policy.distribution.log_prob_and_entropy(parameters[: steps * size], action)
        weight = torch.from_numpy(rollout.weight).to(device).flatten()  # 0 where an environment only reset itself
        policy_loss = -advantage.flatten() * log_prob
        value_loss = 0.5 * (value - (value.detach() + advantage)).square().flatten()
        total = weight @ (policy_loss + c.value_coef * value_loss - c.entropy_coef * entropy)
        return total, torch.stack([torch.ones_like(weight), policy_loss, value_loss, entropy]).detach() @ weight


def train(session: Session) -> None:
    """The training loop. `session` provides environments, logs, evaluation, checks, and the stop condition."""
    run, comm, timers = session.run, session.comm, session.timers
    policy = Policy(session.spec, run.network, seed=stream_seed(run.seed, "init")).to(comm.device)
    a2c = A2C(run, policy, comm)
    session.begin(policy, None, a2c)
    envs, actor, num_steps = session.make_envs(run.num_envs), actor_of(policy, comm.device), run.algorithm.num_steps
    collector = Collector(
        comm.world, envs, actor, policy.distribution, num_steps=num_steps, seed=run.seed, timers=timers
    )
    progress, batch_size = Progress(run.total_steps), run.num_envs * num_steps
    with session.training(progress, collector):
        while not session.over:
            rollouts = collector.collect()
            with timers.phase("learn"):
                totals = a2c.update(rollouts, session.local_statistics())
            session.advance(batch_size, totals)
            session.log_evaluate_checkpoint(batch_size, a2c.metrics.read)
        session.checkpoint_last(a2c.metrics.read)


def one_rank(rank: int, run: Run, run_dir: Path | None = None) -> dict:
    """One rank from start to end; returns the summary."""
    with Session(run, run_dir=run_dir) as session:
        train(session)
    return session.summary


def main() -> None:
    """Settings, then ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--num-shards", type=int)
    parser.add_argument("--total-steps", type=int, default=300_000)
    args = parser.parse_args()
    run = Run(
        task="CartPole-v1",
        num_envs=16,
        num_shards=args.num_shards,
        total_steps=args.total_steps,
        algorithm=PPOConfig(num_steps=8, learning_rate=2e-3, gae_lambda=0.95),  # A2C's settings are among PPO's
    )
    if args.ranks > 1:
        spawn(one_rank, args.ranks, (run,))
    else:
        one_rank(0, run)


if __name__ == "__main__":
    main()
