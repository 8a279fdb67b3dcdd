"""From rollouts to the batches that PPO learns from: values, log-probabilities and advantages.

Shapes: K shards of this rank, T steps of a rollout, B environments of a shard, S numbers of a recurrent policy's state.
"""

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from lockstep.algorithms.ppo import PPOConfig
from lockstep.distributed.comm import Comm
from lockstep.envs.joined_groups import split_groups
from lockstep.experience.normalize import RunningMoments
from lockstep.experience.rollout import Rollout
from lockstep.session.normalizers import Normalizers
from lockstep.torch.batch import Batch, EvaluatedRollout
from lockstep.torch.device_shard import TensorRollout
from lockstep.torch.distributions import DiagonalGaussian, StateDependentGaussian
from lockstep.torch.networks import Policy
from lockstep.torch.recurrent import Sequences, finite_state
from lockstep.torch.returns import gae
from lockstep.torch.symmetry import Symmetry
from lockstep.torch.transfer import to_device

AnyRollout = Rollout | TensorRollout

_IMAGE_ROWS = 64
"""Images of one forward pass over a rollout: more do not fit in a core's cache."""


class BatchBuilder:
    """Makes a batch of each local shard's rollout.

    Args:
        config: of PPO.
        policy: that acted.
        normalizers: in use, as during the rollout.
        num_shards: K.
        shard_envs: B.
        rows: of a gradient step.
        device: of the policy.
        precision: autocast of the loss, if it is not float32.
        symmetry: adds mirrored copies, if there is one.

    Attributes:
        critic_states: of a recurrent policy whose critic has recurrent layers of its own: its state before the next
            rollout of each local shard. That of the actor is in the rollout.
    """

    def __init__(  # noqa: PLR0913  # everything that an update needs, once, by keyword
        self,
        config: PPOConfig,
        policy: Policy,
        normalizers: Normalizers,
        *,
        num_shards: int,
        shard_envs: int,
        rows: int,
        device: torch.device,
        precision: torch.autocast | None,
        symmetry: Symmetry | None = None,
    ) -> None:
        self._config = config
        self._policy = policy
        self._normalizers = normalizers
        self._forward_rows = shard_envs * (config.num_steps + 1) if not policy.spec.has_images else _IMAGE_ROWS
        self._rows = rows
        self._device = device
        self._precision = precision
        self._symmetry = symmetry
        critic_size = policy.state_size - policy.actor_state_size
        self.critic_states = [torch.zeros(shard_envs, critic_size, device=device) for _ in range(num_shards)]

    def normalizer_sums(self, comm: Comm, rollouts: Sequence[AnyRollout]) -> list[np.ndarray]:
        """The sums of each local shard for the normalizers; *collective* in the first update."""
        on_device = [rollout.normalizer_sums for rollout in rollouts if isinstance(rollout, TensorRollout)]
        if on_device:
            return on_device
        return self._normalizers.sums(comm, [rollout for rollout in rollouts if isinstance(rollout, Rollout)])

    @torch.no_grad()
    def batch(self, k: int, rollout: AnyRollout) -> Batch:
        """Values, log-probabilities and advantages of the rollout of local shard `k`; pass each rollout only once."""
        c = self._config
        seen = rollout.evaluated if isinstance(rollout, TensorRollout) else self._evaluated(k, rollout)
        flags = (seen.terminated, seen.ended)
        value, next_value = self._in_real_units(seen.value), self._in_real_units(seen.next_value)
        advantage = gae(seen.reward, value, next_value, *flags, gamma=c.gamma, gae_lambda=c.gae_lambda)
        target = (advantage + value).flatten()
        parameters, old_value = seen.parameters, value.flatten()
        if self._precision is not None:  # as `loss` computes them, or the first ratio would not be 1
            with self._precision:
                parameters, old_value = self._forward(seen.observations, self._rows)
            old_value = self._in_real_units(old_value)
        distribution = self._policy.distribution
        log_prob, _ = distribution.log_prob_and_entropy(parameters, seen.action)
        weight = seen.weight.flatten()
        last = None
        if c.kl_reference == "previous_epoch":
            assert isinstance(distribution, DiagonalGaussian | StateDependentGaussian)
            last = distribution.moments(parameters)
        batch = Batch(
            seen.observation, seen.action, log_prob, old_value, advantage.flatten(), target, weight,
            seen.critic, seen.state, seen.begins, last_moments=last,
        )  # fmt: skip
        if self._symmetry is None:
            return batch
        return self._symmetry.mirrored(batch, seen.raw, seen.normalize)

    def _in_real_units(self, value: Tensor) -> Tensor:
        """What the value network predicted, without the normalization of the targets that it was trained on."""
        moments = self._normalizers.values
        if moments is None:
            return value
        mean, deviation = moments.center_and_deviation
        if self._config.value_limit is not None:
            value = value.clamp(-self._config.value_limit, self._config.value_limit)
        return value * deviation + mean

    def _evaluated(self, k: int, rollout: Rollout) -> EvaluatedRollout:
        """The rollout of host environments on the device, with the policy's outputs in one pass."""
        steps, size = rollout.reward.shape
        observation, critic = self._normalized(rollout.observation)
        observations = [part.flatten(0, 1) for part in (observation, critic) if part is not None]
        states = begins = None
        if rollout.state is None:
            parameters, values = self._forward(observations, self._forward_rows)
        else:
            parameters, values, states, begins = self._unrolled(k, rollout, observations)
        values = values.view(steps + 1, size)
        next_value = values[1:].clone()
        for t, rows, last in rollout.final:  # the next row is already the next episode's: bootstrap from the true one
            envs, final = self._on_device(rows), self._normalized(last)
            sequences = None if states is None else Sequences(states[t + 1, envs], states.new_zeros(1, len(rows)))
            next_value[t, envs] = self._policy(*final, sequences)[1].float()
        reward = self._normalizers.scaled_reward(rollout.reward)
        columns = (reward, rollout.terminated, rollout.ended, rollout.weight)
        raw, normalize = ([], []) if self._symmetry is None else self._before_normalization(rollout)
        return EvaluatedRollout(
            observation[:-1].flatten(0, 1),
            self._on_device(rollout.action).flatten(0, 1),
            parameters[: steps * size],
            values[:-1],
            next_value,
            *(self._on_device(column).float() for column in columns),
            critic=None if critic is None else critic[:-1].flatten(0, 1),
            state=None if states is None else states[:-2].flatten(0, 1),
            begins=None if begins is None else begins[:-1].flatten(),
            raw=raw,
            normalize=normalize,
        )

    def _unrolled(
        self, k: int, rollout: Rollout, observations: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Run a recurrent policy over `observations` of the rollout of local shard `k` and of the step after it.

        Returns:
            Distribution parameters, values, the states *before* each step and after the last [T + 2, B, S], and where
            episodes begin [T + 1, B].
        """
        assert rollout.state is not None and rollout.begins is not None
        network = self._policy.recurrent
        columns = (torch.split(observation, self._forward_rows) for observation in observations)
        parts = [network.features(*part) for part in zip(*columns, strict=True)]
        of_actor, of_critic = (torch.cat(cast("list[Tensor]", column)) for column in zip(*parts, strict=True))
        begins = self._on_device(rollout.begins).float()
        first = torch.cat([self._on_device(rollout.state), self.critic_states[k]], -1)
        parameters, values, after = network.unroll(of_actor, of_critic, Sequences(first, begins))
        states = torch.cat([first.unsqueeze(0), after.unflatten(0, begins.shape)])
        self.critic_states[k] = finite_state(states[-2, :, self._policy.actor_state_size :])
        return parameters, values, states, begins

    def _forward(self, observations: Sequence[Tensor], rows: int) -> tuple[Tensor, Tensor]:
        """Parameters and values of all rows, `rows` at a time."""
        columns = (torch.split(observation, rows) for observation in observations)
        parts = [self._policy(*part) for part in zip(*columns, strict=True)]
        parameters, value = (torch.cat(column).float() for column in zip(*parts, strict=True))
        return parameters, value

    def _normalized(self, rows: np.ndarray) -> tuple[Tensor, Tensor | None]:
        """Observations as the acting policy and its critic received them, before this update of the normalizers."""
        observation, critic = split_groups(rows, self._policy.spec)
        seen = self._normalized_group(observation, self._normalizers.observations)
        return seen, None if critic is None else self._normalized_group(critic, self._normalizers.critic_observations)

    def _normalized_group(self, rows: np.ndarray, moments: RunningMoments | None) -> Tensor:
        return self._on_device(rows if moments is None else moments.normalize(rows))

    def _before_normalization(self, rollout: Rollout) -> tuple[list[Tensor], list[Callable[[Tensor], Tensor]]]:
        """The groups of observations as the environments returned them, and the functions that normalize each."""
        moments = (self._normalizers.observations, self._normalizers.critic_observations)
        groups = [part for part in split_groups(rollout.observation[:-1], self._policy.spec) if part is not None]
        raw = [self._on_device(group).flatten(0, 1) for group in groups]
        return raw, [
            lambda rows, of=of: self._normalized_group(rows.numpy(force=True), of) for of in moments[: len(groups)]
        ]

    def _on_device(self, array: np.ndarray) -> Tensor:
        return to_device(np.ascontiguousarray(array), self._device)
