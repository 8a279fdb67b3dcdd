"""Evaluation over all ranks: each shard plays its part of the episodes, and all results are gathered on every rank."""

import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lockstep.distributed.comm import Comm
from lockstep.envs.drawing import picture_of
from lockstep.envs.make import is_jax_task, make_vector_env
from lockstep.envs.spec import EnvSpec
from lockstep.envs.vector import VectorEnv
from lockstep.errors import ConfigError, PeerError, RunError
from lockstep.experience.acting import Actor, ActorWithState, RecurrentActor
from lockstep.experience.evaluate import MAX_STEPS, Episodes, EvaluationStopped, play, quota
from lockstep.experience.normalize import RunningMoments
from lockstep.experience.rollout import NonFiniteValue, Sampler, clipper, find_non_finite
from lockstep.record.journal import Journal
from lockstep.record.video import MAX_FRAMES, write_gif
from lockstep.run import AnyRun
from lockstep.world import stream, stream_seed

_EPISODES = 100
_IMAGE_EPISODES = 10  # a game takes thousands of steps
_TELL_EVERY = 0.25
"""Fraction of `timeout_s` after which a rank that is still playing sends a message, so that the waiting ranks do not
time out."""


class _Played(NamedTuple):
    """The episodes of one shard."""

    shard: int
    returns: list[float]
    lengths: list[int]
    num_cut: int
    fault: str | None


@dataclass(slots=True)
class Player:
    """A policy with its newest parameters, with a numpy interface."""

    sampler: Sampler
    """Of its action distribution."""
    actor: Actor | RecurrentActor
    """Observations [B, O] to parameters of the distribution [B, P]; a recurrent one with states."""
    observation_moments: RunningMoments | None
    """Normalizer of observations, if any."""
    spec: EnvSpec | None = None
    """Of the environments; needed by `act`."""
    _episode: ActorWithState = field(init=False)

    def __post_init__(self) -> None:
        """Begin an episode."""
        self._episode = self.actor_of(1)

    def actor_of(self, num_envs: int) -> ActorWithState:
        """The actor for this many environments, each at the beginning of an episode."""
        return ActorWithState(self.actor, (num_envs,))

    def reset(self) -> None:
        """Begin a new episode; `act` of a recurrent policy remembers the observations since."""
        self._episode.begins[:] = True

    def act(self, observation: Any) -> np.ndarray:
        """The most likely action for the next observation of an episode, within the bounds of the action space.

        Args:
            observation: as the policy was trained on it: an image [C, H, W] of bytes, else `spec.observation_size`
                numbers. A choice of a discrete space is one-hot, and the parts of a `Dict` or `Tuple` follow one
                another, those of a `Dict` in the order of `env.policy_keys`, else of its space; an image among them
                has its channels first, and bytes are divided by 255. With `env.frame_stack` the observations of the
                last steps follow one another, oldest first. They are clipped here, if `env.clip_observation` clipped
                them in training.

        Returns:
            The action as the environment takes it: a choice, or an array of the shape of the action space.

        Raises:
            ValueError: the observation has another shape, is not an array, has a number that is not finite, or is an
                image of other numbers than bytes. A recurrent policy then continues as if it had not been called.
        """
        assert self.spec is not None
        rows, action = _one_row(self.spec, observation), self.spec.action
        if (limit := self.spec.clip_observation) is not None:
            rows = np.clip(rows, -limit, limit)
        found = action.for_env(clipper(action)(self.choose(rows, None, self._episode)))[0]
        return found if action.kind == "discrete" else np.asarray(found)

    def choose(self, observation: np.ndarray, noise: np.random.Generator | None, actor: ActorWithState) -> np.ndarray:
        """Actions for observations [B, O]: drawn with `noise`, or the most likely ones if it is None.

        Args:
            observation: the next one of each environment.
            noise: of the draws.
            actor: of these environments, from `actor_of`.
        """
        if self.observation_moments is not None:
            observation = self.observation_moments.normalize(observation)
        parameters = actor(observation)
        if noise is None:
            return self.sampler.mode(parameters)
        return self.sampler.sample(parameters, self.sampler.draw_noise(noise, parameters.shape[:-1]))


