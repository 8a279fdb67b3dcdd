"""Collecting rollouts: every local shard steps its environments, with a numpy interface.

Shapes: K shards of this rank, T steps, B environments of a shard, O observation (one number, or the channels, height
and width of an image), W noise of an action.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from lockstep.distributed.fingerprint import combine, digest
from lockstep.distributed.timers import ACT, ENV, OTHER, Timers
from lockstep.envs.joined_groups import join_groups, joined_shape, numbers_of, split_groups
from lockstep.envs.spec import ActionSpec
from lockstep.envs.state import can_save
from lockstep.envs.vector import CriticEnv, VectorEnv, has_agents, has_critic_observation
from lockstep.errors import ConfigError, RunError
from lockstep.experience.acting import Actor, ActorWithState, RecurrentActor
from lockstep.experience.episodes import EpisodeStats
from lockstep.experience.normalize import RunningMoments
from lockstep.world import World, env_seeds, stream


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


@dataclass(frozen=True, slots=True)
class NonFiniteValue:
    """A number from an environment that is not finite."""

    step: int
    """Of the rollout; -1 for an observation from before it."""
    env: int
    """Global index of the environment."""
    what: str
    """`a reward` or `an observation`."""
    value: float

    def __str__(self) -> str:
        return f"environment {self.env} gave {self.what} that is not finite ({self.value})"


@dataclass(slots=True)
class Rollout:
    """One shard's consecutive steps, time-major. Arrays are reused by the next rollout.

    Of environments on tensors whose learner is in JAX, observations are arrays on its device; see `final`.
    """

    observation: np.ndarray
    """[T + 1, B, O]; the last row is where the rollout stopped. With a critic that has an observation of its own,
    [T + 1, B, O + C]: its C numbers follow those of the policy."""
    action: np.ndarray
    """[T, B] or [T, B, D], as drawn (not clipped)."""
    reward: np.ndarray
    """[T, B]."""
    terminated: np.ndarray
    """[T, B] bool: the task ended the episode at this step."""
    ended: np.ndarray
    """[T, B] bool: the episode ended at this step, terminated or truncated."""
    weight: np.ndarray
    """[T, B] float32: 0 for the rows in which an environment only resets itself or an agent waits, 1 otherwise."""
    final: list[tuple[int, np.ndarray, np.ndarray]]
    """`(t, b, observation)` of truncated episodes where `observation[t + 1]` already belongs to the next episode.
    On the learner's device the entries are those of `DLPackRollout.final`."""
    fault: NonFiniteValue | None = None
    """The first number from an environment that is not finite; None if all are."""
    state: np.ndarray | None = None
    """[B, A]: of a recurrent actor, before the first step."""
    begins: np.ndarray | None = None
    """[T + 1, B] bool: an episode begins with this observation; for recurrent policies."""


