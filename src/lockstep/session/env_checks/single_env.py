"""Checks of a single `gymnasium.Env`."""

import inspect
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import data_equivalence

from lockstep.envs.groups import ObservationGroups, observation_fields
from lockstep.envs.spaces import action_spec, restore_action
from lockstep.errors import ConfigError
from lockstep.session.env_checks.episodes import EnvDriver, Limits, Outcome, check_episodes, random_action
from lockstep.session.env_checks.inputs import check_inputs
from lockstep.session.env_checks.report import Report
from lockstep.session.env_checks.values import (
    as_arrays,
    check_flag,
    check_observation,
    check_reset_values,
    check_reward,
    check_spaces,
    check_step_values,
    describe_network_input,
    describe_spaces,
)

Env = gymnasium.Env[Any, Any]
_SIGNATURE = "def reset(self, *, seed=None, options=None)"


def check_single(
    create: Callable[[], Env], task: str, limit: int | None, report: Report, limits: Limits, *, inner: bool = False
) -> None:
    """Check an environment, its wrappers included.

    Args:
        create: makes it.
        task: its name.
        limit: steps after which its episodes are truncated, if known.
        report: receives the findings.
        limits: of steps and time.
        inner: it will be wrapped; the wrappers may convert unsupported spaces.
    """
    env = report.call("__init__", create)
    try:
        check_spaces(env, report)
        if not inner:
            _check_support(env, task, report)
        _check_signature(env, report)
        check_episodes(SingleEnvDriver(env, limit, report), lambda: SingleEnvDriver(create(), limit, report), limits)
    finally:
        _close(env, report)


def _check_support(env: Env, task: str, report: Report) -> None:
    try:
        action = action_spec(env.action_space, task)
        observed = observation_fields(env, task)
    except ConfigError as error:
        report.fatal(str(error).replace(f"task={task} ", "the task ", 1))
    seen = describe_network_input(observed["observation_size"], observed["image"], observed["image_parts"])
    if (critic_size := observed.get("critic_size")) is not None:
        of_critic = describe_network_input(critic_size, None, observed["critic_image_parts"])
        seen = f"{seen} for the policy, {of_critic} for the critic"
    space = env.named_space if isinstance(env, ObservationGroups) else env.observation_space
    check_inputs(space, report)
    if action.kind != "continuous" and set(action.sizes) == {1}:
        report.warn(f"{' '.join(str(env.action_space).split())} holds one action: there is nothing to learn")
    report.facts += describe_spaces(space, env.action_space, seen)


def _check_signature(env: Env, report: Report) -> None:
    parameters = inspect.signature(env.unwrapped.reset).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    lacking = [name for name in ("seed", "options") if name not in parameters]
    if lacking:
        report.fatal(f"reset takes no argument {' and no '.join(lacking)}; write {_SIGNATURE}")


def _close(env: Env, report: Report) -> None:
    try:
        env.close()
    except Exception as error:
        report.warn(f"close raised {type(error).__name__}: {error}")


class SingleEnvDriver(EnvDriver):
    """Drives one environment, with same-step autoreset."""

    vectorized = False

    def __init__(self, env: Env, limit: int | None, report: Report) -> None:
        super().__init__(env, limit, report)
        self._groups = env if isinstance(env, ObservationGroups) else None
        self._space: Any = env.observation_space if self._groups is None else self._groups.named_space
        try:
            self._action = action_spec(env.action_space, "")
            self._restore_action = restore_action(env.action_space, self._action)
        except ConfigError:
            self._action = None
        self._previous: tuple[Any, Any] | None = None

    def reset(self, seed: int | None) -> Any:
        """Start a new episode."""
        returned = self.report.call("reset", lambda: self._env.reset(seed=seed, options=None))
        observation = check_reset_values(returned, self.report)
        self._check_observation(observation, "reset")
        return self._copy(observation)

    def act(self, generator: np.random.Generator) -> Any:
        """An action of the space."""
        if self._action is not None:
            action = random_action(self._action, generator)
            return action if self._restore_action is None else self._restore_action(action)
        space: Any = self._env.action_space  # unsupported, and converted by a wrapper
        space.seed(int(generator.integers(1 << 31)))
        return space.sample()

    def step(self, action: Any) -> Outcome:
        """One step, and a reset if it ended the episode."""
        report = self.report
        observation, reward, terminated, truncated = check_step_values(
            report.call("step", lambda: self._env.step(action)), report
        )
        self._check_observation(observation, "step")
        number = check_reward(reward, report)
        ended = check_flag(terminated, "terminated", report) | check_flag(truncated, "truncated", report)
        seen = self._copy(observation)
        if ended:
            seen = (seen, self.reset(None))
        return Outcome(seen, number, np.array([ended]))

    def can_save(self) -> bool:
        """Whether every layer can be saved."""
        env: Env = self._env
        half = [name for name in ("state", "restore") if callable(getattr(type(env.unwrapped), name, None))]
        if len(half) == 1:
            lacking = "restore(state)" if half == ["state"] else "state()"
            self.report.warn(f"{half[0]} is there and {lacking} is not: both are needed to save the environment")
        return super().can_save()

    def close(self) -> None:
        """Close it; an error is a warning."""
        _close(self._env, self.report)

    def _check_observation(self, observation: Any, method: str) -> None:
        named = observation if self._groups is None else self._groups.named(observation)
        check_observation(named, self._space, method, self.report)

    def _copy(self, observation: Any) -> Any:
        """Copy the observation, and check that the previous one was not changed in place."""
        if self._previous is not None and self.report.finite and not data_equivalence(*self._previous, exact=True):
            self.report.warn(
                f"{self.report.doing} changed the observation that was returned before: Lockstep copies each, other "
                "libraries may not; return a new array, such as self.array.copy()"
            )
        arrays = as_arrays(observation)
        copy = deepcopy(arrays)
        self._previous = arrays, copy
        return copy
