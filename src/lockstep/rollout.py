"""Collecting experience: every local shard steps its environments, numpy at the border.

Shapes: K shards of this rank, T steps, B environments of a shard, O observation, W noise of an action.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from lockstep.envs.spec import ActionSpec
from lockstep.envs.vector import VectorEnv
from lockstep.errors import RunError
from lockstep.fingerprint import combine, digest
from lockstep.normalize import RunningMoments
from lockstep.record.timers import ACT, ENV, OTHER, Timers
from lockstep.world import World, stream, stream_seed

Actor = Callable[[np.ndarray], np.ndarray]


class Sampler(Protocol):
    """The numpy half of an action distribution."""

    def draw_noise(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Noise [*shape, W]."""
        ...

    def sample(self, parameters: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Actions from a network's output and noise."""
        ...

    def mode(self, parameters: np.ndarray) -> np.ndarray:
        """The most likely actions."""
        ...


@dataclass(slots=True)
class Rollout:
    """One shard's consecutive steps, time-major. Arrays are reused by the next rollout."""

    observation: np.ndarray
    """[T + 1, B, O]; the last row is where the rollout stopped."""
    action: np.ndarray
    """[T, B] or [T, B, D], as drawn (not clipped)."""
    reward: np.ndarray
    """[T, B]."""
    terminated: np.ndarray
    """[T, B] bool: the task ended the episode at this step."""
    ended: np.ndarray
    """[T, B] bool: the episode ended at this step, terminated or truncated."""
    weight: np.ndarray
    """[T, B] float32: 0 for the rows in which an environment only resets itself, 1 otherwise."""
    final: list[tuple[int, np.ndarray, np.ndarray]]
    """`(t, b, observation)` of truncated episodes where `observation[t + 1]` already belongs to the next episode."""


class EpisodeStats:
    """Returns and lengths of the episodes of one shard, found once per rollout. Attributes: `returns`, `lengths`."""

    def __init__(self, num_envs: int) -> None:
        self._return, self._length = np.zeros(num_envs), np.zeros(num_envs)
        self.returns, self.lengths = np.zeros(0), np.zeros(0)

    def update(self, reward: np.ndarray, ended: np.ndarray, weight: np.ndarray) -> None:
        """Take in a rollout [T, B]; `returns` and `lengths` [episodes] are those that ended in it."""
        summed = np.cumsum(reward, 0, dtype=np.float64) + self._return
        counted = np.cumsum(weight, 0, dtype=np.float64) + self._length
        env, step = np.nonzero(ended.T)  # by environment, then in time: an episode starts where the previous one ended
        self.returns, self.lengths = summed[step, env], counted[step, env]
        follows = np.flatnonzero(env[1:] == env[:-1]) + 1
        last = np.flatnonzero(np.append(env[1:] != env[:-1], True)) if len(env) else np.zeros(0, int)
        self._return, self._length = summed[-1], counted[-1]
        self._return[env[last]] -= self.returns[last]
        self._length[env[last]] -= self.lengths[last]
        self.returns[follows], self.lengths[follows] = (
            self.returns[follows] - self.returns[follows - 1],
            self.lengths[follows] - self.lengths[follows - 1],
        )


class Collector:
    """Steps the environments of this rank's shards with one actor, and keeps what they did.

    Args:
        world: whose shards.
        make_env: makes the vector environment of one shard.
        actor: observations [K, B, O] to distribution parameters [K, B, P].
        sampler: the distribution.
        num_steps: T.
        seed: of the run.
        timers: told whether the time goes to acting or to environments.
        observation_moments: normalizer of what the actor sees; None shows observations as they are.
    """

    def __init__(  # noqa: PLR0913  # everything a rollout needs, once, by keyword
        self,
        world: World,
        envs: Sequence[VectorEnv],
        actor: Actor,
        sampler: Sampler,
        *,
        num_steps: int,
        seed: int,
        timers: Timers,
        observation_moments: RunningMoments | None = None,
    ) -> None:
        self._world, self._envs, self._actor, self._sampler = world, envs, actor, sampler
        self._timers, self._moments = timers, observation_moments
        spec, count, size = envs[0].spec, len(envs), envs[0].num_envs
        self._noise_streams = [stream(seed, "action", shard) for shard in world.shards]
        self._action_spec = spec.action
        self._same_step = spec.autoreset == "same_step"
        self._observation = np.zeros((count, num_steps + 1, size, spec.observation_size), np.float32)
        kind = np.float32 if spec.action.kind == "continuous" else np.int64
        shape = () if spec.action.kind == "discrete" else (spec.action.width,)
        self._action = np.zeros((count, num_steps, size, *shape), kind)
        self._reward = np.zeros((count, num_steps, size), np.float32)
        self._terminated, self._truncated = np.zeros((2, count, num_steps, size), bool)
        # Row 0 is the last row of the previous rollout: an environment that ended there only resets in our first step.
        self._ended = np.zeros((count, num_steps + 1, size), bool)
        self.episodes = [EpisodeStats(size) for _ in envs]
        self.fingerprints: list[str] = []
        """Of each shard's first rollout: what it saw, did and drew."""
        for k, (env, shard) in enumerate(zip(envs, world.shards, strict=True)):
            first = shard * size
            seeds = [stream_seed(seed, "env", first + i) for i in range(size)]
            self._observation[k, -1] = env.reset(seeds)

    @property
    def num_episodes(self) -> int:
        """Episodes of this rank that ended in the last rollout."""
        return sum(len(episodes.returns) for episodes in self.episodes)

    def collect(self) -> list[Rollout]:
        """Step every environment T times; one rollout for each local shard."""
        timers, envs, actor, sampler = self._timers, self._envs, self._actor, self._sampler
        observation, action = self._observation, self._action
        steps, size = self._reward.shape[1:]
        observation[:, 0] = observation[:, -1]
        self._ended[:, 0] = self._ended[:, -1]
        noise = np.stack([sampler.draw_noise(generator, (steps, size)) for generator in self._noise_streams], 1)
        final: list[list[tuple[int, np.ndarray, np.ndarray]]] = [[] for _ in envs]
        clip = clipper(self._action_spec)
        for t in range(steps):
            timers.enter(ACT)
            seen = observation[:, t] if self._moments is None else self._moments.normalize(observation[:, t])
            chosen = sampler.sample(actor(seen), noise[t])
            action[:, t] = chosen
            chosen = clip(chosen)
            timers.enter(ENV)
            for k, env in enumerate(envs):
                try:
                    obs, reward, terminated, truncated, last = env.step(chosen[k])
                except Exception as error:
                    raise self._failed_in_step(k, error) from error
                observation[k, t + 1] = obs
                self._reward[k, t] = reward
                self._terminated[k, t] = terminated
                self._truncated[k, t] = truncated
                if last is not None and truncated.any():
                    rows = np.flatnonzero(truncated & ~terminated)
                    final[k].append((t, rows, last[rows].astype(np.float32)))
        timers.enter(OTHER)
        np.logical_or(self._terminated, self._truncated, out=self._ended[:, 1:])
        if not self.fingerprints:
            self.fingerprints = [
                combine(digest(part) for part in (observation[k], action[k], noise[:, k])) for k in range(len(envs))
            ]
        return [self._finish(k, final[k]) for k in range(len(envs))]

    def _finish(self, k: int, final: list[tuple[int, np.ndarray, np.ndarray]]) -> Rollout:
        """What can be found once per rollout instead of once per step."""
        ended = self._ended[k, 1:]
        weight = np.ones_like(self._reward[k]) if self._same_step else 1.0 - self._ended[k, :-1].astype(np.float32)
        self._refuse_not_finite(k)
        self.episodes[k].update(self._reward[k], ended, weight)
        return Rollout(
            self._observation[k], self._action[k], self._reward[k], self._terminated[k], ended, weight, final
        )

    def _failed_in_step(self, k: int, error: Exception) -> RunError:
        size = self._reward.shape[2]
        first = self._world.shards[k] * size
        what = str(error) if isinstance(error, RunError) else f"{type(error).__name__}: {error}"
        return RunError(
            f"rank {self._world.rank} failed in env.step of shard {self._world.shards[k]} "
            f"(environments {first} to {first + size - 1}): {what}"
        )

    def _refuse_not_finite(self, k: int) -> None:
        for name, array in (("reward", self._reward[k]), ("observation", self._observation[k, 1:])):
            if not np.isfinite(array).all():
                t, b = np.argwhere(~np.isfinite(array))[0][:2]
                index = self._world.shards[k] * self._reward.shape[2] + b
                raise RunError(
                    f"environment {index} gave a {name} that is not finite, in step {t} of this rollout "
                    f"(rank {self._world.rank}, shard {self._world.shards[k]}); "
                    "look for a division by 0 or a diverging simulation"
                )

    def fingerprint(self) -> str:
        """What this rank's first rollout looked like; different on every rank, or they collect the same data."""
        return combine(self.fingerprints)

    def close(self) -> None:
        """Close the environments."""
        for env in self._envs:
            env.close()


def clipper(action: ActionSpec) -> Callable[[np.ndarray], np.ndarray]:
    """Box actions are clipped for the environment only; what was drawn is what is learned from."""
    if action.kind != "continuous" or not np.isfinite([*action.low, *action.high]).any():
        return lambda chosen: chosen
    low, high = np.array(action.low, np.float32), np.array(action.high, np.float32)
    return lambda chosen: np.minimum(np.maximum(chosen, low), high)