class Collector:
    """Steps the environments of this rank's shards with one actor.

    Args:
        world: the ranks and shards.
        envs: the vector environment of each shard of this process, in order.
        actor: observations [K, B, O] to distribution parameters [K, B, P]; a recurrent one with states [K, B, A].
        sampler: the distribution.
        num_steps: T.
        seed: of the run.
        timers: record the time spent acting and in environments.
        observation_moments: normalizer of observations, if any.
        noise_per_env: one random stream per environment for noise instead of one per shard.
        with_critic: also collect the critic's own observations, which the spec of the environments then has.
        report_non_finite: store a non-finite number in `Rollout.fault`, for all ranks to decide on together, instead of
            raising `RunError` on this rank.
    """

    def __init__(  # noqa: PLR0913  # everything a rollout needs, once, by keyword
        self,
        world: World,
        envs: Sequence[VectorEnv],
        actor: Actor | RecurrentActor,
        sampler: Sampler,
        *,
        num_steps: int,
        seed: int,
        timers: Timers,
        observation_moments: RunningMoments | None = None,
        noise_per_env: bool = False,
        with_critic: bool = False,
        report_non_finite: bool = False,
    ) -> None:
        self._world = world
        self._envs = envs
        self._sampler = sampler
        self._timers = timers
        self._moments = observation_moments
        self._report_non_finite = report_non_finite
        spec, count, size = envs[0].spec, len(envs), envs[0].num_envs
        self._noise_streams = [
            [stream(seed, "action of environment", shard * size + i) for i in range(size)]
            if noise_per_env
            else [stream(seed, "action", shard)]
            for shard in world.shards
        ]
        self._action_spec = spec.action
        self._same_step = spec.autoreset == "same_step"
        self._actor = ActorWithState(actor, (count, size))
        self._begins = np.zeros((count, num_steps + 1, size), bool)
        self._critic_envs = [_with_critic(env) for env in envs] if with_critic else None
        self._spec = spec if with_critic else replace(spec, critic_size=None, critic_image_parts=())
        shape = (count, num_steps + 1, size, *joined_shape(self._spec))
        self._observation = np.zeros(shape, spec.observation_dtype)
        dtype = np.float32 if spec.action.kind == "continuous" else np.int64
        shape = () if spec.action.kind == "discrete" else (spec.action.width,)
        self._action = np.zeros((count, num_steps, size, *shape), dtype)
        self._reward = np.zeros((count, num_steps, size), np.float32)
        self._terminated, self._truncated = np.zeros((2, count, num_steps, size), bool)
        self._agent_envs = [env for env in envs if has_agents(env)]
        self._waiting = np.zeros((count, num_steps, size), bool)
        # Row 0 is the last row of the previous rollout: an environment that ended there only resets in our first step.
        self._ended = np.zeros((count, num_steps + 1, size), bool)
        self._shape = (size, *spec.observation_shape)
        self.episodes = [EpisodeStats(size) for _ in envs]
        self.fingerprints: list[str] = []
        """Of each shard's first rollout: observations, actions and noise."""
        self._seed = seed
        for k in range(count):
            self._reset(k, "env")

    def _reset(self, k: int, name: str) -> None:
        """Begin new episodes in local shard number `k`, each environment from the seed of its global index."""
        seeds = env_seeds(self._seed, name, self._world.shards[k], self._envs[k].num_envs)
        self._observation[k, -1] = self._with_critic_observation(k, self._envs[k].reset(seeds))
        self._actor.begins[k] = True

    def _with_critic_observation(self, k: int, observation: np.ndarray) -> np.ndarray:
        """Observations of local shard `k` with the critic's own, if it has any.

        Raises `RunError` if their shape is not that of the spec: numpy would broadcast a single number silently.
        """
        if observation.shape != self._shape:
            raise RunError(
                f"the environments of shard {self._world.shards[k]} gave observations of the shape "
                f"{list(observation.shape)}, and their spec says {list(self._shape)}"
            )
        if self._critic_envs is None:
            return observation
        return join_groups(observation, self._critic_envs[k].critic_observation()[0])

    def _final_with_critic_observation(self, k: int, final: np.ndarray) -> np.ndarray:
        """`_with_critic_observation` of final observations."""
        if self._critic_envs is None:
            return final
        last = self._critic_envs[k].critic_observation()[1]
        assert last is not None
        return join_groups(final, last)

    def collect(self) -> list[Rollout]:
        """Step every environment T times; one rollout for each local shard."""
        timers, envs, actor, sampler = self._timers, self._envs, self._actor, self._sampler
        observation, action = self._observation, self._action
        steps, size = self._reward.shape[1:]
        observation[:, 0] = observation[:, -1]
        self._ended[:, 0] = self._ended[:, -1]
        self._begins[:, 0] = actor.begins
        state = actor.finite_state()
        noise = np.stack([self._draw(streams, steps, size) for streams in self._noise_streams], 1)
        final: list[list[tuple[int, np.ndarray, np.ndarray]]] = [[] for _ in envs]
        clip = clipper(self._action_spec)
        for t in range(steps):
            timers.enter(ACT)
            with np.errstate(over="ignore", invalid="ignore"):  # reported by `_fault`
                seen, _ = split_groups(observation[:, t], self._spec)
                current = seen if self._moments is None else self._moments.normalize(seen)
                chosen = sampler.sample(actor(current), noise[t])
            action[:, t] = chosen
            chosen = clip(chosen)
            timers.enter(ENV)
            for k, env in enumerate(envs):
                try:
                    obs, reward, terminated, truncated, last = env.step(chosen[k])
                except Exception as error:
                    raise step_error(self._world, k, size, error) from error
                observation[k, t + 1] = self._with_critic_observation(k, obs)
                self._reward[k, t] = reward
                self._terminated[k, t] = terminated
                self._truncated[k, t] = truncated
                if last is not None and truncated.any():
                    rows = np.flatnonzero(truncated & ~terminated)
                    if len(rows):  # an episode may terminate in the step of its time limit
                        final[k].append(
                            (t, rows, self._final_with_critic_observation(k, last)[rows].astype(observation.dtype))
                        )
            self._record_waiting_agents(t)
            if actor.is_recurrent:
                self._begin_episodes(t)
        timers.enter(OTHER)
        np.logical_or(self._terminated, self._truncated, out=self._ended[:, 1:])
        if not self.fingerprints:
            self.fingerprints = [
                combine(digest(part) for part in (observation[k], action[k], noise[:, k])) for k in range(len(envs))
            ]
        rollouts = [self._finish(k, final[k]) for k in range(len(envs))]
        if actor.is_recurrent:
            for k, rollout in enumerate(rollouts):
                rollout.state, rollout.begins = state[k], self._begins[k]
        return rollouts

    def _record_waiting_agents(self, t: int) -> None:
        """Record which rows took no part in step t, in environments of several agents."""
        for k, env in enumerate(self._agent_envs):
            self._waiting[k, t] = env.waiting()

    def _begin_episodes(self, t: int) -> None:
        """Mark the environments whose episodes begin with the observation after step t.

        After an end, an environment with `next_step` autoreset still shows the final observation of the old episode.
        """
        np.logical_or(self._terminated[:, t], self._truncated[:, t], out=self._ended[:, t + 1])
        self._begins[:, t + 1] = self._ended[:, t + 1 if self._same_step else t] | self._waiting[:, t]
        self._actor.begins = self._begins[:, t + 1].copy()

    def _draw(self, streams: Sequence[np.random.Generator], steps: int, size: int) -> np.ndarray:
        """Noise [T, B, W] of a shard: from one stream, or a part from each environment's own."""
        each = size // len(streams)
        return np.concatenate([self._sampler.draw_noise(generator, (steps, each)) for generator in streams], 1)

    def _finish(self, k: int, final: list[tuple[int, np.ndarray, np.ndarray]]) -> Rollout:
        """Compute the rollout's arrays that need no work per step."""
        ended = self._ended[k, 1:]
        idle = self._waiting[k] if self._same_step else self._ended[k, :-1]
        weight = 1.0 - idle.astype(np.float32)
        if not self._same_step:
            self._reward[k][idle] = 0.0  # a row that only resets belongs to no episode, whatever it pays
        first = self._world.shards[k] * self._reward.shape[2]
        numbers = [(t, rows, numbers_of(last, self._spec)) for t, rows, last in final]
        fault = find_non_finite(numbers_of(self._observation[k], self._spec), self._reward[k], numbers, first)
        if fault is not None and not self._report_non_finite:
            raise RunError(
                f"{fault}, in step {fault.step} of this rollout (rank {self._world.rank}, "
                f"shard {self._world.shards[k]}); look for a division by 0 or a diverging simulation"
            )
        self.episodes[k].update(self._reward[k], ended, weight)
        return Rollout(
            self._observation[k], self._action[k], self._reward[k], self._terminated[k], ended, weight, final, fault
        )

    @property
    def savable(self) -> bool:
        """Whether all environments can be saved in mid-episode."""
        return all(map(can_save, self._envs))

    def shard_state(self, k: int) -> dict[str, Any]:
        """State of local shard `k` between two rollouts; includes the environments only if they can be saved."""
        env, episodes = self._envs[k], self.episodes[k]
        actor = {"state": self._actor.state[k], "begins": self._actor.begins[k]} if self._actor.is_recurrent else {}
        return actor | {
            "environments": env.state() if can_save(env) else None,
            "observation": self._observation[k, -1],
            "ended": self._ended[k, -1],
            "noise": [generator.bit_generator.state for generator in self._noise_streams[k]],
            "episodes": episodes.state(),
            "fingerprint": self.fingerprints[k] if self.fingerprints else None,
        }

    def restore_shard(self, k: int, state: dict[str, Any], step: int) -> bool:
        """Restore local shard `k` from its `shard_state` at `step` of the run.

        Returns:
            Whether its environments continue; those that cannot be saved start new episodes, with new seeds.
        """
        if "noise" not in state:
            raise ConfigError(
                "env.placement: this run collected from environments on the device; resume it with "
                "--set env.placement=device"
            )
        for generator, saved in zip(self._noise_streams[k], state["noise"], strict=True):
            generator.bit_generator.state = saved
        self.fingerprints[k : k + 1] = [state["fingerprint"]] if state["fingerprint"] is not None else []
        env = self._envs[k]
        if state["environments"] is None or not can_save(env):
            self._reset(k, f"env from {step}")
            return False
        env.restore(state["environments"])
        self._observation[k, -1], self._ended[k, -1] = state["observation"], state["ended"]
        if self._actor.is_recurrent:
            self._actor.state[k], self._actor.begins[k] = state["state"], state["begins"]
        self.episodes[k].restore(state["episodes"])
        return True

    def fingerprint(self) -> str:
        """Fingerprint of this rank's first rollout; equal ones mean that ranks collect the same data."""
        return combine(self.fingerprints)

    def close(self) -> None:
        """Close the environments."""
        for env in self._envs:
            env.close()


