"""The running moments of a run, and how all shards update them together.

Shapes: K shards of this rank, B environments of a shard, N rows, F numbers of a row.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from lockstep.algorithms.ppo import PPOConfig
from lockstep.distributed.comm import Comm
from lockstep.envs.spec import EnvSpec, ImagePart
from lockstep.experience.normalize import LIMIT, DiscountedReturns, RunningMoments
from lockstep.experience.rollout import Rollout
from lockstep.record.progress import Progress
from lockstep.session.critic_moments import arrays_of
from lockstep.session.non_finite import NonFiniteError

_SETTINGS = {
    "observations": "normalize_observation",
    "critic_observations": "normalize_observation",
    "returns": "normalize_return",
    "values": "normalize_value",
}
_WHAT = {
    "observations": "of number {} of the observation",
    "critic_observations": "of number {} of the critic's observation",
    "returns": "of the discounted return",
    "values": "of the targets of values",
}
_EQUAL_TARGETS = 1e-10
"""Part of their squared mean that the variance of equal targets may seem to be, since sums are rounded."""


class NormalizerError(NonFiniteError):
    """Running moments that are not finite although all numbers of the environments are; raised by all ranks."""

    def __init__(self, name: str, feature: int, progress: Progress) -> None:
        what = _WHAT[name].format(feature)
        super().__init__(
            f"the running mean and variance {what} are not finite with the rollout of update {progress.updates + 1}, "
            "although all that the environments gave is finite: its square is too large, or what the run began from "
            f"was not finite; scale it in the environment, or use {_SETTINGS[name]}=false; "
            "or leave such updates out with non_finite=skip",
            None,
            {},
        )


class UpdateStatistics(NamedTuple):
    """Statistics over all ranks before an on-policy update."""

    mean: float = 0.0
    """Of the advantages."""
    scale: float = 0.0
    """Reciprocal of their standard deviation."""
    explained: float = 0.0
    """Fraction of the variance of the targets that the values explain."""
    weight: float = 0.0
    """1; 0 if all rows are resets, which have weight 0."""
    target_mean: float = 0.0
    """Of the targets of values so far, with `normalize_value`."""
    target_scale: float = 1.0
    """Reciprocal of their standard deviation."""


def explained_variance(residual: Any, variance: Any, mean: Any, xp: ModuleType) -> Any:
    """The part of the variance of the targets that the values explain; `xp` is numpy or jax.numpy.

    Args:
        residual: the mean squared difference between targets and values.
        variance: of the targets.
        mean: of the targets.
        xp: the module whose numbers these are.
    """
    is_rounding = variance <= _EQUAL_TARGETS * xp.square(mean)  # the targets are equal, and none of it is a signal
    return 1.0 - residual / xp.where(is_rounding, xp.maximum(variance, 1e-8), variance)


class Normalizers:
    """The normalizers of observations, of returns and of the targets of values.

    Args:
        observation_size: F of observations; None does not normalize them.
        gamma: discount of the returns that rewards are scaled by; None does not scale rewards.
        num_shards: K.
        shard_envs: B.
        critic_size: F of the critic's own observations; None if it has none, or they are not normalized.
        reward_scale: multiplies rewards first.
        observation_limit: of normalized observations, in standard deviations.
        normalize_value: whether targets of values are normalized.
        image_parts: images among the observations' numbers, which are not normalized.
        critic_image_parts: those of the critic's own.

    Attributes:
        observations: None where observations are not normalized.
        critic_observations: of the critic's own observations.
        returns: None where rewards are not scaled.
        values: of the targets of values; None where they are not normalized.
        discounted: running discounted returns of each local shard's host environments.
    """

    def __init__(  # noqa: PLR0913  # one argument for each setting
        self,
        observation_size: int | None,
        gamma: float | None,
        num_shards: int,
        shard_envs: int,
        critic_size: int | None = None,
        *,
        reward_scale: float = 1.0,
        observation_limit: float = LIMIT,
        normalize_value: bool = False,
        image_parts: Sequence[ImagePart] = (),
        critic_image_parts: Sequence[ImagePart] = (),
    ) -> None:
        self.reward_scale = reward_scale

        def moments(size: int | None, images: Sequence[ImagePart]) -> RunningMoments | None:
            columns = [image.columns for image in images]
            return None if size is None else RunningMoments(size, observation_limit, columns)

        self.observations = moments(observation_size, image_parts)
        self.critic_observations = moments(critic_size, critic_image_parts)
        self.values = RunningMoments(1) if normalize_value else None
        self.returns = None if gamma is None else RunningMoments(1)
        self.discounted = [DiscountedReturns(shard_envs, gamma or 0.0) for _ in range(num_shards)]

    @classmethod
    def of(cls, config: PPOConfig, spec: EnvSpec, num_shards: int, shard_envs: int) -> "Normalizers":
        """The normalizers that the settings of PPO ask for."""
        return cls(
            spec.observation_size if config.normalize_observation else None,
            config.gamma if config.normalize_return else None,
            num_shards,
            shard_envs,
            spec.critic_size if config.normalize_observation else None,
            reward_scale=config.reward_scale,
            observation_limit=config.observation_limit,
            normalize_value=config.normalize_value,
            image_parts=spec.image_parts,
            critic_image_parts=spec.critic_image_parts,
        )

    @property
    def target_origin(self) -> float:
        """What targets are summed relative to: squares of large numbers would lose digits."""
        return 0.0 if self.values is None else float(self.values.mean[0])

    def named(self) -> dict[str, RunningMoments]:
        """The enabled normalizers by name."""
        named = {
            "observations": self.observations,
            "critic_observations": self.critic_observations,
            "returns": self.returns,
            "values": self.values,
        }
        return {name: moments for name, moments in named.items() if moments is not None}

    @property
    def critic(self) -> dict[str, RunningMoments]:
        """The enabled normalizers of what the value network learns from, by name; the policy acts without them."""
        return {name: moments for name, moments in self.named().items() if name != "observations"}

    def scaled_reward(self, reward: np.ndarray) -> np.ndarray:
        """Rewards as the learner receives them: scaled, and, if set, divided by the return's standard deviation."""
        scaled = reward * np.float32(self.reward_scale)
        return scaled if self.returns is None else self.returns.scale(scaled)

    def sums(self, comm: Comm, rollouts: Sequence[Rollout]) -> list[np.ndarray]:
        """The sums of each local shard for the moments of what environments return; *collective* in the first update.

        Those of values follow from the sums of targets; see `update_statistics`.

        Args:
            comm: the ranks.
            rollouts: one for each local shard; pass each rollout only once.
        """
        weights = [r.weight.ravel() for r in rollouts]
        rows: dict[str, list[np.ndarray]] = {}
        if self.observations is not None:
            size = len(self.observations.mean)
            # Of a rollout on a device this is the only read of all observations; on a CPU it is a view.
            flat = [np.asarray(r.observation)[:-1].reshape(-1, r.observation.shape[-1]) for r in rollouts]
            rows["observations"] = [row[:, :size] for row in flat]
            if self.critic_observations is not None:
                rows["critic_observations"] = [row[:, size:] for row in flat]
        if self.returns is not None:
            pairs = zip(self.discounted, rollouts, strict=True)
            scale = np.float32(self.reward_scale)
            rows["returns"] = [returns.update(r.reward * scale, r.ended).reshape(-1, 1) for returns, r in pairs]
        named = self.named()
        set_first_means(comm, [(named[name], rows[name]) for name in rows], weights)
        return [
            np.concatenate([np.zeros(0), *(named[name].sums(rows[name][k], weight) for name in rows)])
            for k, weight in enumerate(weights)
        ]

    def update_statistics(self, total: np.ndarray) -> tuple[UpdateStatistics | None, tuple[str, int] | None]:
        """Update the normalizers from the sums of all shards, unless one of them is not finite.

        Args:
            total: sums over all shards: weight, advantages, targets relative to `target_origin`, squares of both,
                rollouts with a non-finite value, and the result of `sums`.

        Returns:
            The statistics, or None if a value is not finite; and the `fault` of the normalizers, if all numbers of the
            environments are finite.
        """
        moments, faults, sums = total[:5], total[5], total[6:]
        if self.values is not None:
            sums = np.concatenate([sums, moments[[0, 2, 4]]])
        fault = None if faults else self.fault(sums)
        if faults or fault or not np.isfinite(total).all():
            return None, fault
        if moments[0] == 0:
            return UpdateStatistics(), None
        mean, target_mean, square, target_square = moments[1:] / moments[0]
        target_variance = target_square - target_mean**2
        # The advantage is the residual of the value.
        explained = explained_variance(square, target_variance, target_mean + self.target_origin, np)
        self.update(sums)
        scale = 1.0 / (max(square - mean**2, 0.0) ** 0.5 + 1e-8)
        statistics = UpdateStatistics(mean, scale, explained, 1.0)
        if self.values is None:
            return statistics, None
        center, deviation = self.values.center_and_deviation
        return statistics._replace(target_mean=center, target_scale=1.0 / deviation), None

    def fault(self, sums: np.ndarray) -> tuple[str, int] | None:
        """Name and feature of the moments that these sums would make non-finite; None for none. Equal on all ranks."""
        for name, moments, part in self._parts(sums):
            if part[0] != 0:
                merged = moments.merged(part)
                bad = ~np.isfinite(merged["mean"] + merged["variance"])
                if bad.any():
                    return name, int(np.flatnonzero(bad)[0])
        return None

    def update(self, sums: np.ndarray) -> None:
        """Update the moments from the sums of all shards."""
        for _, moments, part in self._parts(sums):
            moments.update(part)

    def _parts(self, sums: np.ndarray) -> Iterator[tuple[str, RunningMoments, np.ndarray]]:
        place = 0
        for name, moments in self.named().items():
            yield name, moments, sums[place : place + moments.num_sums]
            place += moments.num_sums


