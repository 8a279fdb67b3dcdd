"""TD3 with behaviour cloning on logged continuous actions (Fujimoto and Gu, 2021, arXiv:2106.06860).

Shapes: K shards of this rank, N rows of a shard's part of a minibatch, C critics, P parameters of the actor.
"""

import copy
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from lockstep.algorithms.offline_continuous import TD3BCConfig
from lockstep.algorithms.replay import VALUE_METRICS
from lockstep.data.rows import Rows
from lockstep.record.progress import Progress
from lockstep.run import OfflineRun
from lockstep.torch.comm import Comm
from lockstep.torch.flat import divisor, frozen_copy
from lockstep.torch.metrics import Metrics
from lockstep.torch.offline.batch import LoggedBatch
from lockstep.torch.offline.learner import OfflineLearner
from lockstep.torch.offline.losses import discount_of, model_losses
from lockstep.torch.offline.noise import Noise
from lockstep.torch.offline.optimizer import STEP_METRICS, OfflineOptimizer, TargetNetworks
from lockstep.torch.scoring.actor_policy import ActorPolicy
from lockstep.torch.scoring.candidates import CandidateNetwork
from lockstep.torch.scoring.continuous_networks import DeterministicActor, ScoringCritics
from lockstep.torch.value_losses import squared, td_target

_ACTOR_METRICS = ("loss/policy", "loss/behaviour")