def _with_critic(env: VectorEnv) -> CriticEnv:
    """An environment that gives the critic's own observations. Raises `ConfigError` if it does not."""
    if not has_critic_observation(env):
        raise ConfigError(
            f"the spec has critic_size={env.spec.critic_size}, and the environments on the host give no observations "
            "of the critic's own; give their class the method critic_observation"
        )
    return env


def find_non_finite(
    observation: np.ndarray,
    reward: np.ndarray,
    final: list[tuple[int, np.ndarray, np.ndarray]],
    first_env: int,
) -> NonFiniteValue | None:
    """The first non-finite number of a shard's rollout, whose first environment has global index `first_env`.

    Observations are numbers, or the bytes of images, which are always finite.
    """
    # Row 0 is checked again: this rollout learns from the last observation of the previous one.
    parts = [(0, None, "a reward", reward), (-1, None, "an observation", observation)]
    parts += [(t, rows, "an observation", last[None]) for t, rows, last in final]
    found = list[NonFiniteValue]()
    for start, rows, what, array in parts:
        if array.dtype != np.uint8 and not np.isfinite(array).all():
            place = tuple(np.argwhere(~np.isfinite(array))[0])
            env = int(place[1] if rows is None else rows[place[1]])
            found.append(NonFiniteValue(int(place[0]) + start, first_env + env, what, float(array[place])))
    return min(found, key=lambda fault: (fault.step, fault.env), default=None)


def step_error(world: World, k: int, shard_envs: int, error: Exception) -> RunError:
    """The error for an exception in `env.step` of local shard `k`."""
    first = world.shards[k] * shard_envs
    what = str(error) if isinstance(error, RunError) else f"{type(error).__name__}: {error}"
    return RunError(
        f"rank {world.rank} failed in env.step of shard {world.shards[k]} "
        f"(environments {first} to {first + shard_envs - 1}): {what}"
    )


def clipper(action: ActionSpec) -> Callable[[np.ndarray], np.ndarray]:
    """The function that clips actions for the environment; the algorithm learns from unclipped ones.

    NaN, as from a NaN observation, becomes 0, or the bound nearest to 0.
    """
    if action.kind != "continuous":
        return lambda chosen: chosen
    if not np.isfinite([*action.low, *action.high]).any():
        return lambda chosen: np.where(np.isfinite(chosen), chosen, 0)
    low, high = action.float32_bounds
    return lambda chosen: np.minimum(np.maximum(np.where(np.isfinite(chosen), chosen, 0), low), high)
