"""Soft actor-critic (Haarnoja et al., 2018, arXiv:1801.01290 and arXiv:1812.05905), also as REDQ and DroQ.

Shapes: N transitions of a shard's part of a minibatch. Actions inside the losses are scaled to [-1, 1].
"""

from typing import cast

import numpy as np
import torch
from torch import Tensor

from lockstep.algorithms.sac import METRICS, NUM_ACTIONS, POLICY_METRICS, SACConfig
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
from lockstep.torch.continuous_policy import ContinuousPolicy, Critics
from lockstep.torch.distributions import SquashedGaussian
from lockstep.torch.flat import frozen_copy
from lockstep.torch.networks import actor_of
from lockstep.torch.session import Session
from lockstep.torch.transitions import TransitionBatch
from lockstep.world import stream_seed


class SAC(ActorCritic[SACConfig, Critics]):
    """Maximum-entropy actor-critic from a replay buffer, with target critics and a learned temperature.

    State across updates: `policy` (critics, actor, temperature), `target`, the two optimizers, each shard's
    replay buffer and random stream, and `counters`, as in DQN.
    """

    def __init__(self, run: Run, policy: ContinuousPolicy, comm: Comm) -> None:
        config = run.algorithm
        assert isinstance(config, SACConfig)
        assert policy.temperature is not None
        super().__init__(run, policy, comm, METRICS, POLICY_METRICS, NUM_ACTIONS)
        self.temperature = policy.temperature
        self._distribution = cast(SquashedGaussian, policy.distribution)
        self._target_params = self.critic_params.clone()
        self.target = frozen_copy(policy.critics, self._target_params)
        self._target_entropy = -policy.spec.action.width if config.target_entropy is None else config.target_entropy
        for critics in (policy.critics, self.frozen_critics, self.target):
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
            self._target_params.lerp_(self.critic_params, self.config.target_rate)
            kept.add(parts)
        # One host sync per rollout; the next rollout would wait for the device anyway.
        if replayed.num_gradient_steps and self._stop_on_non_finite and bool(self._non_finite):
            raise self._non_finite_error(rollouts, kept.minibatches, progress)
        self._add_metrics(replayed, step_totals)
        return caller_sums

    def critic_loss(self, batch: TransitionBatch) -> tuple[Tensor, Tensor, Tensor]:
        """The critics' loss as a weighted *sum* over rows [N]; row count and metric sums; priorities [N].

        y   = R + discount (min_c Q'_c(s', a') - alpha log pi(a'|s')),  a' ~ pi(.|s')
        L_Q = w sum_c (y - Q_c(s, a))^2 / 2
        """
        policy = self.policy
        assert batch.noise is not None
        with torch.no_grad():
            with self._precision:
                parameters = policy.actor(batch.next_observation).float()
            action, log_prob = self._distribution.scaled_action_and_log_prob(parameters, batch.noise[:, 0])
            with self._precision:
                next_q = self.target(batch.next_observation, action).float()
            next_value = next_q[self._target_critics].amin(0) - self.temperature() * log_prob
            y = losses.td_target(batch.reward, batch.discount, next_value)
        with self._precision:
            q = policy.critics(batch.observation, policy.scaled(batch.action)).float()
        error = y - q
        row_loss = 0.5 * error.square().sum(0)
        with torch.no_grad():
            priority = error.abs().mean(0)
            sums = torch.stack([torch.ones_like(row_loss), batch.weight * row_loss, q.mean(0), y, priority]).sum(1)
        return torch.dot(batch.weight, row_loss), sums, priority

    def actor_loss(self, batch: TransitionBatch) -> tuple[Tensor, Tensor]:
        """The loss of actor and temperature as a *sum* over rows [N]; row count and metric sums.

        L_pi    = alpha log pi(b|s) - min_c Q_c(s, b),  b ~ pi(.|s)
        L_alpha = -log alpha (log pi(b|s) + target entropy)

        With `target_critics`, the mean over all critics c replaces the minimum.
        """
        assert batch.noise is not None
        with self._precision:
            parameters = self.policy.actor(batch.observation).float()
        action, log_prob = self._distribution.scaled_action_and_log_prob(parameters, batch.noise[:, 1])
        with self._precision:
            q = self.frozen_critics(batch.observation, action).float()
        alpha = self.temperature()
        row_loss = alpha * log_prob - (q.amin(0) if self.config.target_critics is None else q.mean(0))
        loss = row_loss.sum()
        if self.config.alpha is None:
            loss = loss - self.temperature.log_alpha * (log_prob.detach() + self._target_entropy).sum()
        with torch.no_grad():
            ones = torch.ones_like(row_loss)
            sums = torch.stack([ones, row_loss, -log_prob, alpha * ones]).sum(1)
        return loss, sums

    def copy_to_target(self) -> None:
        """Make the actor equal to that of `evaluated`, and the target critics to the critics."""
        self.actor_params.copy_(self.average_params)
        self._target_params.copy_(self.critic_params)


def train(session: Session[Run]) -> None:
    """Collect, update, log, evaluate, checkpoint, until all ranks together have taken `run.total_steps` steps."""
    run = session.run
    comm = session.comm
    timers = session.timers
    config = run.algorithm
    assert isinstance(config, SACConfig)
    check_task(run, session.spec)
    policy = ContinuousPolicy(session.spec, run.network, config, seed=stream_seed(run.seed, "init")).to(comm.device)
    sac = SAC(run, policy, comm)
    session.begin(sac.evaluated, sac)
    sac.copy_to_target()  # `init_from` may have changed the policy
    announce_replay(session.journal, run, policy.spec, comm.world, sac.storage)
    explorer = UniformStart(session.spec.action, policy.distribution)
    actor = actor_of(policy, comm.device, capture_acting(session.journal, run, comm))
    collector = session.make_collector(actor, explorer, report_non_finite=True)
    announce_capture(session.journal, run, comm, sac.flat)
    if run.compile:
        sac.compile_steps()
    progress = Progress(run.total_steps)
    new_steps = run.num_envs * config.num_steps
    with session.training(progress, collector):
        while not session.over:
            explorer.random = progress.env_steps < sac.replays.random_until(progress.env_steps)
            rollouts = collector.collect()
            timers.enter(LEARN)
            totals = sac.update(rollouts, session.local_statistics(), progress)
            timers.enter(OTHER)
            session.advance(new_steps, totals)
            session.log_evaluate_checkpoint(new_steps, sac.metrics.read)
        session.checkpoint_last(sac.metrics.read)
