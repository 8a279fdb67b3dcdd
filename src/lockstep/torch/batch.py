"""Rollouts and minibatches of PPO, with values, advantages and log-probabilities of the policy that acted.

Shapes: T steps of a rollout, B environments of a shard, N transitions of a part of a minibatch, O and C numbers of the
policy's and of the critic's observation, P parameters of the action distribution, S numbers of a recurrent policy's
state.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import torch
from torch import Tensor

from lockstep.envs.spec import EnvSpec
from lockstep.torch.recurrent import Sequences


@dataclass(slots=True)
class EvaluatedRollout:
    """A shard's rollout on the device, with the outputs of the policy that acted."""

    observation: Tensor
    """[T * B, *O], normalized."""
    action: Tensor
    """[T * B] or [T * B, D], as drawn (not clipped)."""
    parameters: Tensor
    """[T * B, P]."""
    value: Tensor
    """[T, B]."""
    next_value: Tensor
    """[T, B]: of the *true* next observation, before any reset."""
    reward: Tensor
    """[T, B], scaled."""
    terminated: Tensor
    """[T, B], 1 where the task ended the episode."""
    ended: Tensor
    """[T, B], 1 where the episode ended."""
    weight: Tensor
    """[T, B]: 0 for the rows in which an environment only resets itself, 1 otherwise."""
    critic: Tensor | None = None
    """[T * B, C]: the critic's own observation, normalized, if there is one."""
    state: Tensor | None = None
    """[T * B, S]: of a recurrent policy, before each step."""
    begins: Tensor | None = None
    """[T * B]: 1 where an episode begins, for a recurrent policy."""
    raw: Sequence[Tensor] = ()
    """`observations` before they were normalized; only for `symmetry`."""
    normalize: Sequence[Callable[[Tensor], Tensor]] = ()
    """The functions that made each of `observations` from `raw`."""

    @property
    def observations(self) -> tuple[Tensor, ...]:
        """The arguments of a policy without recurrent layers."""
        return (self.observation,) if self.critic is None else (self.observation, self.critic)


@dataclass(slots=True)
class RowBatch:
    """Columns of tensors with one row per transition."""

    def rows(self, first: int, count: int) -> Self:
        """`count` consecutive rows."""
        return type(self)(**{name: column[first : first + count] for name, column in self.columns().items()})

    def columns(self) -> dict[str, Tensor]:
        """All columns by name."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: column for name, column in columns.items() if isinstance(column, Tensor)}


@dataclass(slots=True)
class Batch(RowBatch):
    """Transitions of one shard, [T * B] or a part [N] of them."""

    observation: Tensor
    action: Tensor
    log_prob: Tensor
    """log pi_old(a|s) of the policy that acted."""
    value: Tensor
    advantage: Tensor
    target: Tensor
    """Target of the value: advantage + value."""
    weight: Tensor
    """0 for the rows of an autoreset, 1 otherwise."""
    critic: Tensor | None = None
    """The critic's own observation, if there is one."""
    state: Tensor | None = None
    """Of a recurrent policy, before this row."""
    begins: Tensor | None = None
    """1 where an episode begins, for a recurrent policy."""
    sequence_length: int = 1
    """L: the rows are those of N / L sequences, time-major."""
    last_moments: Tensor | None = None
    """Means and log standard deviations [N, 2 D] at the row's last gradient step, for `kl_reference=previous_epoch`."""
    mirrored_observation: Tensor | None = None
    """[N, M - 1, *O], normalized: copies of the row by `symmetry`."""
    mirrored_action: Tensor | None = None
    """[N, M - 1] or [N, M - 1, D]: of these copies."""
    mirrored_critic: Tensor | None = None
    """[N, M - 1, C], normalized: of these copies, if the critic has its own observation."""

    @property
    def inputs(self) -> tuple[Tensor | Sequences | None, ...]:
        """The arguments of the policy."""
        if self.state is None or self.begins is None:
            return (self.observation,) if self.critic is None else (self.observation, self.critic)
        begins = self.begins.view(self.sequence_length, -1)
        return self.observation, self.critic, Sequences(self.state[: begins.shape[1]], begins)

    @staticmethod
    def blank(spec: EnvSpec, rows: int, device: torch.device, state_size: int = 0, sequence_length: int = 1) -> "Batch":
        """Rows of zeros, of weight 0."""
        action = spec.action
        shape = (rows,) if action.kind == "discrete" else (rows, action.width)
        kind = torch.float32 if action.kind == "continuous" else torch.int64
        # Five tensors: `torch.compile` would specialize on one tensor that is passed five times.
        columns = [torch.zeros(rows, device=device) for _ in range(5)]
        seen = torch.uint8 if spec.image else torch.float32
        observation = torch.zeros(rows, *spec.observation_shape, dtype=seen, device=device)
        critic = None if spec.critic_size is None else torch.zeros(rows, spec.critic_size, device=device)
        action = torch.zeros(shape, dtype=kind, device=device)
        if state_size == 0:
            return Batch(observation, action, *columns, critic=critic)
        state, begins = torch.zeros(rows, state_size, device=device), torch.zeros(rows, device=device)
        length = math.gcd(rows, sequence_length)
        return Batch(observation, action, *columns, critic=critic, state=state, begins=begins, sequence_length=length)

    def shuffled(self, order: Tensor) -> "Batch":
        """The rows at `order`, in that order."""
        columns: dict[str, Any] = {name: column.index_select(0, order) for name, column in self.columns().items()}
        return Batch(**columns)

    def keep_last_moments(self, order: Tensor, shuffled: "Batch") -> None:
        """Copy `last_moments`, if there are any, from these rows `shuffled` by `order`."""
        if self.last_moments is not None and shuffled.last_moments is not None:
            self.last_moments.index_copy_(0, order, shuffled.last_moments)

    def split(self, rows: int, sequence_length: int) -> "list[Batch]":
        """Parts of `rows` consecutive rows, each of sequences of this length, time-major."""
        columns = self.columns()
        parts = zip(*(torch.split(column, rows) for column in columns.values()), strict=True)
        named: list[dict[str, Any]] = [dict(zip(columns, part, strict=True)) for part in parts]
        return [Batch(**part, sequence_length=sequence_length) for part in named]
