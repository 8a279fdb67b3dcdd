"""Minibatches of PPO: transitions with values, advantages and log-probabilities of the policy that acted.

Shapes: T steps of a rollout, B environments of a shard, N transitions of a part of a minibatch.
"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from lockstep.envs.spec import EnvSpec


@dataclass(slots=True)
class Batch:
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

    @staticmethod
    def blank(spec: EnvSpec, rows: int, device: torch.device) -> "Batch":
        """Rows of zeros, of weight 0."""
        action = spec.action
        shape = (rows,) if action.kind == "discrete" else (rows, action.width)
        kind = torch.float32 if action.kind == "continuous" else torch.int64
        # Five tensors: `torch.compile` would specialize on one tensor that is passed five times.
        columns = [torch.zeros(rows, device=device) for _ in range(5)]
        seen = torch.uint8 if spec.image else torch.float32
        observation = torch.zeros(rows, *spec.observation_shape, dtype=seen, device=device)
        return Batch(observation, torch.zeros(shape, dtype=kind, device=device), *columns)

    def shuffled(self, order: Tensor) -> "Batch":
        """The rows at `order`, in that order."""
        return Batch(*(column.index_select(0, order) for column in self.columns().values()))

    def rows(self, first: int, count: int) -> "Batch":
        """`count` consecutive rows."""
        return Batch(*(column[first : first + count] for column in self.columns().values()))

    def columns(self) -> dict[str, Tensor]:
        """All columns by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def split(self, rows: int) -> "list[Batch]":
        """Parts of `rows` consecutive rows."""
        columns = self.columns().values()
        return [Batch(*part) for part in zip(*(torch.split(column, rows) for column in columns), strict=True)]
