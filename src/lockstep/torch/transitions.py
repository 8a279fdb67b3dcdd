"""What Q-learning learns from: transitions drawn from a replay, as tensors.

Shapes: N transitions of a shard's part of a minibatch, O observation.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import Tensor

from lockstep.algorithms.dqn import DQNConfig
from lockstep.demands import bytes_of_host, check_host
from lockstep.envs.spec import EnvSpec
from lockstep.errors import ConfigError
from lockstep.memory import in_words
from lockstep.record.journal import Journal
from lockstep.replay import Replay, Transitions
from lockstep.run import Run
from lockstep.torch.comm import Comm
from lockstep.torch.value_losses import importance_weight
from lockstep.world import World

_KINDS = {"uint8": torch.uint8, "float32": torch.float32}


@dataclass(slots=True)
class TransitionBatch:
    """Transitions of one shard [N]."""

    observation: Tensor
    action: Tensor
    reward: Tensor
    """The sum of gamma^k r_k over the steps before the target bootstraps."""
    next_observation: Tensor
    discount: Tensor
    """gamma to the number of those steps; 0 where the episode terminated within them."""
    weight: Tensor
    """Importance of a row, not yet divided by the largest of all shards."""

    @staticmethod
    def of(drawn: Transitions, weight: Tensor, device: torch.device) -> "TransitionBatch":
        """What a replay gave, on the device."""
        arrays = (drawn.observation, drawn.action, drawn.return_, drawn.next_observation, drawn.discount)
        columns = [torch.from_numpy(array).to(device) for array in arrays]
        return TransitionBatch(*columns, weight=weight.to(device))

    @staticmethod
    def blank(spec: EnvSpec, rows: int, device: torch.device) -> "TransitionBatch":
        """Rows of zeros."""
        kind = _KINDS[spec.observation_dtype.__name__]
        before, after = (torch.zeros(rows, *spec.observation_shape, dtype=kind, device=device) for _ in range(2))
        action = torch.zeros(rows, dtype=torch.int64, device=device)
        reward, discount, weight = (torch.zeros(rows, device=device) for _ in range(3))
        return TransitionBatch(before, action, reward, after, discount, weight)

    def row(self, i: int) -> "TransitionBatch":
        """Row `i` alone."""
        columns: list[Tensor] = [getattr(self, field.name) for field in fields(self)]
        return TransitionBatch(*(column[i : i + 1] for column in columns))


def weighing(config: DQNConfig, num_shards: int, size: int, fraction: float) -> Callable[[Transitions], Tensor]:
    """What a drawn row [N] weighs in the loss, not yet divided by the largest weight of all shards.

    Args:
        config: whether and how far the way of drawing is corrected for.
        num_shards: each draws an equal part of a minibatch from its own replay.
        size: transitions in the replays of all shards.
        fraction: of the run, which is behind.
    """
    if not config.prioritized:
        return lambda drawn: torch.ones(len(drawn.index))
    exponent = config.importance_exponent + (1.0 - config.importance_exponent) * fraction
    return lambda drawn: importance_weight(torch.from_numpy(drawn.probability) / num_shards, size, exponent).float()


def make_replays(run: Run, spec: EnvSpec, comm: Comm) -> list[Replay]:
    """The replay of each local shard; collective.

    Raises:
        ConfigError: on all ranks, if a host has not the memory or the disk for its part.
    """
    c, world = run.algorithm, comm.world
    assert isinstance(c, DQNConfig)
    num_envs, capacity = world.shard_size(run.num_envs, "num_envs"), world.shard_size(c.capacity, "capacity")
    problem = ""
    try:
        check_host(run, spec, world)
    except ConfigError as error:
        problem = str(error)
    # All ask before the first of them takes its part.
    problems: list[str] = comm.gather_object(problem, "replay")
    if any(problems):
        raise ConfigError(next(filter(None, problems)))
    return [
        Replay(
            spec,
            num_envs,
            capacity,
            n_step=c.n_step,
            gamma=c.gamma,
            prioritized=c.prioritized,
            priority_exponent=c.priority_exponent,
            priority_eps=c.priority_eps,
            path=None if c.replay_path is None else Path(c.replay_path) / f"shard_{shard}.frames",
        )
        for shard in world.shards
    ]


def announce(journal: Journal, run: Run, spec: EnvSpec, world: World) -> None:
    """Say at the start what the replay takes, and warn of one that will not be learned from."""
    c = run.algorithm
    assert isinstance(c, DQNConfig)
    memory, whole = bytes_of_host(run, spec, world), bytes_of_host(run, spec, world, mapped=False)
    text = f"replay: {c.capacity} transitions in {world.num_shards} part{'s' * (world.num_shards > 1)}, "
    text += f"{in_words(memory)} of memory on this host"
    if c.checkpoint_replay:
        text += ", as much again for the copy that checkpoints take"
    if c.replay_path is not None:
        text += f", {in_words(whole - memory)} in {c.replay_path}"
    journal.say(text)
    if c.learning_starts > run.total_steps:
        journal.warn(
            f"learning_starts={c.learning_starts} is beyond total_steps={run.total_steps}: nothing will be learned"
        )
