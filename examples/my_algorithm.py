"""An algorithm of your own on Lockstep's parts: advantage actor-critic (A2C; Mnih et al., 2016, arXiv:1602.01783).

    python examples/my_algorithm.py --ranks 2     the same *bits* as with one rank: the number of shards is fixed

No line depends on the rank: it loops over the shards of this process; `comm` and `session` make sums global.
"""

import argparse
import time
from pathlib import Path

import torch

from lockstep import Comm, PPOConfig, Progress, Run, spawn, stream_seed
from lockstep.experience import Rollout
from lockstep.torch import Adam, FlatParameters, Metrics, Policy, Session, actor_of, gae

METRICS = ("loss/policy", "loss/value", "policy/entropy")


class A2C:
    """One gradient step per rollout, with everything that crosses ranks in two messages."""

    def __init__(self, run: Run, policy: Policy, comm: Comm) -> None:
        self.config, self.policy, self.comm = run.algorithm, policy, comm
        comm.broadcast_(policy)
        self.flat = FlatParameters(policy, len(comm.world.shards), num_sums=1 + len(METRICS))
        self.optimizer = Adam(self.flat.params, self.flat.gradient, torch.tensor(self.config.learning_rate), eps=1e-5)
        self.metrics = Metrics(METRICS, comm.device)

    def update(self, rollouts: list[Rollout]) -> None:
        """Learn from one rollout of each local shard."""
        for k, rollout in enumerate(rollouts):
            self.flat.zero_gradient_()  # not zero_grad(): gradients are views of one buffer
            loss, sums = self.loss(rollout)
            loss.backward()
            self.flat.store_shard(k, sums)  # of every shard, zeros for one without rows
        sums = self.comm.average_gradients_(self.flat)  # divides by the weight of all ranks, so clip after it
        self.flat.gradient.mul_((0.5 / (self.flat.gradient.norm() + 1e-6)).clamp_(max=1.0))
        self.optimizer.step()
        self.metrics.add(METRICS, sums[1:], sums[0])

    def loss(self, rollout: Rollout) -> tuple[torch.Tensor, torch.Tensor]:
        """-A log pi(a|s) + c_v (V(s) - target)^2 / 2 - c_e H, *summed* over rows; sums for the log, weight first."""
        c, (steps, size) = self.config, rollout.reward.shape
        parameters, values = self.policy(torch.from_numpy(rollout.observation).flatten(0, 1))
        value, next_value = values.view(steps + 1, size)[:-1], values.view(steps + 1, size)[1:].detach().clone()
        for t, envs, final in rollout.final:  # truncated: the row after is the next episode's, use the true one
            next_value[t, torch.from_numpy(envs)] = self.policy(torch.from_numpy(final))[1].detach()
        reward, *ends = (torch.from_numpy(a).float() for a in (rollout.reward, rollout.terminated, rollout.ended))
        advantage = gae(reward, value.detach(), next_value, *ends, gamma=c.gamma, gae_lambda=c.gae_lambda)
        action, weight = (torch.from_numpy(a).flatten(0, 1) for a in (rollout.action, rollout.weight))
        log_prob, entropy = self.policy.distribution.log_prob_and_entropy(parameters[: steps * size], action)
        policy_loss = -advantage.flatten() * log_prob  # of weight 0 where an environment only reset itself
        value_loss = 0.5 * (value - (value.detach() + advantage)).square().flatten()
        total = weight @ (policy_loss + c.value_coef * value_loss - c.entropy_coef * entropy)
        return total, torch.stack([torch.ones_like(weight), policy_loss, value_loss, entropy]).detach() @ weight

    def shared_tensors(self) -> dict[str, torch.Tensor]:
        """State that is equal on all ranks: compared, saved, filled by a resumed run; `evaluate` reads `policy.*`."""
        parts = ("policy", self.policy.state_dict()), ("optimizer", self.optimizer.state())
        return {f"{part}.{k}": v for part, state in parts for k, v in state.items()} | {"metrics": self.metrics.table}

    def shard_state(self, k: int) -> dict:
        """State of one shard besides that of its environments; here none."""
        return {}

    def restore_shard(self, k: int, state: dict) -> None:
        """Restore the result of `shard_state`."""


def train(rank: int, run: Run, run_dir: Path | None = None, resume: Path | None = None) -> dict:
    """One rank from start to end; returns the summary."""
    with Session(run, run_dir=run_dir, resume=resume) as session:  # environments, logs, evaluations, checkpoints
        policy = Policy(session.spec, run.network, seed=stream_seed(run.seed, "init")).to(session.comm.device)
        a2c = A2C(run, policy, session.comm)
        session.begin(policy, a2c)
        collector = session.make_collector(actor_of(policy, session.comm.device), policy.distribution)
        new_steps = run.num_envs * run.algorithm.num_steps
        with session.training(Progress(run.total_steps), collector):
            while not session.over:
                rollouts = collector.collect()
                with session.timers.phase("learn"):
                    a2c.update(rollouts)
                totals = session.comm.sum_shards(torch.from_numpy(session.local_statistics()), "statistics").numpy()
                session.advance(new_steps, totals)
                session.log_evaluate_checkpoint(new_steps, a2c.metrics.read)
            session.checkpoint_last(a2c.metrics.read)
    return session.summary


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=1, choices=(1, 2))
    parser.add_argument("--total-steps", type=int, default=300_000)
    parser.add_argument("--resume", type=Path, help="a run directory of this script")
    args = parser.parse_args()
    a2c = PPOConfig(num_steps=8, learning_rate=2e-3, gae_lambda=0.95)  # it reads these, gamma and two coefs
    run = Run(task="CartPole-v1", num_envs=16, num_shards=2, total_steps=args.total_steps, algorithm=a2c, device="cpu")
    spawn(train, args.ranks, (run, Path(time.strftime("runs/a2c-%Y%m%d-%H%M%S")), args.resume))
