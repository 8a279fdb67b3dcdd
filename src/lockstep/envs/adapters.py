"""Adapters of Gymnasium environments to `VectorEnv`: flat arrays or images, true final observations, clear errors."""

import copy
import os
import sys
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import DependencyNotInstalled
from gymnasium.vector import SyncVectorEnv

from lockstep.envs import wrapper_state
from lockstep.envs.drawing import choose_mujoco_gl, frames_per_second
from lockstep.envs.errors import describe_error, name_in_shard
from lockstep.envs.extras import EXTRAS, install_line, missing_module
from lockstep.envs.groups import ObservationGroups, observation_fields
from lockstep.envs.joined_groups import split_groups
from lockstep.envs.spaces import (
    Convert,
    action_spec,
    check_spaces_set,
    flat_space,
    flatten_batch,
    flatten_observation,
    restore_action,
)
from lockstep.envs.spec import EnvSpec
from lockstep.envs.vector import Step, not_made_error
from lockstep.envs.workers import WorkerEnvs, become_worker
from lockstep.envs.wrappers import refuse_running_statistics
from lockstep.errors import ConfigError, RunError

Env = gymnasium.Env[Any, Any]


class VectorizedTask:
    """A task's own vectorized environment; the hot path of the smallest tasks."""

    def __init__(self, env: Any, spec: EnvSpec, task: str) -> None:
        """Adapt `env`, a Gymnasium `VectorEnv` that `spec` describes."""
        self.spec = spec
        self.num_envs: int = env.num_envs
        self.raw = self._env = env
        self._task = task
        self._step = env.step
        self._next_step = spec.autoreset == "next_step"
        self._convert = flatten_batch(env.single_observation_space)
        self._shape = (self.num_envs, *spec.observation_shape)
        self._restore_action = restore_action(env.single_action_space, spec.action)
        self.savable = wrapper_state.savable(env)
        # Tasks assert that each batch of actions is valid, which takes a seventh of CartPole's step. Ours always is.
        trusted: Any = copy.copy(env.unwrapped.action_space)
        trusted.contains = lambda _: True  # pyright: ignore[reportUnknownLambdaType]
        with suppress(AttributeError):  # the space may be a read-only property
            env.unwrapped.action_space = trusted

    def reset(self, seeds: Sequence[int]) -> np.ndarray:
        """Start new episodes everywhere; the first seed is used for all."""
        with _errors_named(self._task, "reset"):
            observation, _ = self._env.reset(seed=int(seeds[0]))
        return _of_shape(self._shape, self._convert(observation), self._task, "reset")

    def step(self, action: np.ndarray) -> Step:
        """Step every environment once."""
        if self._restore_action is not None:
            action = self._restore_action(action)
        try:
            observation, reward, terminated, truncated, info = self._step(action)
        except Exception as error:
            raise RunError(f"{self._task} failed in step: {describe_error(error)}") from error
        observation = _of_shape(self._shape, self._convert(observation), self._task, "step")
        reward = np.asarray(reward)
        if reward.dtype.kind in "SU":
            raise text_reward_error(self._task, reward.tolist())
        with np.errstate(over="ignore"):  # one beyond float32 becomes infinite, which the rollout refuses
            reward = reward.astype(np.float32, copy=False)
        return (
            observation,
            reward,
            np.asarray(terminated, np.bool_),
            np.asarray(truncated, np.bool_),
            None if self._next_step else _final(observation, terminated, truncated, info, self._convert),
        )

    def state(self) -> dict[str, Any]:
        """See `SavableEnv`. Raises `RunError` if the task cannot be saved."""
        with _errors_named(self._task, "state"):
            return wrapper_state.save(self._env)

    def restore(self, state: dict[str, Any]) -> None:
        """See `SavableEnv`. Raises `RunError` if the state does not fit."""
        with _errors_named(self._task, "restore"):
            wrapper_state.restore(self._env, state)

    @property
    def frames_per_second(self) -> float:
        """Of a video."""
        return frames_per_second(self._env)

    def render(self) -> Any:
        """The frames of all environments, if made with `render=True`."""
        return self._env.render()

    def close(self) -> None:
        """Close the task."""
        close_or_warn(self._env, self._task)


