"""Checks of vector environments: Gymnasium's `VectorEnv`, and the protocol of `lockstep.envs.vector`."""

from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from lockstep.envs.spaces import action_spec, restore_action
from lockstep.envs.spec import EnvSpec
from lockstep.envs.state import can_save
from lockstep.envs.vector import VectorEnv, has_agents, has_critic_observation
from lockstep.session.env_checks.episodes import SEEDS, EnvDriver, Outcome, random_action
from lockstep.session.env_checks.report import Report, describe_value
from lockstep.session.env_checks.values import (
    as_numbers,
    as_tuple,
    check_observation,
    check_reset_values,
    check_step_values,
    shown_index,
)

NUM_ENVS = 3
"""Environments per check; more than one, to detect confused rows."""

_FINAL_IS_LOST = (
    "step returned the same array as observation and as {} in a step that truncated an episode: the last one of the "
    "old episode is lost; copy it before the reset"
)


class ProtocolDriver(EnvDriver):
    """Drives environments that follow `lockstep.envs.vector.VectorEnv`."""

    def __init__(self, env: VectorEnv, report: Report) -> None:
        spec: EnvSpec = env.spec
        super().__init__(env, spec.max_episode_steps, report)
        self._spec = spec
        shape = (env.num_envs, *spec.observation_shape)
        low, high = (-np.inf, np.inf) if spec.image is None else (0, 255)
        self._space = spaces.Box(low, high, shape, spec.observation_dtype)
        self._acted = np.zeros(env.num_envs, bool)

    def reset(self, seed: int) -> Any:
        """Start new episodes everywhere."""
        return self._reset([_env_seed(seed, i) for i in range(self._env.num_envs)])

    def check_seeds(self) -> None:
        """Check that each environment uses its own seed, if the spec says so."""
        if (
            not self._spec.separately_seedable or self._spec.num_agents > 1
        ):  # agents share the seed of their environment
            return
        seeds = [_env_seed(SEEDS[0], i) for i in range(self._env.num_envs)]
        if not np.array_equal(self._reset(seeds)[::-1], self._reset(seeds[::-1]), equal_nan=True):
            self.report.fault(
                "spec says separately_seedable=True, but the same seeds in another order gave reset other first "
                "observations; draw those of environment i from seeds[i] alone, or say separately_seedable=False"
            )

    def act(self, generator: np.random.Generator) -> Any:
        """A random action for each environment."""
        return random_action(self._spec.action, generator, (self._env.num_envs,))

    def step(self, action: Any) -> Outcome:
        """Step all environments."""
        report, count = self.report, self._env.num_envs
        returned: Any = report.call("step", lambda: self._env.step(action))
        values = as_tuple(returned)
        if has_agents(self._env):
            self._acted |= ~report.call("waiting", self._env.waiting)
        if values is None or len(values) != 5:
            report.fatal(
                f"step returned {describe_value(returned)}; return 5: observation, reward, terminated, truncated, "
                "final observation (None with next_step)"
            )
        observation, reward, terminated, truncated, final = values
        self._check_observation(observation, "step")
        rewards = check_rewards(reward, count, report)
        terminated = check_flags(terminated, "terminated", count, report)
        truncated = check_flags(truncated, "truncated", count, report)
        cut = truncated & ~terminated
        self._check_final(final, observation, terminated | truncated, cut)
        self._check_critic("step", terminated | truncated, cut)
        return Outcome(np.array(observation), rewards, terminated | truncated)

    def idle_agents(self) -> list[int]:
        """Agents that took part in no step of any environment."""
        agents = self._spec.num_agents
        acted = self._acted[: len(self._acted) // agents * agents].reshape(-1, agents).any(0)
        return np.flatnonzero(~acted).tolist() if agents > 1 else []

    def can_save(self) -> bool:
        """Whether it has `state` and `restore`."""
        return can_save(self._env)

    def state(self) -> dict[str, Any]:
        """The environments' state."""
        return self._env.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Load a state."""
        self._env.restore(state)

    def _reset(self, seeds: list[int]) -> Any:
        observation: Any = self.report.call("reset", lambda: self._env.reset(seeds))
        if isinstance(observation, tuple):
            self.report.fatal(
                f"reset returned {describe_value(observation)}; return the observations alone, an array of shape "
                f"{self._space.shape}"
            )
        self._check_observation(observation, "reset")
        self._check_critic("reset")
        return np.array(observation)

    def _check_observation(
        self, observation: Any, method: str, part: str = "observation", space: spaces.Box | None = None
    ) -> None:
        space = space or self._space
        check_observation(observation, space, method, self.report, part, says="spec")
        if not isinstance(observation, np.ndarray):  # arrays of other libraries lack methods that Lockstep calls
            self.report.fatal(
                f"{method} returned a {type(observation).__name__} as {part}; return a numpy array: "
                f"np.asarray(observation, np.{space.dtype})"
            )

    def _check_final(self, final: Any, observation: Any, ended: np.ndarray, cut: np.ndarray) -> None:
        if self._spec.autoreset == "next_step":
            if final is not None:
                self.report.fault(
                    f"step returned {describe_value(final)} as final observation, and spec says autoreset=next_step, "
                    "with which there is none; return None"
                )
            return
        if final is None:
            self.report.fatal(
                "step returned None as final observation, and spec says autoreset=same_step; return what was seen "
                f"before any reset, an array of shape {self._space.shape}"
            )
        self._check_observation(_valid_rows(final, observation, ended), "step", "final observation")
        if cut.any() and np.shares_memory(final, observation):
            self.report.fault(_FINAL_IS_LOST.format("final observation"))

    def _check_critic(self, after: str, ended: np.ndarray | None = None, cut: np.ndarray | None = None) -> None:
        """Check the critic's own observations after a reset, or a step that ended episodes, some `cut` off."""
        size = self._spec.critic_size
        if size is None:
            return
        space = spaces.Box(-np.inf, np.inf, (self._env.num_envs, size), np.float32)
        wanted = (
            f"return the critic's observations of now and before any reset, arrays of shape {space.shape} (the second "
            "is None with next_step)"
        )
        if not has_critic_observation(self._env):
            self.report.fatal(f"spec has critic_size={size}, and there is no method critic_observation; {wanted}")
        returned: Any = self.report.call("critic_observation", self._env.critic_observation)
        values = as_tuple(returned)
        if values is None or len(values) != 2:
            self.report.fatal(f"critic_observation returned {describe_value(returned)}; {wanted}")
        method = f"critic_observation (after {after})"
        self._check_observation(values[0], method, space=space)
        if self._spec.autoreset == "next_step" or ended is None or cut is None:
            return
        if values[1] is None:
            self.report.fatal(f"{method} returned None as final observation; {wanted}")
        self._check_observation(_valid_rows(values[1], values[0], ended), method, "final observation", space)
        if cut.any() and np.shares_memory(values[0], values[1]):
            self.report.fault(_FINAL_IS_LOST.format("final observation of the critic"))


def _valid_rows(final: Any, observation: Any, ended: np.ndarray) -> Any:
    """The final observations of episodes that ended; other rows mean nothing and may hold NaN: the observation's."""
    if not isinstance(final, np.ndarray) or (final.shape, final.dtype) != (observation.shape, observation.dtype):
        return cast(Any, final)  # refused as a whole
    rows = cast("np.ndarray[Any, np.dtype[Any]]", final)
    return np.where(ended.reshape(-1, *[1] * (rows.ndim - 1)), rows, observation)


class GymnasiumVectorDriver(EnvDriver):
    """Drives a `gymnasium.vector.VectorEnv`."""

    def __init__(self, env: Any, limit: int | None, task: str, report: Report) -> None:
        super().__init__(env, limit, report)
        self._space: Any = batch_space(env.single_observation_space, env.num_envs)
        self._action = action_spec(env.single_action_space, task)
        self._restore_action = restore_action(env.single_action_space, self._action)
        self._same_step = (env.metadata or {}).get("autoreset_mode") is AutoresetMode.SAME_STEP

    def reset(self, seed: int) -> Any:
        """Start new episodes everywhere."""
        returned = self.report.call("reset", lambda: self._env.reset(seed=seed))
        observation = check_reset_values(returned, self.report)
        check_observation(observation, self._space, "reset", self.report)
        return np.array(observation)

    def act(self, generator: np.random.Generator) -> Any:
        """A random action for each environment."""
        action = random_action(self._action, generator, (self._env.num_envs,))
        return action if self._restore_action is None else self._restore_action(action)

    def step(self, action: Any) -> Outcome:
        """Step all environments."""
        report, count = self.report, self._env.num_envs
        returned: Any = report.call("step", lambda: self._env.step(action))
        observation, reward, terminated, truncated = check_step_values(returned, report)
        check_observation(observation, self._space, "step", report)
        rewards = check_rewards(reward, count, report)
        terminated = check_flags(_as_flags(terminated), "terminated", count, report)
        truncated = check_flags(_as_flags(truncated), "truncated", count, report)
        ended = terminated | truncated
        if self._same_step and ended.any() and "final_obs" not in returned[4]:
            report.fatal(
                "step ended an episode and info has no final_obs, which autoreset_mode SAME_STEP promises; put the "
                'observations before the reset into info["final_obs"], an array of num_envs rows'
            )
        if self._same_step:
            for row in np.flatnonzero(truncated & ~terminated):
                if np.shares_memory(np.asarray(returned[4]["final_obs"][row]), np.asarray(observation)):
                    report.fault(_FINAL_IS_LOST.format('info["final_obs"]'))
        return Outcome(np.array(observation), rewards, ended)


def check_modes(env: gymnasium.vector.VectorEnv[Any, Any, Any], report: Report) -> None:
    """Check `num_envs`, the autoreset mode and the observation space of a Gymnasium vector environment."""
    if getattr(env, "num_envs", None) != NUM_ENVS:
        report.fatal(
            f"num_envs is {getattr(env, 'num_envs', None)!r} after __init__(num_envs={NUM_ENVS}); set self.num_envs"
        )
    mode: Any = (env.metadata or {}).get("autoreset_mode")
    if mode not in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP):
        report.fatal(
            f"metadata says autoreset_mode {mode}; let the class reset ended environments itself and say how: "
            'metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}'
        )
    if not isinstance(env.single_observation_space, spaces.Box):
        report.fatal(f"single_observation_space is {env.single_observation_space}; use a Box")


