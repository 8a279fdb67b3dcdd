"""Evaluation: a fixed quota of episodes for every environment, so that short episodes are not counted more often.

Shapes: B environments of a shard.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lockstep.envs.vector import VectorEnv, has_agents
from lockstep.errors import RunError
from lockstep.experience.acting import ActorWithState
from lockstep.world import World, block

MAX_ENVS = 64
"""Environments of one shard stepped at once; further episodes are played one after another."""
MAX_STEPS = 100_000
"""Longest episode of a task without a limit."""


class Interrupted(Exception):  # noqa: N818  # not an error
    """A signal, `signal`, interrupted an evaluation before all its episodes ended."""

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal


@dataclass(frozen=True, slots=True)
class Episodes:
    """Episodes ordered by shard, environment and time: independent of the number of ranks."""

    returns: list[float]
    lengths: list[int]


def quota(episodes: int, world: World, shard: int) -> tuple[int, int]:
    """Number of environments and of episodes with which a shard evaluates: its equal part of `episodes`."""
    wanted = len(block(episodes, world.num_shards, shard))
    rounds = -(-wanted // MAX_ENVS)
    return (-(-wanted // rounds) if wanted else 0), wanted


def play(
    env: VectorEnv,
    choose: Callable[[np.ndarray], np.ndarray],
    episodes: int,
    seeds: list[int],
    heartbeat: Callable[[], object],
    actor: ActorWithState | None = None,
) -> Episodes:
    """Play `episodes` episodes on the environments of `env`, each environment its fixed share of them.

    Args:
        env: B environments; reset here.
        choose: observations [B, O] to actions for the environment.
        episodes: how many.
        seeds: one for each environment.
        heartbeat: called every step; may raise `Interrupted`.
        actor: that `choose` calls; notified of episodes that begin.
    """
    size = env.num_envs
    share = np.array([len(block(episodes, size, i)) for i in range(size)])
    played: list[list[tuple[float, int]]] = [[] for _ in range(size)]
    total, length = np.zeros(size), np.zeros(size, np.int64)
    resetting = np.zeros(size, bool)
    next_step = env.spec.autoreset == "next_step"
    observation = env.reset(seeds).copy()
    left = int(share.sum())
    longest = env.spec.max_episode_steps or MAX_STEPS
    while left:
        heartbeat()
        observation, reward, terminated, truncated, _ = env.step(choose(observation))
        ended = terminated | truncated
        waiting = env.waiting() if has_agents(env) else resetting
        total += np.where(resetting, 0.0, reward)
        length += ~waiting
        if length.max() > longest + 1 and not ended[length.argmax()]:
            raise RunError(
                f"environment {length.argmax()} of an evaluation has not ended its episode after {longest} steps; "
                "set env.max_episode_steps"
            )
        for i in np.flatnonzero(ended):
            if len(played[i]) < share[i]:
                played[i].append((float(total[i]), int(length[i])))
                left -= 1
        if actor is not None:
            actor.begins = resetting if next_step else ended | waiting
        total[ended], length[ended] = 0.0, 0
        resetting = ended.copy() if next_step else resetting
    flat = [episode for one in played for episode in one]
    return Episodes([r for r, _ in flat], [n for _, n in flat])