class TD3BC(OfflineLearner[ActorPolicy]):
    """Critics, and a deterministic actor that is updated every `policy_delay` steps.

    A gradient step sends one message, and one more where it updates the actor, whose loss needs the new critics.

    The gradient of the actor is alpha / mean |Q| times that of -Q, plus that of the imitation of the log. The mean
    is that of the global batch, which is known only after the message. So the message holds both gradients: that of
    the imitation is computed with a copy of the actor, which has a part of the buffer for itself, and whose parameters
    are copied again after each step.

    State across updates: `policy`, `target`, `actor_target`, `optimizer` and `actor_optimizer`.

    Args:
        run: the config.
        policy: its `heads`, if any, are trained in the same step as the critics.
        comm: the ranks.
    """

    def __init__(self, run: OfflineRun, policy: ActorPolicy, comm: Comm) -> None:
        config, network, heads = run.algorithm, policy.network, policy.heads
        assert isinstance(config, TD3BCConfig) and isinstance(network.actor, DeterministicActor)
        super().__init__(run, policy, comm)
        self.config, self.heads = config, heads
        self.actor, self.critics = network.actor, network.critics
        with_target = [self.critics] if heads is None else [self.critics, heads.value]
        others = [] if heads is None else [heads.value, heads.reward]
        self._metrics = VALUE_METRICS if heads is None else (*VALUE_METRICS, "loss/reward", "loss/policy_value")
        self.target, self.actor_target = TargetNetworks(with_target), TargetNetworks([self.actor])
        self._copy = copy.deepcopy(self.actor)
        # The sums of a gradient step: the rows' weight, then the metrics; of the actor's step also |Q|.
        self.optimizer = OfflineOptimizer(run, self.loss, self.critics, others, comm, num_sums=1 + len(self._metrics))
        self.actor_optimizer = OfflineOptimizer(run, self.actor_loss, self.actor, [self._copy], comm, num_sums=4)
        self.target.follow(self.optimizer)
        self._frozen_critics = frozen_copy(self.critics, self.optimizer.flat.params.detach())
        self.actor_target.follow(self.actor_optimizer)
        self.metrics = Metrics([*self._metrics, *_ACTOR_METRICS, *STEP_METRICS], comm.device)

    def update(self, parts: Sequence[Rows], caller_sums: np.ndarray, progress: Progress) -> np.ndarray:
        """One gradient step on every shard's part [N] of a minibatch, as `OfflineDQN.update`; *collective*."""
        batches = [self.part_of(rows, k, progress.env_steps) for k, rows in enumerate(parts)]
        sums, caller_sums, skipped = self.optimizer.learn(batches, caller_sums, progress)
        self.metrics.add(self._metrics, sums[1:-2], sums[0])
        self.optimizer.add_metrics(self.metrics, sums)
        if not skipped and (progress.updates + 1) % self.config.policy_delay == 0:
            self._update_actor(batches, progress)
        return caller_sums

    def loss(self, batch: LoggedBatch, noise: Noise) -> tuple[Tensor, Tensor]:
        """The weighted *sum* of the critics' losses over rows [N], and the sums of a gradient step.

        L = w sum_c (y - Q_c(s, a))^2 / 2,  y = r + discount min_c Q'_c(s', a'),
            a' = clip(pi'(s') + clip(target_noise e, -noise_clip, noise_clip), -1, 1),  e standard normal
          + w losses of the models for estimates
        """
        c, weight = self.config, batch.weight
        with self._autocast:
            with torch.no_grad():
                smoothing = (c.target_noise * noise.normal[:, 0]).clamp(-c.noise_clip, c.noise_clip)
                next_action = (self.actor_target.networks[0](batch.next_state) + smoothing).clamp(-1.0, 1.0)
                next_q = cast(ScoringCritics, self.target.networks[0])(batch.next_state, next_action).float().amin(0)
                y = td_target(c.reward_scale * batch.reward, discount_of(c, batch), next_q)
            q = self.critics(batch.state, batch.action).float()
            models = self._model_losses(batch)
        value_loss = squared(y - q).sum(0)
        total = torch.dot(weight, torch.stack([value_loss, *models]).sum(0))
        metrics = [value_loss, q.mean(0), y, (y - q).abs().mean(0), *models]
        return total, torch.stack([weight, *(weight * metric.detach() for metric in metrics)]).sum(1)

    def actor_loss(self, batch: LoggedBatch, noise: Noise) -> tuple[Tensor, Tensor]:
        """The weighted *sums* of both terms of the actor's loss over rows [N], and the sums of a gradient step.

        -w Q_1(s, pi(s)) of the actor, and w mean_k (pi(s) - a)^2 of its copy
        """
        weight = batch.weight
        with self._autocast:
            q = self._frozen_critics(batch.state, self.actor(batch.state), 1)[0].float()
            imitation = (self._copy(batch.state).float() - batch.action).square().mean(-1)
        sums = [weight, weight * q.detach().abs(), -weight * q.detach(), weight * imitation.detach()]
        return torch.dot(weight, imitation - q), torch.stack(sums).sum(1)

    def _update_actor(self, batches: Sequence[tuple[LoggedBatch, Noise]], progress: Progress) -> None:
        no_sums = np.zeros((len(batches), 0))
        sums, _, skipped = self.actor_optimizer.learn(batches, no_sums, progress, combine=self._combine)
        self.metrics.add(("optim/skipped",), sums[-1:], torch.zeros_like(sums[0]))  # this step was counted already
        if skipped:
            return
        actor, copied = self.actor_optimizer.flat.params.detach().chunk(2)
        copied.copy_(actor)
        normalized_q = self._lambda(sums) * sums[2]
        self.metrics.add(_ACTOR_METRICS, torch.stack([normalized_q + sums[3], sums[3]]), sums[0])
        self.target.move(self.config.target_rate)
        self.actor_target.move(self.config.target_rate)

    def _combine(self, gradient: Tensor, sums: Tensor) -> None:
        """Join the gradients of both terms in that of the actor."""
        of_q, of_imitation = gradient.chunk(2)
        of_q.mul_(self._lambda(sums)).add_(of_imitation)

    def _lambda(self, sums: Tensor) -> Tensor:
        """Lambda = alpha / mean |Q(s, pi(s))| of the global batch."""
        return self.config.alpha * sums[0] / divisor(sums[1])

    def _model_losses(self, batch: LoggedBatch) -> list[Tensor]:
        """Losses [N] of the models for estimates."""
        if self.heads is None:
            return []
        with torch.no_grad():
            next_action = self.actor(batch.next_state)
            following = cast(CandidateNetwork, self.target.networks[1]).of_one(batch.next_state, next_action).float()
        return model_losses(self.heads, batch, following, self.config)

    def part_of(self, rows: Rows, k: int, step: int) -> tuple[LoggedBatch, Noise]:
        """The rows of local shard `k`, and their random numbers."""
        return self.with_noise(rows, k, step, num_normal=1)

    def reset_copies(self) -> None:
        """Copy the actor to its target and to the copy of the imitation, after another policy was loaded."""
        self._copy.load_state_dict(self.actor.state_dict())
        self.actor_target.move(1.0)

    def warmup_step(self, rows: Rows) -> Callable[[], object]:
        """Return a function that takes a gradient step of all networks, without messages or effects."""
        batches = self.part_of(rows, 0, 0)
        critics = self.optimizer.warmup_step(batches)
        actor = self.actor_optimizer.warmup_step(batches)
        return lambda: (critics(), actor())

    def shared_tensors(self) -> dict[str, Tensor]:
        """The state that is equal on all ranks, without a copy: writing to these tensors restores a run."""
        named = {f"copy.{name}": tensor for name, tensor in self._copy.state_dict().items()}
        named |= {f"actor.{name}": tensor for name, tensor in self.actor_optimizer.state().items()}
        return super().shared_tensors() | named