class SingleEnvs:
    """Single environments, in this process or in workers."""

    def __init__(
        self, env: SyncVectorEnv | WorkerEnvs, threshold: float | None, limit: int | None, frames: int = 1
    ) -> None:
        """Adapt `env`, made of `FlatEnv`; `frames`: number of frames in an image's channels, see `EnvSpec`."""
        self.num_envs = env.num_envs
        self._env = env
        described: Mapping[str, Any] = self._each("described", [()] * self.num_envs)[0]
        self.spec = EnvSpec(
            **described,
            frames=frames,
            autoreset="same_step",
            separately_seedable=True,
            reward_threshold=threshold,
            max_episode_steps=limit,
        )
        critic_size = self.spec.critic_size or 0
        self._critic: tuple[np.ndarray, np.ndarray | None] = np.zeros((self.num_envs, critic_size), "f4"), None
        self.savable = all(self._each("savable", [()] * self.num_envs))

    def reset(self, seeds: Sequence[int]) -> np.ndarray:
        """Start new episodes everywhere, each with its own seed."""
        try:
            observation = self._env.reset(seed=[int(seed) for seed in seeds])[0]
        except (EOFError, OSError) as error:
            raise self._worker_error(error) from error
        return self._split(observation, None)[0]

    def step(self, action: np.ndarray) -> Step:
        """Step every environment once."""
        try:
            observation, reward, terminated, truncated, info = self._env.step(action)
        except (EOFError, OSError) as error:  # a broken pipe; errors of environments arrive as RunError
            raise self._worker_error(error) from error
        final = _final(observation, terminated, truncated, info, np.asarray)
        observation, final = self._split(observation, final)
        with np.errstate(over="ignore"):  # one beyond float32 becomes infinite, which the rollout refuses
            reward = reward.astype(np.float32)
        return observation, reward, terminated, truncated, final

    def critic_observation(self) -> tuple[np.ndarray, np.ndarray | None]:
        """See `CriticEnv`."""
        return self._critic

    def _split(self, observation: np.ndarray, final: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
        """The policy's part of observations; keeps that of the value network, which follows it."""
        observation, critic = split_groups(observation, self.spec)
        last = None
        if final is not None:
            final, last = split_groups(final, self.spec)
        if critic is not None:
            self._critic = critic, last
        return observation, final

    def state(self) -> dict[str, Any]:
        """See `SavableEnv`. Raises `RunError` if an environment cannot be saved.

        With same-step autoreset, Gymnasium's vector environments have no state of their own.
        """
        return {"environments": self._each("state", [()] * self.num_envs)}

    def restore(self, state: dict[str, Any]) -> None:
        """See `SavableEnv`. Raises `RunError` if the state does not fit."""
        saved = state["environments"]
        if len(saved) != self.num_envs:
            raise RunError(f"the saved state is of {len(saved)} environments per shard, here are {self.num_envs}")
        self._each("restore", [(state,) for state in saved])

    @property
    def frames_per_second(self) -> float:
        """Of a video."""
        return self._each("frames_per_second", [()] * self.num_envs)[0]

    def render(self) -> Any:
        """The frames of all environments, if made with `render=True`."""
        return self._env.render()

    def close(self) -> None:
        """Close every environment and stop the workers."""
        self._env.close()

    def _each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a method of each `FlatEnv` with its own arguments; returns the results."""
        if isinstance(self._env, WorkerEnvs):
            try:
                return self._env.each(method, arguments)
            except (EOFError, OSError) as error:
                raise self._worker_error(error) from error
        return [getattr(env, method)(*own) for env, own in zip(self._env.envs, arguments, strict=True)]

    def _worker_error(self, error: Exception) -> RunError:
        return RunError(self._env.death_report() if isinstance(self._env, WorkerEnvs) else describe_error(error))


class FlatEnv(gymnasium.Env[np.ndarray, Any]):
    """One environment with flat spaces, or images, that names itself in errors and drops `info`."""

    def __init__(self, env: Env, index: int, task: str) -> None:
        """Flatten `env`, number `index` of its shard."""
        check_spaces_set(env, task)
        action = action_spec(env.action_space, task)
        self.env = env
        self.metadata, self.render_mode = dict(env.metadata or {}), env.render_mode
        space: Any = env.observation_space
        if isinstance(env, ObservationGroups) and env.image is not None:
            self.observation_space, self._flatten = space, np.asarray
        else:
            self.observation_space, self._flatten = flat_space(space, task), flatten_observation(space)
        self._shape = tuple(self.observation_space.shape or ())
        self._described = {**observation_fields(env, task), "action": action}
        if action.kind == "continuous":
            self.action_space = spaces.Box(np.array(action.low, np.float32), np.array(action.high, np.float32))
        elif action.kind == "discrete":
            self.action_space = spaces.Discrete(action.sizes[0])
        else:
            self.action_space = spaces.MultiDiscrete(list(action.sizes))
        self._restore_action = restore_action(env.action_space, action)
        self._name = name_in_shard(index)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start a new episode."""
        with _errors_named(self._name, "reset"):
            observation, _ = self.env.reset(seed=seed, options=options)
            flat = self._flatten(observation)
        return _of_shape(self._shape, flat, self._name, "reset"), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Step once."""
        try:
            raw = action if self._restore_action is None else self._restore_action(action)
            observation, reward, terminated, truncated, _ = self.env.step(raw)
            flat, number = self._flatten(observation), float(reward)
        except Exception as error:
            raise RunError(f"{self._name} failed in step: {describe_error(error)}") from error
        if isinstance(reward, (str, bytes)):
            raise text_reward_error(self._name, reward)
        return _of_shape(self._shape, flat, self._name, "step"), number, terminated, truncated, {}

    def described(self) -> dict[str, Any]:
        """The fields of an `EnvSpec` that are about observations and actions, those of the environment itself."""
        return self._described

    def savable(self) -> bool:
        """Whether the environment can be saved; never raises."""
        return wrapper_state.savable(self.env)

    def state(self) -> dict[str, Any]:
        """The complete state."""
        with _errors_named(self._name, "state"):
            return wrapper_state.save(self.env)

    def restore(self, state: dict[str, Any]) -> None:
        """Load `state()`."""
        with _errors_named(self._name, "restore"):
            wrapper_state.restore(self.env, state)

    def frames_per_second(self) -> float:
        """Of a video."""
        return frames_per_second(self)

    def render(self) -> Any:
        """The current frame."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        close_or_warn(self.env, self._name)


@dataclass(frozen=True)
class EnvFactory:
    """Makes one environment of a shard, in this process or in a worker."""

    create: Callable[[], Env]
    wrappers: tuple[Callable[[Env], Env], ...]
    task: str
    rank_pid: int
    """Process id of the rank; in any other process, the factory runs in a worker."""
    index: int = 0

    def __call__(self) -> FlatEnv:
        """The environment, wrapped and flat."""
        if os.getpid() != self.rank_pid:
            become_worker(self.rank_pid)
        return FlatEnv(self.wrapped(), self.index, self.task)

    def wrapped(self) -> Env:
        """The environment in its wrappers, with its original spaces."""
        env = task = self.create()
        if env.render_mode is not None:
            choose_mujoco_gl()
        for wrapper in self.wrappers:
            env = wrapper(env)
        refuse_running_statistics(env, task)
        return env


@contextmanager
def config_errors(task: str) -> Generator[None]:
    """Convert errors of making an environment into a one-line `ConfigError`, and silence Gymnasium's warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except (ConfigError, RunError):
            raise
        except DependencyNotInstalled as error:
            missing = missing_module(str(error))
            if missing is not None:
                raise _not_installed(task, missing) from error
            raise ConfigError(f"task={task} needs more than is installed: {' '.join(str(error).split())}") from error
        except ModuleNotFoundError as error:
            raise _not_installed(task, (error.name or "").split(".")[0]) from error
        except Exception as error:
            raise not_made_error(task, error) from error


def _not_installed(task: str, module: str) -> ConfigError:
    install = install_line(module) if module in EXTRAS else f"pip install {module}"
    return ConfigError(f"task={task} needs the Python package {module}: {install}")


def close_or_warn(env: Any, name: str) -> None:
    """Close an environment; what its `close` raises is a warning, since all that it gave is there."""
    try:
        env.close()
    except Exception as error:
        print(f"lockstep: warning: {name} failed in close: {describe_error(error)}", file=sys.stderr, flush=True)


def text_reward_error(name: str, reward: Any) -> RunError:
    """The error for a reward that is text, from which `float` and numpy would silently read a number."""
    return RunError(f"{name} gave the reward {reward!r} in step, which is text; return a number: float(reward)")


@contextmanager
def _errors_named(what: str, where: str) -> Generator[None]:
    """Raise errors as a `RunError` that names the environment and the method; too slow for `step`."""
    try:
        yield
    except Exception as error:
        raise RunError(f"{what} failed in {where}: {describe_error(error)}") from error


def _of_shape(shape: tuple[int, ...], observation: np.ndarray, name: str, method: str) -> np.ndarray:
    """The same observation. Raises `RunError` if its shape differs: numpy would broadcast a single number silently."""
    if observation.shape != shape:
        raise RunError(
            f"{name} gave an observation of the shape {list(observation.shape)} in {method}, and its observation_space "
            f"is {list(shape)}, as flat arrays; return one that the space contains"
        )
    return observation


def _final(
    observation: np.ndarray, terminated: np.ndarray, truncated: np.ndarray, info: dict[str, Any], convert: Convert
) -> np.ndarray:
    """Observations before any reset; the same array if no episode ended. `convert` flattens a batch."""
    ended = np.flatnonzero(terminated | truncated)
    if not ended.size:
        return observation
    if "final_obs" not in info:
        raise RunError("the environment declares same-step autoreset, but gave no final_obs for an ended episode")
    final, rows = observation.copy(), info["final_obs"]
    for row in ended:
        last = convert(np.asarray(rows[row])[None])[0]
        if last.shape != final.shape[1:]:
            raise RunError(
                f"the final_obs of {name_in_shard(int(row))} has the shape {list(last.shape)}, and its "
                f"observations {list(final.shape[1:])}; return the last observation of the episode"
            )
        final[row] = last
    return final