def check_rewards(reward: Any, count: int, report: Report) -> np.ndarray:
    """Check the rewards [B]; returns them as float32."""
    array = as_numbers(reward)
    if array is None or array.shape != (count,):
        report.fatal(
            f"step returned {describe_value(reward)} as reward; return an array of shape ({count},), one per row"
        )
    array = array.astype(np.float32)
    if not np.isfinite(array).all():
        place = int(np.flatnonzero(~np.isfinite(array))[0])
        report.not_finite(
            f"step returned {array[place]} as reward at index {shown_index((place,))}; return finite numbers",
            about="reward",
        )
    return array


def check_flags(flags: Any, name: str, count: int, report: Report) -> np.ndarray:
    """Check `terminated` or `truncated` [B]."""
    array: Any = flags if type(flags) is np.ndarray else None
    if array is None or array.shape != (count,) or array.dtype != np.bool_:
        report.fatal(f"step returned {describe_value(flags)} as {name}; return an array of bools of shape ({count},)")
    return array


def _as_flags(flags: Any) -> Any:
    """Lists and numbers 0 or 1 as bools, because the adapter of these environments converts them."""
    array = as_numbers(flags)
    return array.astype(np.bool_) if array is not None and np.isin(array, (0, 1)).all() else flags


def _env_seed(seed: int, index: int) -> int:
    return (seed + 7919 * index) & 0x7FFFFFFF
