"""From rollouts to the batches that PPO learns from: values, log-probabilities and advantages.

Shapes: K shards of this rank, T steps of a rollout, B environments of a shard.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lockstep.algorithms.ppo import PPOConfig
from lockstep.distributed.comm import Comm
from lockstep.experience.rollout import Rollout
from lockstep.session.normalizers import Normalizers
from lockstep.torch.batch import Batch, EvaluatedRollout
from lockstep.torch.device_rollout import TensorRollout
from lockstep.torch.networks import Policy
from lockstep.torch.returns import gae

AnyRollout = Rollout | TensorRollout

_IMAGE_ROWS = 64
"""Images of one forward pass over a rollout: more do not fit in a core's cache."""


class BatchBuilder:
    """Makes a batch of each local shard's rollout.

    Args:
        config: of PPO.
        policy: that acted.
        normalizers: in use, as during the rollout.
        shard_envs: B.
        rows: of a gradient step.
        device: of the policy.
        precision: autocast of the loss, if it is not float32.
    """

    def __init__(
        self,
        config: PPOConfig,
        policy: Policy,
        normalizers: Normalizers,
        *,
        shard_envs: int,
        rows: int,
        device: torch.device,
        precision: torch.autocast | None,
    ) -> None:
        self._config = config
        self._policy = policy
        self._normalizers = normalizers
        self._forward_rows = shard_envs * (config.num_steps + 1) if policy.spec.image is None else _IMAGE_ROWS
        self._rows = rows
        self._device = device
        self._precision = precision

    def normalizer_sums(self, comm: Comm, rollouts: Sequence[AnyRollout]) -> list[np.ndarray]:
        """The sums of each local shard for the normalizers; *collective* in the first update."""
        on_device = [rollout.normalizer_sums for rollout in rollouts if isinstance(rollout, TensorRollout)]
        if on_device:
            return on_device
        return self._normalizers.sums(comm, [rollout for rollout in rollouts if isinstance(rollout, Rollout)])

    @torch.no_grad()
    def batch(self, rollout: AnyRollout) -> Batch:
        """Values, log-probabilities and advantages of a shard's rollout."""
        c = self._config
        seen = rollout.evaluated if isinstance(rollout, TensorRollout) else self._evaluated(rollout)
        flags = (seen.terminated, seen.ended)
        value, next_value = self._in_real_units(seen.value), self._in_real_units(seen.next_value)
        advantage = gae(seen.reward, value, next_value, *flags, gamma=c.gamma, gae_lambda=c.gae_lambda)
        target = (advantage + value).flatten()
        parameters, old_value = seen.parameters, value.flatten()
        if self._precision is not None:  # as `loss` computes them, or the first ratio would not be 1
            with self._precision:
                parameters, old_value = self._forward(seen.observations, self._rows)
            old_value = self._in_real_units(old_value)
        log_prob, _ = self._policy.distribution.log_prob_and_entropy(parameters, seen.action)
        weight = seen.weight.flatten()
        return Batch(
            seen.observation, seen.action, log_prob, old_value, advantage.flatten(), target, weight, seen.critic
        )

    def _in_real_units(self, value: Tensor) -> Tensor:
        """What the value network predicted, without the normalization of the targets that it was trained on."""
        moments = self._normalizers.values
        if moments is None:
            return value
        mean, deviation = moments.center_and_deviation
        return value * deviation + mean

    def _evaluated(self, rollout: Rollout) -> EvaluatedRollout:
        """The rollout of host environments on the device, with the policy's outputs in one pass."""
        steps, size = rollout.reward.shape
        observation = self._normalized(rollout.observation)
        parameters, values = self._forward((observation.flatten(0, 1),), self._forward_rows)
        values = values.view(steps + 1, size)
        next_value = values[1:].clone()
        for t, envs, final in rollout.final:  # the next row is already the next episode's: bootstrap from the true one
            next_value[t, torch.from_numpy(envs)] = self._policy(self._normalized(final))[1].float()
        reward = self._normalizers.scaled_reward(rollout.reward)
        columns = (reward, rollout.terminated, rollout.ended, rollout.weight)
        return EvaluatedRollout(
            observation[:-1].flatten(0, 1),
            torch.from_numpy(rollout.action).to(self._device).flatten(0, 1),
            parameters[: steps * size],
            values[:-1],
            next_value,
            *(torch.from_numpy(column).to(self._device, torch.float32) for column in columns),
        )

    def _forward(self, observations: tuple[Tensor, ...], rows: int) -> tuple[Tensor, Tensor]:
        """Parameters and values of all rows, `rows` at a time."""
        columns = (torch.split(observation, rows) for observation in observations)
        parts = [self._policy(*part) for part in zip(*columns, strict=True)]
        parameters, value = (torch.cat(column).float() for column in zip(*parts, strict=True))
        return parameters, value

    def _normalized(self, observation: np.ndarray) -> Tensor:
        """Observations as the acting policy received them, before this update of the normalizer."""
        moments = self._normalizers.observations
        normalized = observation if moments is None else moments.normalize(observation)
        return torch.from_numpy(normalized).to(self._device)