class Evaluation:
    """Evaluates a policy, each time in the same environments.

    With a `journal` and `evaluate_video`, rank 0 records one more episode per evaluation in its directory.
    """

    def __init__(self, run: AnyRun, comm: Comm, spec: EnvSpec, player: Player, journal: Journal | None = None) -> None:
        assert run.task is not None
        self._run = run
        self._task = run.task
        self._comm = comm
        self._player = player
        self._journal = journal
        self._spec = spec
        self._clip = clipper(spec.action)
        self._episodes = run.evaluate_episodes or (_IMAGE_EPISODES if spec.has_images else _EPISODES)
        self._envs: dict[int, VectorEnv] = {}

    def make_envs(self) -> None:
        """Make the environments of the local shards, unless they exist.

        A simulator takes long to start: a training run does it before its first step, within `startup_timeout_s`, and
        after it has made the environments of training, so that these get the one simulator of this process.
        """
        for shard in self._comm.world.shards:
            num_envs, _ = self._quota(shard)
            if num_envs and shard not in self._envs:
                self._envs[shard] = env = make_vector_env(self._task, self._run.env, num_envs, training=False)
                self._check(env.spec)
                if is_jax_task(self._task):  # compiled by the first reset and step, which may take minutes
                    env.reset([0] * num_envs)
                    shape = (num_envs,) if env.spec.action.kind == "discrete" else (num_envs, env.spec.action.width)
                    env.step(np.zeros(shape, np.float32 if env.spec.action.kind == "continuous" else np.int64))

    def _quota(self, shard: int) -> tuple[int, int]:
        """Rows and episodes of a shard."""
        return quota(self._episodes, self._comm.world, shard, self._spec.num_agents)

    def _check(self, spec: EnvSpec) -> None:
        """Raise `ConfigError` if the environments are not those of the policy."""
        theirs, ours = ([*one.observation_shape, *one.action.sizes] for one in (spec, self._spec))
        if theirs != ours:
            raise ConfigError(
                f"task={self._task} gives observations of {list(spec.observation_shape)} and takes actions of "
                f"{list(spec.action.sizes)}, and the policy was trained with {list(self._spec.observation_shape)} and "
                f"{list(self._spec.action.sizes)}: the environment or its settings (env) have changed"
            )
        if not spec.action.same_numbers(self._spec.action):
            raise ConfigError(
                f"task={self._task} takes actions {spec.action.values_text}, and the policy was trained with "
                f"actions {self._spec.action.values_text}: the environment or its settings (env) have changed; "
                "play it with those that it was trained with"
            )

    def play(self, index: int, *, heartbeat: Callable[[], object], video: Path | None = None) -> Episodes:
        """Play all episodes of evaluation `index`; returned in shard order on every rank; *collective*.

        Warns if some were cut after `MAX_STEPS`, and with `non_finite=skip` if an environment gave a number that is not
        finite.

        Args:
            index: selects seeds and noise.
            heartbeat: called every step; may raise `EvaluationStopped`.
            video: a GIF of one more episode, which rank 0 records while the others wait; see `record`.

        Raises:
            EvaluationStopped: on all ranks, if `heartbeat` raised it on any.
            RunError: on all ranks, if an environment gave a number that is not finite and `non_finite` is `stop`; on
                rank 0, if `video` cannot be recorded.
        """
        local: list[_Played] = []
        signal, told_at = 0, time.monotonic()

        def tell(*, done: bool) -> list[Any]:
            return self._comm.gather_object([done, signal, local], "evaluate")

        def beat() -> None:
            # A rank that has played its episodes waits for the others, no longer than messages may take.
            nonlocal told_at
            heartbeat()
            if time.monotonic() - told_at > self._run.timeout_s * _TELL_EVERY:
                told_at = time.monotonic()
                if number := max(number for _, number, _ in tell(done=False)):
                    raise EvaluationStopped(number)

        try:
            local = self._play(index, beat, video)
        except EvaluationStopped as stopped:
            signal = stopped.signal
        while True:
            gathered = tell(done=True)
            if all(done for done, *_ in gathered):
                break
        if signal := max(number for _, number, _ in gathered):
            raise EvaluationStopped(signal)
        parts = sorted(_Played(*part) for *_, played in gathered for part in played)
        self._report(next((part.fault for part in parts if part.fault), None))
        returns, lengths = [r for part in parts for r in part.returns], [n for part in parts for n in part.lengths]
        episodes = Episodes(returns, lengths, sum(part.num_cut for part in parts))
        if episodes.num_cut:
            self._warn(
                f"{episodes.num_cut} of {len(returns)} episodes of an evaluation were cut after {MAX_STEPS} steps: "
                f"task={self._task} has no limit; --set env.max_episode_steps=N sets one, of training too"
            )
        return episodes

    def _report(self, fault: str | None) -> None:
        """Raise `RunError` about a number that is not finite, or warn with `non_finite=skip`."""
        if fault is not None and self._run.non_finite == "stop":
            raise RunError(f"{fault}; look for a division by 0 or a diverging simulation")
        if fault is not None:
            self._warn(f"{fault}; with non_finite=skip its episodes count as they are")

    def _warn(self, text: str) -> None:
        if self._journal is not None:
            self._journal.warn(text)
        elif self._comm.world.rank == 0:
            print(f"lockstep: warning: {text}", file=sys.stderr)

    def _play(self, index: int, heartbeat: Callable[[], object], video: Path | None) -> list[_Played]:
        """Play the episodes of the local shards. Record the videos."""
        self.make_envs()
        results: list[_Played] = []
        world = self._comm.world
        seed = self._run.seed
        for shard, env in self._envs.items():
            _, episodes = self._quota(shard)
            key = f"evaluate {index}/{shard}"
            seeds = [stream_seed(seed, key, i) for i in range(env.num_envs)]
            noise, actor = stream(seed, key), self._player.actor_of(env.num_envs)
            played = play(
                env,
                lambda o, noise=noise, actor=actor: self._choose(o, noise, actor),
                episodes,
                seeds,
                heartbeat,
                actor,
                skip_non_finite=self._run.non_finite == "skip",
            )
            fault = self._describe(played.fault, shard)
            results.append(_Played(shard, played.returns, played.lengths, played.num_cut, fault))
        if video is not None and world.rank == 0:
            self.record(video, index, heartbeat=heartbeat)
        if self._journal is not None and self._run.evaluate_video and world.rank == 0:
            path = self._journal.path / "videos" / f"step_{index}.gif"
            self._journal.write_or_warn(lambda: self.record(path, index, heartbeat=heartbeat))
        return results

    def _describe(self, fault: NonFiniteValue | None, shard: int) -> str | None:
        if fault is None:
            return None
        env = fault.env + sum(self._quota(before)[0] for before in range(shard))
        return f"{replace(fault, env=env)}, {_when(fault.step)} of an evaluation (shard {shard})"

    def record(self, path: Path, index: int, *, heartbeat: Callable[[], object]) -> None:
        """Record one more episode, with its own seed and noise.

        Args:
            path: the GIF.
            index: of the evaluation.
            heartbeat: called every step.

        Raises:
            EvaluationStopped: `heartbeat` raised it.
            RunError: the environment cannot be made, the episode fails, or gives a number that is not finite and
                `non_finite` is `stop`, or the GIF cannot be written; an earlier file of the name then stays as it is.
        """
        try:
            env: Any = make_vector_env(self._task, self._run.env, 1, render=True, training=False)
        except Exception as error:  # of the user's class: a display that was there at the start may be gone
            raise RunError(f"the environment of a video could not be made: {error}") from error
        try:
            write_gif(path, self._frames(env, f"video {index}", heartbeat), getattr(env, "frames_per_second", 30))
        finally:
            env.close()

    def _frames(self, env: Any, key: str, heartbeat: Callable[[], object]) -> Generator[np.ndarray]:
        """The pictures of an episode. An error of the environment becomes a `RunError` that says it was a video's."""
        try:
            yield from self._drawn_episode(env, key, heartbeat)
        except (EvaluationStopped, PeerError):  # the heartbeat asks the other ranks: no fault of the episode
            raise
        except Exception as error:
            reason = str(error) if isinstance(error, RunError) else f"{type(error).__name__}: {error}"
            raise RunError(f"the episode of a video failed: {reason}") from error

    def _drawn_episode(self, env: Any, key: str, heartbeat: Callable[[], object]) -> Generator[np.ndarray]:
        """Play an episode; yields the picture before each step."""
        noise, actor = stream(self._run.seed, key), self._player.actor_of(env.num_envs)
        observation = env.reset([stream_seed(self._run.seed, key)] * env.num_envs)
        over = np.zeros(env.num_envs, bool)
        self._refuse_non_finite(observation, np.zeros(len(observation)), 0)
        for step in range(1, MAX_FRAMES):
            heartbeat()
            yield picture_of(env.render())
            observation, reward, terminated, truncated, _ = env.step(self._choose(observation, noise, actor))
            self._refuse_non_finite(observation, reward, step)
            over |= terminated | truncated
            waiting = env.waiting() if env.spec.num_agents > 1 else np.zeros_like(over)  # not begun, or left
            actor.begins = terminated | truncated | waiting
            if over.any() and (over | waiting).all():  # several rows are the agents of one environment
                break
        if env.spec.autoreset == "next_step":  # else this is the next episode's first
            yield picture_of(env.render())

    def _refuse_non_finite(self, observation: np.ndarray, reward: np.ndarray, step: int) -> None:
        """Raise `RunError` if a number that is not finite came from a step [B], unless `non_finite` is `skip`."""
        fault = find_non_finite(observation[None], reward[None], [], 0)
        if fault is not None and self._run.non_finite == "stop":
            raise RunError(f"{fault}, {_when(step)}; look for a division by 0 or a diverging simulation")

    def close(self) -> None:
        """Close the environments."""
        for env in self._envs.values():
            env.close()
        self._envs.clear()

    def _choose(self, observation: np.ndarray, noise: np.random.Generator, actor: ActorWithState) -> np.ndarray:
        return self._clip(self._player.choose(observation, None if self._run.evaluate_greedy else noise, actor))


