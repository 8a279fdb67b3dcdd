"""Evaluation: a fixed quota of episodes for every environment, so that short episodes are not counted more often.

Shapes: B environments of a shard, or rows of their agents.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from lockstep.envs.vector import VectorEnv, has_agents
from lockstep.errors import RunError
from lockstep.experience.acting import ActorWithState
from lockstep.experience.rollout import NonFiniteValue, find_non_finite
from lockstep.world import World, block, stream_seed

MAX_ENVS = 64
"""Rows of one shard stepped at once; further episodes are played one after another."""
MAX_STEPS = 100_000
"""Longest episode of a task without a limit: the most likely actions may repeat for ever."""


class EvaluationStopped(Exception):  # noqa: N818  # not an error
    """A signal, `signal`, stopped an evaluation before all its episodes ended."""

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal


@dataclass(frozen=True, slots=True)
class Episodes:
    """Episodes ordered by shard, environment and time: independent of the number of ranks."""

    returns: list[float]
    lengths: list[int]
    num_cut: int = 0
    """Episodes that ended after `MAX_STEPS`, of a task without a limit."""
    fault: NonFiniteValue | None = None
    """The first number from an environment that is not finite, if there was one; `step` is that of its episode."""


def quota(episodes: int, world: World, shard: int, num_agents: int = 1) -> tuple[int, int]:
    """Number of rows and of episodes with which a shard evaluates: its equal part of `episodes`.

    Each agent of an environment plays as often as the others: what is dealt are whole environments, of `num_agents`
    rows, so the episodes of all shards are `episodes` rounded up to a multiple of `num_agents`.
    """
    wanted = len(block(-(-episodes // num_agents), world.num_shards, shard))
    rounds = -(-wanted // max(MAX_ENVS // num_agents, 1))
    num_envs = -(-wanted // rounds) if wanted else 0
    return num_envs * num_agents, wanted * num_agents


def play(
    env: VectorEnv,
    choose: Callable[[np.ndarray], np.ndarray],
    episodes: int,
    seeds: list[int],
    heartbeat: Callable[[], object],
    actor: ActorWithState | None = None,
    *,
    skip_non_finite: bool = False,
) -> Episodes:
    """Play `episodes` episodes on the environments of `env`, each environment its fixed share of them.

    Each agent of an environment plays the same number: `episodes` is rounded up to a multiple of the agents.

    Ends early, with a `fault`, at the first number from an environment that is not finite.

    Args:
        env: B environments; reset here.
        choose: observations [B, O] to actions for the environment.
        episodes: how many.
        seeds: one for each environment.
        heartbeat: called every step; may raise `EvaluationStopped`.
        actor: that `choose` calls; notified of episodes that begin.
        skip_non_finite: continue with such numbers; `fault` is the first one.

    Raises:
        RunError: an episode does not end within the limit of the task, or an agent never takes part.
    """
    agents = env.spec.num_agents  # a policy may play with another number than it was trained with
    num_envs = env.num_envs // agents
    share = np.repeat([len(block(-(-episodes // agents), num_envs, e)) for e in range(num_envs)], agents)
    played: list[list[tuple[float, int]]] = [[] for _ in share]
    num_cut, fault = 0, None
    while share.sum() and (fault is None or skip_non_finite):
        if actor is not None:
            actor.begins = np.ones(env.num_envs, bool)
        # Only all environments can be reset: those whose episode was cut play the rest of their share after the others.
        found, cut, bad = _play_until_cut(env, choose, share, seeds, heartbeat, actor, skip_non_finite)
        share -= [len(one) for one in found]
        played = [before + one for before, one in zip(played, found, strict=True)]
        num_cut, fault = num_cut + cut, fault or bad
        seeds = [stream_seed(seed, "after a cut") for seed in seeds]
    flat = [episode for one in played for episode in one]
    return Episodes([r for r, _ in flat], [n for _, n in flat], num_cut, fault)


def _play_until_cut(
    env: VectorEnv,
    choose: Callable[[np.ndarray], np.ndarray],
    share: np.ndarray,
    seeds: list[int],
    heartbeat: Callable[[], object],
    actor: ActorWithState | None,
    skip_non_finite: bool,
) -> tuple[list[list[tuple[float, int]]], int, NonFiniteValue | None]:
    """Play each environment's `share` of episodes, fewer if one is cut.

    Returns:
        Return and length of each, how many were cut, and the first number that is not finite.
    """
    size, limit = env.num_envs, env.spec.max_episode_steps
    played: list[list[tuple[float, int]]] = [[] for _ in range(size)]
    wanted = share.copy()
    total, (length, idle) = np.zeros(size), np.zeros((2, size), np.int64)
    resetting = np.zeros(size, bool)
    next_step = env.spec.autoreset == "next_step"
    observation = env.reset(seeds).copy()
    left, num_cut, fault = int(wanted.sum()), 0, _fault(observation, total, length)
    while left and (fault is None or skip_non_finite):
        heartbeat()
        observation, reward, terminated, truncated, _ = env.step(choose(observation))
        ended = terminated | truncated
        waiting = env.waiting() if has_agents(env) else resetting
        total += np.where(resetting, 0.0, reward)
        length += ~waiting
        idle = np.where(waiting, idle + 1, 0)
        fault = fault or _fault(observation, np.where(resetting, 0.0, reward), length)
        if limit is not None and length.max() > limit + 1 and not ended[length.argmax()]:
            raise RunError(
                f"environment {length.argmax()} of an evaluation has not ended its episode after {limit} steps; "
                "set env.max_episode_steps"
            )
        for i in np.flatnonzero(ended if limit is not None else ended | (length == MAX_STEPS)):
            if len(played[i]) < wanted[i]:
                played[i].append((float(total[i]), int(length[i])))
                left -= 1
                if not ended[i]:
                    num_cut += 1
                    left -= int(wanted[i]) - len(played[i])
                    wanted[i] = len(played[i])
        for i in np.flatnonzero(idle == MAX_STEPS):
            if wanted[i] and not played[i]:
                raise RunError(
                    f"agent {i % env.spec.num_agents} of environment {i // env.spec.num_agents} took no part in "
                    f"{MAX_STEPS} steps of an evaluation; leave an agent that never acts out of possible_agents"
                )
            left -= int(wanted[i]) - len(played[i])  # those it waits for have no end
            wanted[i] = len(played[i])
        if actor is not None:
            actor.begins = resetting if next_step else ended | waiting
        total[ended], length[ended] = 0.0, 0
        resetting = ended.copy() if next_step else resetting
    return played, num_cut, fault


def _fault(observation: np.ndarray, reward: np.ndarray, length: np.ndarray) -> NonFiniteValue | None:
    """The first number of one step [B] that is not finite; `length` of the episodes so far."""
    found = find_non_finite(observation[None], reward[None], [], 0)
    return None if found is None else replace(found, step=int(length[found.env]))
