"""Twin delayed deep deterministic policy gradient (Fujimoto et al., 2018, arXiv:1802.09477).

DDPG (Lillicrap et al., 2016, arXiv:1509.02971) is one critic, no delay and no noise of the target.

Shapes: N transitions of a shard's part of a minibatch. Actions inside the losses are scaled to [-1, 1].
"""

import numpy as np
import torch
from torch import Tensor

from lockstep.algorithms.td3 import METRICS, NUM_ACTIONS, POLICY_METRICS, TD3Config
from lockstep.distributed.timers import LEARN, OTHER
from lockstep.experience.exploration import UniformStart
from lockstep.experience.rollout import Rollout
from lockstep.record.progress import Progress
from lockstep.run import Run
from lockstep.session.kept_minibatches import KeptMinibatches
from lockstep.session.shard_replays import announce_replay
from lockstep.session.task_checks import check_task
from lockstep.torch import value_losses as losses
from lockstep.torch.actor_critic import ActorCritic
from lockstep.torch.capture import announce_capture, capture_acting
from lockstep.torch.comm import Comm
from lockstep.torch.continuous_policy import ContinuousPolicy
from lockstep.torch.flat import frozen_copy
from lockstep.torch.networks import actor_of
from lockstep.torch.session import Session
from lockstep.torch.transitions import TransitionBatch
from lockstep.world import stream_seed


class TD3(ActorCritic[TD3Config, ContinuousPolicy]):
    """Actor-critic with a deterministic policy from a replay buffer, with target networks of actor and critics.

    State across updates: `policy` (critics, actor), `target`, the two optimizers, each shard's
    replay buffer and random stream, and `counters`, as in DQN.
    """

    def __init__(self, run: Run, policy: ContinuousPolicy, comm: Comm) -> None:
        assert isinstance(run.algorithm, TD3Config)
        super().__init__(run, policy, comm, METRICS, POLICY_METRICS, NUM_ACTIONS)
        self._target_params = self.params.clone()
        self.target = frozen_copy(policy, self._target_params)
        for critics in (policy.critics, self.frozen_critics, self.target.critics):
            critics.generator = self.dropout

    def update(self, rollouts: list[Rollout], caller_sums: np.ndarray, progress: Progress | None = None) -> np.ndarray:
        """Add every shard's rollout to its buffer, and take the due gradient steps, as `DQN.update`; *collective*."""
        progress = progress or Progress(1)
        replayed, caller_sums = self.replays.extend(rollouts, caller_sums, progress)
        if replayed.skipped and self._stop_on_non_finite:
            raise self._non_finite_error(rollouts, [], progress)
        self._set_learning_rates(progress.fraction)
        step_totals = torch.zeros_like(self._skipped_step)
        kept = KeptMinibatches[TransitionBatch](lambda: bool(self._non_finite), enabled=self._stop_on_non_finite)
        for drawn, weights in self.replays.minibatches(replayed):
            parts = self._parts(drawn, weights)
            step_totals += self._step(parts, drawn)
            if self.replays.gradient_steps % self.config.policy_delay == 0:  # this step updated the actor
                self._target_params.lerp_(self.params, self.config.target_rate)
            kept.add(parts)
        # One host sync per rollout; the next rollout would wait for the device anyway.
        if replayed.num_gradient_steps and self._stop_on_non_finite and bool(self._non_finite):
            raise self._non_finite_error(rollouts, kept.minibatches, progress)
        self._add_metrics(replayed, step_totals)
        return caller_sums

    def critic_loss(self, batch: TransitionBatch) -> tuple[Tensor, Tensor, Tensor]:
        """The critics' loss as a weighted *sum* over rows [N]; row count and metric sums; priorities [N].

        a'  = clip(pi'(s') + clip(target_noise e, -noise_clip, noise_clip), -1, 1),  e standard normal
        y   = R + discount min_c Q'_c(s', a')
        L_Q = w sum_c (y - Q_c(s, a))^2 / 2
        """
        c = self.config
        policy = self.policy
        assert batch.noise is not None
        with torch.no_grad():
            noise = (c.target_noise * batch.noise[:, 0]).clamp(-c.noise_clip, c.noise_clip)
            with self._precision:
                action = self.target.actor(batch.next_observation).float().tanh()
                next_q = self.target.critics(batch.next_observation, (action + noise).clamp(-1.0, 1.0)).float()
            y = losses.td_target(batch.reward, batch.discount, next_q[self._target_critics].amin(0))
        with self._precision:
            q = policy.critics(batch.observation, policy.scaled(batch.action)).float()
        error = y - q
        row_loss = 0.5 * error.square().sum(0)
        with torch.no_grad():
            priority = error.abs().mean(0)
            sums = torch.stack([torch.ones_like(row_loss), batch.weight * row_loss, q.mean(0), y, priority]).sum(1)
        return torch.dot(batch.weight, row_loss), sums, priority

    def actor_loss(self, batch: TransitionBatch) -> tuple[Tensor, Tensor]:
        """The actor's loss as a *sum* over rows [N]; row count and metric sums.

        L_pi = -Q_1(s, pi(s)), or minus the mean of all critics with `target_critics`
        """
        policy = self.policy
        count = 1 if self.config.target_critics is None else self.config.num_critics
        with self._precision:
            q = self.frozen_critics(batch.observation, policy.actor(batch.observation).tanh(), count).float()
        row_loss = -q.mean(0)
        with torch.no_grad():
            sums = torch.stack([torch.ones_like(row_loss), row_loss]).sum(1)
        return row_loss.sum(), sums

    def copy_to_target(self) -> None:
        """Make the actor equal to that of `evaluated`, and the target networks to the policy and its critics."""
        self.actor_params.copy_(self.average_params)
        self._target_params.copy_(self.params)


def train(session: Session[Run]) -> None:
    """Collect, update, log, evaluate, checkpoint, until all ranks together have taken `run.total_steps` steps."""
    run = session.run
    comm = session.comm
    timers = session.timers
    config = run.algorithm
    assert isinstance(config, TD3Config)
    check_task(run, session.spec)
    policy = ContinuousPolicy(session.spec, run.network, config, seed=stream_seed(run.seed, "init")).to(comm.device)
    td3 = TD3(run, policy, comm)
    session.begin(td3.evaluated, td3)
    td3.copy_to_target()  # `init_from` may have changed the policy
    announce_replay(session.journal, run, policy.spec, comm.world, td3.storage)
    explorer = UniformStart(session.spec.action, policy.distribution)
    actor = actor_of(policy, comm.device, capture_acting(session.journal, run, comm))
    collector = session.make_collector(actor, explorer, report_non_finite=True)
    announce_capture(session.journal, run, comm, td3.flat)
    if run.compile:
        td3.compile_steps()
    progress = Progress(run.total_steps)
    new_steps = run.num_envs * config.num_steps
    with session.training(progress, collector):
        while not session.over:
            explorer.random = progress.env_steps < td3.replays.random_until(progress.env_steps)
            rollouts = collector.collect()
            timers.enter(LEARN)
            totals = td3.update(rollouts, session.local_statistics(), progress)
            timers.enter(OTHER)
            session.advance(new_steps, totals)
            session.log_evaluate_checkpoint(new_steps, td3.metrics.read)
        session.checkpoint_last(td3.metrics.read)
