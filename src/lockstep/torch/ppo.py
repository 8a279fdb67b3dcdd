"""Proximal policy optimization (Schulman et al., 2017, arXiv:1707.06347).

Shapes: K shards of this rank, N transitions of a shard's part of a minibatch, M numbers of the caller.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from lockstep.algorithms.interface import ALL_SETTINGS
from lockstep.algorithms.ppo import BOUND, LOSS_METRICS, METRICS, PPOConfig
from lockstep.distributed.timers import LEARN, OTHER
from lockstep.experience.rollout import Collector
from lockstep.record.progress import Progress
from lockstep.run import Run
from lockstep.session.non_finite import NonFiniteError, locate_non_finite
from lockstep.session.normalizers import NormalizerError, Normalizers, UpdateStatistics
from lockstep.session.task_checks import check_task
from lockstep.torch.adam import Adam, adapted
from lockstep.torch.batch import Batch
from lockstep.torch.batch_builder import AnyRollout, BatchBuilder
from lockstep.torch.capture import GradientStep, announce_capture, capture_acting, capture_rollout
from lockstep.torch.comm import Comm
from lockstep.torch.device_rollout import TensorCollector
from lockstep.torch.device_shard import TensorRollout
from lockstep.torch.distributions import DiagonalGaussian, StateDependentGaussian, gaussian_kl
from lockstep.torch.flat import FlatParameters
from lockstep.torch.gradient import LossGradient, in_training
from lockstep.torch.metrics import Metrics
from lockstep.torch.minibatch_orders import MinibatchOrders
from lockstep.torch.networks import Policy, actor_of
from lockstep.torch.non_finite import LossReader
from lockstep.torch.session import Session
from lockstep.torch.symmetry import Symmetry, augmented
from lockstep.torch.transfer import to_device
from lockstep.torch.warmup import warmup_step
from lockstep.world import stream_seed


class PPO:
    """Clipped-surrogate policy gradient with a learned value baseline.

    State across updates: `policy`, `optimizer`, the learning rate, the normalizers, sums of metrics, and of each shard
    its minibatch stream and the state of a recurrent critic.
    """

    FOLLOWS = ALL_SETTINGS

    def __init__(self, run: Run, policy: Policy, comm: Comm) -> None:
        config = run.algorithm
        assert isinstance(config, PPOConfig)
        check_task(run, policy.spec)
        self.config = config
        self.policy = policy
        self.comm = comm
        shard_envs = comm.world.shard_size(run.num_envs, "num_envs")
        self.rows = run.minibatch_rows(comm.world)
        self.sequence_length = run.sequence_length
        comm.broadcast_(policy)
        self.flat = FlatParameters(policy, len(comm.world.shards), num_sums=1 + len(LOSS_METRICS))
        self.learning_rate = torch.tensor(config.learning_rate, device=comm.device)
        self.optimizer = Adam(self.flat.params, self.flat.gradient, self.learning_rate, eps=config.adam_eps)
        self.normalizers = Normalizers.of(config, policy.spec, len(comm.world.shards), shard_envs)
        self._symmetry = Symmetry(config.symmetry, policy.spec, comm.device) if config.symmetry else None
        self._orders = MinibatchOrders(config, self.sequence_length, run.seed, comm)
        self.metrics = Metrics(METRICS, comm.device)
        self._stop_on_non_finite = run.non_finite == "stop"
        self._non_finite = torch.zeros((), dtype=torch.bool, device=comm.device)
        # The result of a skipped step: zeros, then not_finite = 1. What follows the sums in the result of a step is the
        # norm of its gradient, 1 if it was taken, and 1 if a number was not finite.
        self._skipped_step = torch.tensor([0.0] * (1 + len(LOSS_METRICS)) + [0.0, 0.0, 1.0], device=comm.device)
        self._taken = torch.tensor([1.0, 0.0], device=comm.device)  # the end of the result of a step that is taken
        bfloat16 = run.precision == "bfloat16"
        self._precision = torch.autocast(comm.device.type, torch.bfloat16, enabled=bfloat16)
        self._builder = BatchBuilder(
            config, policy, self.normalizers, num_shards=len(comm.world.shards), shard_envs=shard_envs, rows=self.rows,
            device=comm.device, precision=self._precision if bfloat16 else None, symmetry=self._symmetry,
        )  # fmt: skip
        self._backward = LossGradient(
            self.flat, self.loss, compiled=run.compile, dynamic=False, mode=run.compile_mode, network=policy.network
        )
        self._gradient_step = GradientStep(run, comm, self.flat, self._accumulate_gradients, self._apply_gradient)

    def update(
        self, rollouts: Sequence[AnyRollout], caller_sums: np.ndarray, progress: Progress | None = None
    ) -> np.ndarray:
        """Improve the policy on one rollout of every local shard; collective.

        Args:
            rollouts: one for each local shard.
            caller_sums: [K, M] numbers of the caller, summed over all shards in the same message.
            progress: counters before this rollout, for the learning rate schedule; default: start of the run.

        Returns:
            The sums of `caller_sums` [M].

        Raises:
            NonFiniteError: on all ranks, if `non_finite` is `stop` and a number is not finite.
        """
        c = self.config
        progress = progress or Progress(1)
        if c.learning_rate_schedule != "adaptive":  # a resumed run may have another
            remaining = 1.0 - progress.fraction if c.learning_rate_schedule == "linear" else 1.0
            self.learning_rate.fill_(c.learning_rate * remaining)
        batches, statistics, fault, caller_sums = self._prepare(rollouts, caller_sums)
        if statistics is None:
            if self._stop_on_non_finite and fault is not None:
                raise NormalizerError(*fault, progress)
            if self._stop_on_non_finite:
                raise self._non_finite_error(rollouts, batches, progress)
            steps = c.num_epochs * c.num_minibatches  # all are skipped
            self.metrics.add(("optim/skipped",), torch.full((1,), float(steps), device=self.comm.device), steps)
            return caller_sums
        orders = [self._orders.take(k, len(batch.target)) for k, batch in enumerate(batches)]
        for epoch in zip(*orders, strict=True):
            shuffled = [batch.shuffled(order) for batch, order in zip(batches, epoch, strict=True)]
            minibatches = [batch.split(self.rows, self.sequence_length) for batch in shuffled]
            sums = torch.zeros_like(self._skipped_step)
            for parts in zip(*minibatches, strict=True):
                self.comm.timers.enter(LEARN)  # a heartbeat: an update may take long
                of_step, _ = self._gradient_step(parts)
                sums += of_step
                self._adapt_learning_rate("minibatch", of_step)
            for batch, order, shuffled_batch in zip(batches, epoch, shuffled, strict=True):
                batch.keep_last_moments(order, shuffled_batch)
            self._add_step_metrics(sums)
            kl = _kl(sums)
            self._adapt_learning_rate("epoch", sums)
            # `kl` is equal on all ranks, so all leave the loop together and none waits in average_gradients_.
            if c.target_kl is not None and bool(kl > c.target_kl):
                break
        # While a GPU takes the steps, the host has time.
        self._orders.draw_ahead([len(batch.target) for batch in batches])
        # One host sync per update; the next rollout would wait for the device anyway.
        if self._stop_on_non_finite and bool(self._non_finite):
            raise self._non_finite_error(rollouts, batches, progress)
        self.metrics.add(("optim/learning_rate",), self.learning_rate.reshape(1), 1.0)
        return caller_sums

    def _adapt_learning_rate(self, at: str, sums: Tensor) -> None:
        """Follow the KL of `sums` over all ranks, if that is the schedule; a KL of no rows, NaN, changes nothing."""
        c = self.config
        if c.learning_rate_schedule == "adaptive" and c.adapts_at == at:
            self.learning_rate.copy_(adapted(self.learning_rate, _kl(sums), c.desired_kl))

    def _add_step_metrics(self, sums: Tensor) -> None:
        """Add the metrics of some gradient steps, given the sum of their results."""
        weight, loss_sums, norm_sum, num_taken, num_skipped = torch.split(sums, [1, len(LOSS_METRICS), 1, 1, 1])
        self.metrics.add(LOSS_METRICS, loss_sums, weight)
        self.metrics.add(("optim/grad_norm",), norm_sum, num_taken)
        self.metrics.add(("optim/skipped",), num_skipped, num_taken + num_skipped)

    def _non_finite_error(
        self, rollouts: Sequence[AnyRollout], batches: Sequence[Batch], progress: Progress
    ) -> NonFiniteError:
        """The error that names the source of a non-finite value; *collective*."""
        reader = LossReader(self.loss, self.flat)
        on_host = [rollout.to_host() if isinstance(rollout, TensorRollout) else rollout for rollout in rollouts]
        with in_training(self.policy.network):
            return locate_non_finite(self.comm, on_host, [(batch,) for batch in batches], progress, reader, self.rows)

    def warmup_step(self, rows: int) -> Callable[[], object]:
        """Return a function that takes a gradient step on `rows` rows of weight 0, without messages or effects."""
        batch = Batch.blank(self.policy.spec, rows, self.comm.device, self.policy.state_size, self.sequence_length)
        if self.config.kl_reference == "previous_epoch":
            batch.last_moments = torch.zeros(rows, 2 * self.policy.spec.action.width, device=self.comm.device)
        if self._symmetry is not None:
            raw = [batch.observation, *([] if batch.critic is None else [batch.critic])]
            batch = self._symmetry.mirrored(batch, raw, [Tensor.contiguous] * len(raw))
        return warmup_step([self.optimizer], lambda: self._backward(0, [batch]))

    def _accumulate_gradients(self, parts: Sequence[Batch]) -> None:
        """Compute the gradient and the sums of every shard's part [N] of a minibatch."""
        for k, part in enumerate(parts):
            self._backward(k, [part])

    def _apply_gradient(self, averaged: Sequence[Tensor]) -> Tensor:
        """Clip the mean gradient and take the optimizer's step, given the sums over all shards.

        All ranks skip the step if any number is not finite. A step whose rows have a total weight of 0 is also skipped,
        but not counted in `optim/skipped`.

        Returns:
            Weight, sums, norm, 1 if the step was taken, 1 if it was not finite; all but the last are 0 if skipped.
        """
        (sums,) = averaged
        gradient = self.flat.gradient
        norm = cast(Tensor, torch.linalg.vector_norm(gradient))
        if self.config.max_grad_norm is not None:
            gradient.mul_((self.config.max_grad_norm / (norm + 1e-6)).clamp_(max=1.0))
        totals = torch.cat([sums, norm.reshape(1), self._taken])
        empty = sums[0] == 0
        # x - x is 0 except for NaN and infinity. Equal on all ranks, and computed without a host sync.
        skipped = (totals - totals).any() & ~empty
        if self._stop_on_non_finite:  # later steps are skipped too: the error reports the parameters of this one
            skipped = self._non_finite.logical_or_(skipped)
        if self.config.adapt_before_step:
            self._adapt_learning_rate("step", torch.where(skipped, torch.nan, sums))
        unchanged = skipped | empty
        self.optimizer.step(unchanged.float())
        return torch.where(unchanged, self._skipped_step * skipped, totals)

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The negated PPO objective.

        rho = pi(a|s) / pi_old(a|s)
        L   = -min(rho A, clip(rho, 1 - eps, 1 + eps) A) + c_v (V(s) - target)^2 / 2 - c_e H(pi(.|s))
              + c_b sum_d max(|mean_d| - 1.1, 0)^2

        Returns:
            The weighted *sum* of L over the rows [N], and weighted sums of the metrics, the total weight first.
        """
        c = self.config
        weight = batch.weight
        if self._symmetry is not None:  # the metrics are those of the first rows, which were collected
            batch = augmented(batch)
        with self._precision:
            parameters, value = (x.float() for x in self.policy(*batch.inputs))
        log_prob, entropy = self.policy.distribution.log_prob_and_entropy(parameters, batch.action)
        log_ratio = log_prob - batch.log_prob
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1.0 - c.clip_range, 1.0 + c.clip_range)
        surrogate = torch.minimum(ratio * batch.advantage, clipped * batch.advantage)
        value_error_squared = (value - batch.target).square()
        if c.value_clip_range is not None:
            value_clipped = batch.value + (value - batch.value).clamp(-c.value_clip_range, c.value_clip_range)
            value_error_squared = torch.maximum(value_error_squared, (value_clipped - batch.target).square())
        objective = surrogate.sub(value_error_squared, alpha=0.5 * c.value_coef).add(entropy, alpha=c.entropy_coef)
        if c.bounds_loss_coef > 0:
            mean = parameters[:, : self.policy.spec.action.width]
            beyond = (mean.abs() - BOUND).clamp(min=0.0)
            objective = objective.sub(beyond.square().sum(-1), alpha=c.bounds_loss_coef)

        with torch.no_grad():
            kl = ratio - 1.0 - log_ratio  # k3 of joschu.net/blog/kl-approx.html
            if batch.last_moments is not None:
                assert isinstance(self.policy.distribution, DiagonalGaussian | StateDependentGaussian)
                moments = self.policy.distribution.moments(parameters)
                kl = gaussian_kl(moments, batch.last_moments)
                batch.last_moments.copy_(moments)  # a view of the epoch's rows, see `update`
            is_clipped = (clipped != ratio).to(weight.dtype)
            value_loss = 0.5 * value_error_squared
            columns = torch.stack([torch.ones_like(batch.weight), -surrogate, value_loss, entropy, kl, is_clipped])
            sums = columns[:, : len(weight)] @ weight
        return -torch.dot(batch.weight, objective), sums

    @np.errstate(over="ignore", invalid="ignore")  # reported by all ranks together in `_non_finite_error`
    def _prepare(
        self, rollouts: Sequence[AnyRollout], caller_sums: np.ndarray
    ) -> tuple[list[Batch], UpdateStatistics | None, tuple[str, int] | None, np.ndarray]:
        """Compute values, compute advantages normalized over all ranks, update the normalizers; one message.

        Returns:
            The batches; the two results of `Normalizers.update_statistics`; the sums of `caller_sums`.
        """
        batches: list[Batch] = []
        moments: list[Tensor] = []
        normalizer_sums = self._builder.normalizer_sums(self.comm, rollouts)
        for k, rollout in enumerate(rollouts):
            batch = self._builder.batch(k, rollout)
            columns = torch.stack([torch.ones_like(batch.target), batch.advantage, batch.target]).double()
            columns[2] -= self.normalizers.target_origin
            weight = batch.weight.double()
            moments.append(torch.cat([columns @ weight, columns[1:].square() @ weight]))
            batches.append(batch)
        faults = [[float(rollout.fault is not None)] for rollout in rollouts]
        on_host = torch.stack(moments).cpu().numpy()
        shard_sums = np.concatenate([on_host, faults, normalizer_sums, caller_sums], 1)
        total = self.comm.sum_statistics(shard_sums, "moments")
        total, caller_sums = np.split(total, [len(total) - caller_sums.shape[1]])
        statistics, fault = self.normalizers.update_statistics(total)
        if statistics is not None and statistics.weight > 0:
            explained = to_device(np.array([statistics.explained], np.float32), self.comm.device)
            self.metrics.add(("value/explained_variance",), explained, 1.0)
            for batch in batches:
                if self.config.normalize_advantage:
                    batch.advantage = (batch.advantage - statistics.mean) * statistics.scale
                if self.config.normalize_value:
                    batch.target = (batch.target - statistics.target_mean) * statistics.target_scale
                    batch.value = (batch.value - statistics.target_mean) * statistics.target_scale
                    if self.config.value_limit is not None:
                        batch.target.clamp_(-self.config.value_limit, self.config.value_limit)
                        batch.value.clamp_(-self.config.value_limit, self.config.value_limit)
        return batches, statistics, fault, caller_sums

    def shared_tensors(self) -> dict[str, Tensor]:
        """State that is equal on all ranks, by name; a resumed run writes into these tensors."""
        named = {f"policy.{name}": tensor for name, tensor in self.policy.state_dict().items()}
        named |= {f"optimizer.{name}": tensor for name, tensor in self.optimizer.state().items()}
        for name, moments in self.normalizers.named().items():
            named |= {f"{name}.{key}": torch.from_numpy(value) for key, value in moments.state().items()}
        return named | {"learning_rate": self.learning_rate, "metrics": self.metrics.table}

    def shard_state(self, k: int) -> dict[str, Any]:
        """State of local shard `k` alone."""
        state = {
            "minibatches": self._orders.state(k),
            "discounted": self.normalizers.discounted[k].value,
        }
        critic = self._builder.critic_states[k]
        return state | ({"critic_state": critic.cpu().numpy()} if critic.numel() else {})

    def restore_shard(self, k: int, state: dict[str, Any]) -> None:
        """Restore local shard `k` from its `shard_state`."""
        self._orders.restore(k, state["minibatches"])
        if "discounted" in state:
            self.normalizers.discounted[k].value[:] = state["discounted"]
        if "critic_state" in state:
            self._builder.critic_states[k].copy_(torch.from_numpy(state["critic_state"]))


def _kl(sums: Tensor) -> Tensor:
    """The mean KL of the weighted sums of `PPO.loss`, over all ranks; NaN if their weight is 0."""
    return sums[1 + LOSS_METRICS.index("policy/kl")] / sums[0]


def make_collector(session: Session[Run], ppo: PPO) -> Collector | TensorCollector:
    """The collector of the run's environments, on the host or on the device."""
    run = session.run
    assert isinstance(run.algorithm, PPOConfig)
    if session.envs_on_device:
        collector = TensorCollector(
            session.comm,
            session.make_tensor_envs(run.num_envs),
            ppo.policy,
            ppo.normalizers,
            num_steps=run.algorithm.num_steps,
            gamma=run.algorithm.gamma,
            seed=run.seed,
            timers=session.timers,
            compiled=run.compile and ppo.policy.state_size == 0,
            capture=capture_rollout(run, session.comm, run.algorithm.num_steps),
        )
        if collector.captures_acting:
            captured = "acting and the environments" if collector.captures_envs else "acting"
            session.journal.say(f"capture: steps of rollouts are CUDA graphs: {captured}")
        return collector
    return session.make_collector(
        actor_of(ppo.policy, session.comm.device, capture_acting(session.journal, run, session.comm)),
        ppo.policy.distribution,
        observation_moments=ppo.normalizers.observations,
        with_critic=session.spec.critic_size is not None,
        report_non_finite=True,
    )


def train(session: Session[Run]) -> None:
    """Collect, update, log, evaluate, checkpoint, until all ranks together have taken `run.total_steps` steps."""
    run = session.run
    comm = session.comm
    timers = session.timers
    policy = Policy(session.spec, run.network, seed=stream_seed(run.seed, "init")).to(comm.device)
    ppo = PPO(run, policy, comm)
    session.begin(policy, ppo, observation_moments=ppo.normalizers.observations, critic_moments=ppo.normalizers.critic)
    collector = make_collector(session, ppo)
    announce_capture(session.journal, run, comm, ppo.flat)
    if run.compile:
        ppo.warmup_step(ppo.rows)()
    progress = Progress(run.total_steps)
    new_steps = run.num_envs * run.algorithm.num_steps
    with session.training(progress, collector):
        while not session.over:
            rollouts = collector.collect()
            timers.enter(LEARN)
            totals = ppo.update(rollouts, session.local_statistics(), progress)
            timers.enter(OTHER)
            session.advance(new_steps, totals)
            session.log_evaluate_checkpoint(new_steps, ppo.metrics.read)
        session.checkpoint_last(ppo.metrics.read)