def set_first_means(
    comm: Comm, normalizers: Sequence[tuple[RunningMoments, Sequence[np.ndarray]]], weights: Sequence[np.ndarray]
) -> None:
    """Set the origin of the first update to the mean over all shards; *collective*, one message per run.

    Relative to 0, the variance of rows far from 0 would lose all its digits.

    Args:
        comm: the ranks.
        normalizers: moments, and the rows [N, F] of each local shard; those updated before do not change.
        weights: [N] of each local shard.
    """
    new = [(moments, rows) for moments, rows in normalizers if moments.count == 0]
    if not new:
        return
    sums = [
        np.concatenate([[weight.sum()], *(weight @ rows[k].astype(np.float64) for _, rows in new)])
        for k, weight in enumerate(weights)
    ]
    ends = np.cumsum([1, *(len(moments.mean) for moments, _ in new)])[:-1]
    weight, *total = np.split(comm.sum_statistics(np.stack(sums), "first_moments"), ends)
    for (moments, _), found in zip(new, total, strict=True):
        if weight[0] > 0 and np.isfinite(found).all():
            moments.begin_at(found / weight[0])


def broadcast_moments(
    comm: Comm, observation_moments: RunningMoments | None, of_critic: Mapping[str, RunningMoments]
) -> dict[str, np.ndarray]:
    """Restore these normalizers from those of the first rank; *collective*. Returns their arrays by checkpoint name."""
    held = {**({} if observation_moments is None else {"observations": observation_moments}), **of_critic}
    if held:
        found = comm.broadcast_object({name: moments.state() for name, moments in held.items()})
        for name, moments in held.items():
            moments.restore(found[name])
    return arrays_of(held)