def _when(step: int) -> str:
    """The step of an episode for messages; 0 is that of `reset`."""
    return f"in step {step} of an episode" if step else "in reset"


def _one_row(spec: EnvSpec, observation: Any) -> np.ndarray:
    """An observation as a batch of one; `ValueError` if it is not of the spec's shape, or not finite."""
    image, shape = spec.image is not None, spec.observation_shape
    try:
        rows = np.asarray(observation)[None] if image else np.asarray(observation, np.float32).reshape(1, -1)
    except (TypeError, ValueError):  # a Dict, or parts of different lengths
        rows, found = None, f"a {type(observation).__name__}"
    else:
        found = str(list(rows.shape[1:]))
    if rows is not None and rows.shape[1:] == shape:
        if not np.isfinite(rows).all():
            index = np.argwhere(~np.isfinite(rows))[0, 1:].tolist()
            raise ValueError(f"the observation is not finite at {index}: {observation}")
        return _bytes(rows) if image else rows
    if image:
        raise ValueError(f"the policy observes an image {list(shape)} of bytes, channels first, not {found}")
    raise ValueError(
        f"the policy observes {list(shape)} numbers, not {found}: choices of discrete spaces are one-hot, parts of a "
        "Dict (in the order of env.policy_keys) or Tuple joined, and with env.frame_stack the observations of the last "
        "steps, oldest first"
    )


def _bytes(image: np.ndarray) -> np.ndarray:
    """An image of integers as bytes; `ValueError` if they are none, as encoders scale bytes alone to [0, 1]."""
    whole = np.issubdtype(image.dtype, np.integer)
    if not whole or image.min() < 0 or image.max() > 255:
        found = f"{image.dtype}" if not whole else f"{image.min()} to {image.max()}"
        raise ValueError(f"the policy observes an image of bytes, 0 to 255 (uint8), not of {found}; convert it")
    return image.astype(np.uint8)
