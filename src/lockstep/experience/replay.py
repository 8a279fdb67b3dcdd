"""The replay buffer of one shard (Lin, 1992; Mnih et al., 2015).

Every environment has a ring buffer. A row is an observation, and the action that followed with its reward; the next row
has the next observation. Of stacked images each frame is stored once, and stacked when sampled. All operations are
vectorized over environments or sampled rows.

Shapes: B environments of the shard, R rows of a ring, N sampled transitions, n steps of a return, `*O` observation.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.envs.spec import EnvSpec
from lockstep.errors import ConfigError
from lockstep.experience.frames import Frames, MakeRows, ring_rows
from lockstep.experience.rollout import Rollout
from lockstep.experience.sum_tree import SumTree

# What followed the observation of a row. NOTHING: no action yet, or the row is a final observation.
_NOTHING, _GOES_ON, _TERMINATED, _TRUNCATED = range(4)
_SPARSE = 8  # with fewer than one valid row in this many, valid rows are listed instead of rejection sampling


@dataclass(frozen=True, slots=True)
class Transitions:
    """Sampled transitions, as new arrays; observations where the buffer stores them."""

    observation: Any
    """[N, *O], uint8 or float32: an array, or a tensor on the device; in JAX the indices of the rows on the device."""
    action: np.ndarray
    """[N] or [N, D], as drawn."""
    return_: np.ndarray
    """[N] float32, r_0 + gamma r_1 + ... over the steps that were taken: n, or fewer where the episode ended."""
    next_observation: Any
    """[N, *O], after these steps; of a truncated episode the true final one. Without meaning where `discount` is 0."""
    discount: np.ndarray
    """[N] float32, factor of value(next_observation) in the target: gamma^k after k steps, 0 after a termination."""
    probability: np.ndarray
    """[N] float64, with which each was drawn among the transitions of this shard."""
    index: np.ndarray
    """[N] int64, row numbers, for `update_priorities`; valid until the next step is added."""


class Replay:
    """One shard's transitions.

    The target of a sampled transition is `return_ + discount * value(next_observation)`. An episode that is cut short
    (`begin`) counts as truncated where it stopped.

    With `prioritized`, transition i is drawn with p_i / sum p, p = (|TD error| + eps)^alpha (Schaul et al., 2016,
    equation 1), one from each of N equal parts of the sum; what was never drawn has the largest p so far. Otherwise
    transitions are drawn uniformly, with replacement.

    Args:
        spec: of the environments.
        num_envs: of this shard.
        capacity: transitions of this shard, rounded up to a multiple of `num_envs`. Final observations take rows too.
        n_step: rewards summed before `next_observation`.
        gamma: discount per step.
        prioritized: draw by TD error.
        priority_exponent: alpha; 0 draws uniformly.
        priority_eps: eps.
        path: of a file for the observations, mapped into memory; random letters follow its name. Its space is reserved,
            and freed when the process ends; it is removed from the directory at once.
        make_rows: makes the storage of the observations elsewhere, as on a device.

    Raises:
        ConfigError: a number is out of its range, the file cannot be made, or its disk is too full.
    """

    def __init__(  # noqa: PLR0913  # everything a replay needs, once, by keyword
        self,
        spec: EnvSpec,
        num_envs: int,
        capacity: int,
        *,
        n_step: int,
        gamma: float,
        prioritized: bool,
        priority_exponent: float = 0.6,
        priority_eps: float = 1e-6,
        path: Path | None = None,
        make_rows: MakeRows | None = None,
    ) -> None:
        _check_numbers(capacity, n_step, gamma)
        self._n, self._same_step = n_step, spec.autoreset == "same_step"
        self._spec = spec
        self._frames = Frames(spec, num_envs, ring_rows(spec, num_envs, capacity, n_step), path, make_rows)
        total = num_envs * self._frames.num_rows
        width = () if spec.action.kind == "discrete" else (spec.action.width,)
        self._action = np.full((total, *width), 0, np.float32 if spec.action.kind == "continuous" else np.int64)
        self._reward = np.full(total, 0, np.float32)
        self._followed = np.full(total, _NOTHING, np.uint8)
        """Of each row: what followed."""
        self._valid = np.full(total, 0, np.bool_)
        """Of each row: whether it can be sampled, as all of its stack and of its n steps is here."""
        self._open = np.zeros(num_envs, np.int64)
        """How many of the last transitions still wait for n steps, or for the end of the episode."""
        self._resets_next = np.zeros(num_envs, np.bool_)
        """Whether the newest row ended an episode, so that the next step only resets (`next_step` environments)."""
        self._restarted = False
        """Whether the environments have begun new episodes since the newest row."""
        self._tree = SumTree(total) if prioritized else None
        self._largest, self._exponent, self._eps = 1.0, priority_exponent, priority_eps
        self._discounts = gamma ** np.arange(n_step + 1, dtype=np.float64)
        self.size = 0
        """Transitions that can be sampled."""

    def ready(self, rows: int) -> bool:
        """Whether there are at least so many transitions; local."""
        return self.size >= max(rows, 1)

    def begin(self, observation: np.ndarray) -> None:
        """Start new episodes everywhere, with first observations [B, *O]; episodes in progress count as truncated."""
        frames = self._frames
        _check_shapes({"observation": (observation, (len(frames.env), *self._spec.observation_shape))})
        last = frames.index(frames.env, 1)
        self._followed[last[self._followed[last] == _GOES_ON]] = _TRUNCATED
        changed = self._complete(self._open, 1)
        self._open[:] = 0
        self._resets_next[:] = False
        self._restarted = False
        self._settle([*changed, self._append(frames.env, observation, first=True)])

    def add(
        self,
        action: np.ndarray,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        observation: np.ndarray,
        final: np.ndarray | None,
    ) -> None:
        """Add one step of all environments: the actions [B] or [B, D], and the result of `VectorEnv.step`."""
        self._check_step(action, (reward, terminated, truncated), observation, final)
        last = None
        if self._same_step and (rows := np.flatnonzero(truncated & ~terminated)).size:
            if final is None:
                raise ValueError("an episode was truncated, and its final observation is not given")
            last = rows, final[rows]
        self._add(action, reward, (terminated, truncated), observation, last)

    def _check_step(self, action: Any, numbers: tuple[Any, Any, Any], observation: Any, final: Any) -> None:
        """Raise `ConfigError` for arrays that numpy would broadcast, or cast, to fit all environments."""
        spec, envs = self._spec.action, (len(self._frames.env),)
        rows = (*envs, *self._spec.observation_shape)
        _check_shapes(
            {
                "action": (action, envs if spec.kind == "discrete" else (*envs, spec.width)),
                **{name: (one, envs) for name, one in zip(("reward", "terminated", "truncated"), numbers, strict=True)},
                "observation": (observation, rows),
                "final": (observation if final is None else final, rows),
            }
        )
        if spec.kind == "continuous":
            return
        choices = np.asarray(action)
        if choices.dtype.kind not in "iu":
            raise ConfigError(
                f"action has {choices.dtype} numbers, but choices are whole; give action.astype(np.int64)"
            )
        if (choices < 0).any() or (choices >= np.array(spec.sizes)).any():
            most = np.array(spec.sizes) - 1
            raise ConfigError(
                f"action={choices.tolist()} has a choice outside 0 to {', '.join(map(str, most.tolist()))}; give the "
                "policy's choices, which are counted from 0"
            )

    def extend(self, rollout: Rollout) -> None:
        """Add the T steps of a rollout. One that does not begin where the last one ended begins new episodes."""
        resets_first = rollout.weight[0] == 0
        continues = not self._restarted and self._frames.newest_is(rollout.observation[0])
        if not continues or (resets_first != self._resets_next).any():
            self.begin(rollout.observation[0])
            self._resets_next[:] = resets_first
        finals = {t: (env, last) for t, env, last in rollout.final}
        for t, observation in enumerate(rollout.observation[1:]):
            ends = rollout.terminated[t], rollout.ended[t]
            self._add(rollout.action[t], rollout.reward[t], ends, observation, finals.get(t))

    def leave_out(self, rollout: Rollout) -> None:
        """Add nothing of a rollout: what follows it does not continue what came before, even if observations agree."""
        self.begin(rollout.observation[-1])
        if not self._same_step:
            self._resets_next[:] = rollout.ended[-1]

    def begin_anew(self) -> None:
        """The environments have begun new episodes: the next rollout does not continue the last one."""
        self._restarted = True

    def sample(self, rows: int, generator: np.random.Generator) -> Transitions:
        """Draw `rows` transitions (N). Raises `ValueError` while there are none."""
        if not self.size:
            raise ValueError("the replay holds no transition that is complete")
        if self._tree is None:
            index, probability = self._uniform(rows, generator), np.full(rows, 1.0 / self.size)
        else:
            total = self._tree.total
            index = self._tree.find((np.arange(rows) + generator.random(rows)) * (total / rows))
            probability = self._tree.values(index) / total
        steps = self._frames.after(index[:, None], np.arange(self._n))
        followed = self._followed[steps]
        taken = np.ones((rows, self._n), np.bool_)
        np.logical_and.accumulate(followed[:, :-1] == _GOES_ON, axis=1, out=taken[:, 1:])
        length = taken.sum(1)
        not_terminated = followed[np.arange(rows), length - 1] != _TERMINATED
        observation, following = self._frames.observation(np.stack([index, self._frames.after(index, length)]))
        return Transitions(
            observation,
            self._action[index],
            (np.where(taken, self._reward[steps], 0.0) * self._discounts[:-1]).sum(1).astype(np.float32),
            following,
            (self._discounts[length] * not_terminated).astype(np.float32),
            probability,
            index,
        )

    def update_priorities(self, index: np.ndarray, td_error: np.ndarray) -> None:
        """Set priorities from the TD errors [N] of transitions sampled since the last step.

        Errors that are not finite are ignored: handling them is the algorithm's task.
        """
        if self._tree is None:
            return
        error = np.abs(np.asarray(td_error, np.float64))
        known = np.isfinite(error) & self._valid[index]
        priority = (error[known] + self._eps) ** self._exponent
        self._largest = max(self._largest, float(priority.max(initial=0.0)))
        self._tree.set(index[known], priority)

    def state(self) -> dict[str, Any]:
        """State for a checkpoint, the same wherever the observations are stored.

        Arrays are not copied, except for observations on a device: copy them before the next step.
        """
        state = {"observation": self._frames.to_numpy()} | self._arrays()
        if self._tree is None:
            return state
        priority = self._tree.values(np.arange(self._tree.capacity))
        return state | {"priority": priority, "largest": self._largest}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a `state`. Raises `ConfigError` if its shapes differ."""
        arrays, same = self._arrays(), ("priority" in state) == (self._tree is not None)
        same = same and self._frames.fits(state["observation"])
        if not same or any((state[name].shape, state[name].dtype) != (a.shape, a.dtype) for name, a in arrays.items()):
            raise ConfigError(
                "the checkpoint holds a replay of another shape; resume with the num_envs, algorithm.capacity, "
                "algorithm.n_step and algorithm.prioritized that it was made with"
            )
        for name, array in arrays.items():
            np.copyto(array, state[name])
        self._frames.load(state["observation"])
        if self._tree is not None:
            self._largest = float(state["largest"])
            self._tree.set(np.arange(self._tree.capacity), state["priority"])
        self.size = int(np.count_nonzero(self._valid))

    def close(self) -> None:
        """Free the observations, and their file if there is one. Nothing can be sampled any more."""
        self.size = 0
        self._frames.close()

    def _arrays(self) -> dict[str, np.ndarray]:
        """The state beside observations and priorities."""
        frames = self._frames
        return {
            "age": frames.age,
            "written": frames.written,
            "action": self._action,
            "reward": self._reward,
            "kind": self._followed,
            "valid": self._valid,
            "open": self._open,
            "over": self._resets_next,
        }

    def _add(
        self,
        action: np.ndarray,
        reward: np.ndarray,
        ends: tuple[np.ndarray, np.ndarray],
        observation: np.ndarray,
        final: tuple[np.ndarray, np.ndarray] | None,
    ) -> None:
        """One step: what followed the newest rows, then the rows after them.

        `ends` is whether terminated, and whether ended for any reason; `final` some environments [F] and their
        observations [F, *O] before they reset.
        """
        frames, env = self._frames, self._frames.env
        if not frames.written[0]:
            raise ValueError("begin comes before the first step")
        newest = frames.index(env)
        followed = np.where(ends[0], _TERMINATED, np.where(ends[1], _TRUNCATED, _GOES_ON))
        followed[self._resets_next] = _NOTHING
        self._followed[newest], self._action[newest], self._reward[newest] = followed, action, reward
        self._open += followed != _NOTHING
        ended = followed >= _TERMINATED
        changed = self._complete(np.where(ended, self._open, 0), 0)
        full = ~ended & (self._open == self._n)
        changed.append(self._make_valid(env[full], self._n - 1))
        self._open[ended] = 0
        self._open -= full
        if final is not None:
            changed.append(self._append(*final, first=False))
        started, self._resets_next = (ended, self._resets_next) if self._same_step else (self._resets_next, ended)
        if started.any():
            changed.append(self._append(env[started], observation[started], first=True))
            env, observation = env[~started], observation[~started]
        self._settle([*changed, self._append(env, observation, first=False)])

    def _append(self, env: np.ndarray, observation: np.ndarray, *, first: bool) -> np.ndarray:
        """Write a row of environments [E]; returns the rows that can be sampled no more because of it."""
        lost = self._frames.append(env, observation, first=first)
        self._followed[lost] = _NOTHING
        lost = lost[self._valid[lost]]
        self._valid[lost] = False
        self.size -= len(lost)
        return lost

    def _complete(self, count: np.ndarray, back: int) -> list[np.ndarray]:
        """Let the last `count` [B] transitions of each environment be sampled; the last is `back` rows behind."""
        return [self._make_valid(self._frames.env[count > i], back + i) for i in range(int(count.max()))]

    def _make_valid(self, env: np.ndarray, back: int) -> np.ndarray:
        index = self._frames.index(env, back)
        self._valid[index] = True
        self.size += len(index)
        return index

    def _settle(self, changed: list[np.ndarray]) -> None:
        """Set the priority of rows that became valid to the largest so far, and of invalid rows to 0."""
        if self._tree is not None:
            index = np.concatenate(changed)
            self._tree.set(index, np.where(self._valid[index], self._largest, 0.0))

    def _uniform(self, rows: int, generator: np.random.Generator) -> np.ndarray:
        """Valid rows [N], each as likely as any other."""
        filled, num_rows = self._frames.filled, self._frames.num_rows
        span = filled * len(self._frames.env)
        if self.size * _SPARSE < span:
            return np.flatnonzero(self._valid)[generator.integers(self.size, size=rows)]
        found, missing = list[np.ndarray](), rows
        while missing > 0:  # rejection sampling: nearly all rows are valid
            drawn = generator.integers(span, size=missing * span // self.size + _SPARSE)
            drawn = drawn // filled * num_rows + drawn % filled
            found.append(drawn[self._valid[drawn]])
            missing -= len(found[-1])
        return np.concatenate(found)[:rows]


def _check_numbers(capacity: Any, n_step: Any, gamma: Any) -> None:
    """Raise `ConfigError` unless transitions can be kept, and their returns summed."""
    for name, value in (("capacity", capacity), ("n_step", n_step)):
        if not isinstance(value, int | np.integer) or value < 1:
            raise ConfigError(f"{name}={value!r} must be a whole number of at least 1")
    if not 0 <= gamma <= 1:
        raise ConfigError(f"gamma={gamma} must be from 0 to 1")


def _check_shapes(given: Mapping[str, tuple[Any, tuple[int, ...]]]) -> None:
    """Raise `ConfigError` unless each array has its shape."""
    for name, (array, shape) in given.items():
        if tuple(np.shape(array)) != shape:
            raise ConfigError(
                f"{name} has shape {list(np.shape(array))}; give {list(shape)}, one row for each environment"
            )
