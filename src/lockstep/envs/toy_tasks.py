"""Small numpy tasks that are learned in seconds, one per kind of action."""

from typing import ClassVar

import numpy as np

from lockstep.envs.numpy_env import NumpyEnv, numpy_spec
from lockstep.envs.spec import ActionSpec
from lockstep.errors import ConfigError


class Corridor(NumpyEnv):
    """`lockstep/Corridor-v0`: walk to the right end of a row of cells (discrete).

    The observation is the cell, one-hot. Action 0 moves left, 1 right, up to the walls. Each step costs 0.01; the right
    end pays 1 and terminates. Episodes start in a random cell of the left half.
    """

    arrays: ClassVar[tuple[str, ...]] = ("_cell",)

    def __init__(self, num_envs: int, *, length: int = 10, max_episode_steps: int | None = None) -> None:
        """A corridor of `length` cells; `max_episode_steps` is by default 4 times the length."""
        if length < 2:
            raise ConfigError(f"env.kwargs length={length} must be at least 2")
        spec = numpy_spec(
            observation_size=length,
            action=ActionSpec("discrete", (2,)),
            reward_threshold=round(1 - 0.01 * (length + 1), 4),  # two steps more than the longest direct walk needs
            max_episode_steps=4 * length if max_episode_steps is None else max_episode_steps,
        )
        super().__init__(num_envs, spec)
        self._length = length
        self._one_hot = np.eye(length, dtype=np.float32)
        self._cell = np.zeros(num_envs, np.int64)

    def _begin(self, rows: np.ndarray) -> None:
        self._cell[rows] = self._generator.integers(0, self._length // 2, rows.size)

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self._cell += 2 * action - 1
        np.maximum(self._cell, 0, out=self._cell)
        terminated = self._cell >= self._length - 1
        return terminated.astype(np.float32) - np.float32(0.01), terminated

    def _observe(self) -> np.ndarray:
        return self._one_hot[self._cell]


class Reach(NumpyEnv):
    """`lockstep/Reach-v0`: move a point to a goal (continuous).

    Point and goal are drawn from [-1, 1] per dimension; the observation is the point and the vector to the goal. The
    action, in [-1, 1], moves the point by a tenth of itself. Each step costs the remaining distance; within 0.1 the
    episode terminates.
    """

    arrays: ClassVar[tuple[str, ...]] = ("_point", "_goal")

    def __init__(self, num_envs: int, *, dims: int = 2, max_episode_steps: int = 50) -> None:
        """A space of `dims` dimensions."""
        if dims < 1:
            raise ConfigError(f"env.kwargs dims={dims} must be at least 1")
        spec = numpy_spec(
            observation_size=2 * dims,
            action=ActionSpec("continuous", (dims,), (-1.0,) * dims, (1.0,) * dims),
            # Going straight at full speed returns -2.9 on a line and -5.3 in the plane.
            reward_threshold={1: -4.0, 2: -7.0}.get(dims),
            max_episode_steps=max_episode_steps,
        )
        super().__init__(num_envs, spec)
        self._point = np.zeros((num_envs, dims), np.float32)
        self._goal = np.zeros((num_envs, dims), np.float32)

    def _begin(self, rows: np.ndarray) -> None:
        shape = (2, rows.size, self._point.shape[1])
        self._point[rows], self._goal[rows] = self._generator.uniform(-1, 1, shape)

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self._point += np.float32(0.1) * np.clip(action, -1, 1)
        distance = np.sqrt(np.square(self._goal - self._point).sum(axis=1))
        return -distance, distance < 0.1

    def _observe(self) -> np.ndarray:
        return np.concatenate((self._point, self._goal - self._point), axis=1)


class Match(NumpyEnv):
    """`lockstep/Match-v0`: repeat several symbols at once (multi-discrete).

    The observation is `components` symbols out of `choices`, one-hot; the action is one choice per component. The
    reward is the fraction of matches. A step without a match terminates; new symbols are drawn at every step.
    """

    arrays: ClassVar[tuple[str, ...]] = ("_symbols",)

    def __init__(self, num_envs: int, *, components: int = 3, choices: int = 4, max_episode_steps: int = 20) -> None:
        """`components` symbols with `choices` values each."""
        if components < 1 or choices < 2:
            raise ConfigError(f"env.kwargs components={components}, choices={choices} must be at least 1 and 2")
        spec = numpy_spec(
            observation_size=components * choices,
            action=ActionSpec("multi_discrete", (choices,) * components),
            reward_threshold=0.95 * max_episode_steps,
            max_episode_steps=max_episode_steps,
        )
        super().__init__(num_envs, spec)
        self._choices = choices
        self._one_hot = np.eye(choices, dtype=np.float32)
        self._symbols = np.zeros((num_envs, components), np.int64)

    def _begin(self, rows: np.ndarray) -> None:
        self._symbols[rows] = self._generator.integers(0, self._choices, (rows.size, self._symbols.shape[1]))

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        matches = (action == self._symbols).mean(axis=1, dtype=np.float32)
        self._begin(np.arange(self.num_envs))
        return matches, matches == 0

    def _observe(self) -> np.ndarray:
        return self._one_hot[self._symbols].reshape(self.num_envs, -1)


class RememberCue(NumpyEnv):
    """`lockstep/RememberCue-v0`: remember a symbol until it is asked for (discrete).

    The first observation shows one of `cues` symbols, one-hot. `delay` observations of zeros follow, then one whose
    last number is 1: the action there pays 1 if it is the symbol's number and 0 otherwise, and ends the episode. Other
    actions have no effect. Without memory the best policy returns 1 / cues.
    """

    arrays: ClassVar[tuple[str, ...]] = ("_cue",)

    def __init__(self, num_envs: int, *, cues: int = 4, delay: int = 8, max_episode_steps: int | None = None) -> None:
        """`cues` symbols, `delay` steps between symbol and question; a lower limit ends before the question."""
        if cues < 2 or delay < 0:
            raise ConfigError(f"env.kwargs cues={cues}, delay={delay} must be at least 2 and 0")
        spec = numpy_spec(
            observation_size=cues + 1,
            action=ActionSpec("discrete", (cues,)),
            reward_threshold=0.95,
            max_episode_steps=delay + 2 if max_episode_steps is None else max_episode_steps,
        )
        super().__init__(num_envs, spec)
        self._delay = delay
        self._one_hot = np.eye(cues, dtype=np.float32)
        self._cue = np.zeros(num_envs, np.int64)

    def _begin(self, rows: np.ndarray) -> None:
        self._cue[rows] = self._generator.integers(0, len(self._one_hot), rows.size)

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        asked = self._steps == self._delay + 1
        return (asked & (action == self._cue)).astype(np.float32), asked

    def _observe(self) -> np.ndarray:
        observation = np.zeros((self.num_envs, len(self._one_hot) + 1), np.float32)
        first = self._steps == 0
        observation[first, :-1] = self._one_hot[self._cue[first]]
        observation[self._steps == self._delay + 1, -1] = 1.0
        return observation
