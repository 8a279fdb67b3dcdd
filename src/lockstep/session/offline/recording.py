"""Log the decisions of a policy in environments; actions at random need no framework.

Shapes: B environments, O observation, A actions, D dimensions of a continuous action.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from lockstep.config.env import EnvConfig
from lockstep.data.logs.writer import LogWriter
from lockstep.envs.make import make_vector_env
from lockstep.envs.spec import EnvSpec
from lockstep.envs.vector import VectorEnv
from lockstep.errors import ConfigError, RunError
from lockstep.experience.evaluate import MAX_STEPS
from lockstep.world import block, stream, stream_seed

_MOST_ENVS = 8
Choice = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray | None]]
"""Observations [B, O] and uniform numbers [B, 1 or D] to actions [B] or [B, D], and how likely each is [B].

That is the probability of a named action, and the log-density of a continuous one; None if it has none, or it is
unknown. For a number at a bound to which it was clipped, the density is the probability of being clipped there.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The policy to record, and the number of its decisions."""

    source: str
    """A run directory, a checkpoint, a policy file, or a task, in which actions are then uniformly random."""
    out: Path
    """The log file; its name determines the format."""
    episodes: int | None = None
    """The number of episodes; or `steps`."""
    steps: int | None = None
    """The number of rows; episodes that are running at the end are truncated."""
    how: Literal["greedy", "sampled"] = "greedy"
    """The action of a run's policy: the best one, or one sampled from its distribution."""
    epsilon: float = 0.0
    """The probability of a uniformly random action instead."""
    seed: int = 0
    env: EnvConfig = field(default_factory=EnvConfig)
    """The settings of a task; a run has its own."""


@dataclass(frozen=True, slots=True)
class Names:
    """How a log names observations and actions."""

    states: list[str]
    """Feature ids of an observation."""
    actions: list[Any] | None
    """The name or the features of each action; None for continuous actions."""
    dimensions: list[str]
    """Feature ids of a continuous action."""

    def action(self, action: np.ndarray) -> Any:
        """One action as it is logged."""
        if self.actions is not None:
            return self.actions[int(action)]
        return dict(zip(self.dimensions, map(float, action), strict=True))


@dataclass(slots=True)
class _Trajectory:
    name: str
    length: int = 0
    total: float = 0.0


def record_at_random(recording: Recording) -> dict[str, Any]:
    """`record` a task with uniformly random actions."""
    if recording.how != "greedy" or recording.epsilon:
        raise ConfigError(
            f"{recording.source} is a task, not a run directory, and is played at random; leave --sampled and "
            "--epsilon out, or name a run"
        )
    return record(recording, recording.source, recording.env, lambda spec: (_uniform(spec), names_of(spec)))


def record(
    recording: Recording, task: str, config: EnvConfig, make_choice: Callable[[EnvSpec], tuple[Choice, Names]]
) -> dict[str, Any]:
    """Write the log. Returns `task`, `rows`, `episodes`, and of complete episodes `return_mean` (None: none).

    Args:
        recording: what to write.
        task: the task to play, with the settings `config`.
        config: of its environments.
        make_choice: returns the policy and the names for the spec of the task.

    Raises:
        ConfigError: the task or its actions cannot be logged.
        RunError: the environment gave a number that is not finite, or an episode does not end.
    """
    wanted = recording.steps or recording.episodes or 0
    num_envs = min(wanted, _MOST_ENVS)
    env = make_vector_env(task, config, num_envs, training=False)
    try:
        _check(env.spec, task)
        choice, names = make_choice(env.spec)
        with LogWriter(recording.out) as log:
            recorder = _Recorder(env, choice, names, recording)
            recorder.play(log)
    finally:
        env.close()
    returns = recorder.returns
    return {
        "task": task,
        "rows": log.num_rows,
        "episodes": len(returns),
        "return_mean": float(np.mean(returns)) if returns else None,
    }


class _Recorder:
    """Steps B environments, each for a fixed number of episodes or rows: short episodes are not overrepresented."""

    def __init__(self, env: VectorEnv, choice: Choice, names: Names, recording: Recording) -> None:
        self._env, self._choice, self._names, self._seed = env, choice, names, recording.seed
        size, spec = env.num_envs, env.spec
        wanted = recording.steps or recording.episodes or 0
        self._by_steps = recording.steps is not None
        self._left = [len(block(wanted, size, i)) for i in range(size)]
        self._noise = [stream(recording.seed, "record", i) for i in range(size)]
        self._width = spec.action.sizes[0] if spec.action.kind == "continuous" else 1
        self._count = [0] * size
        self._current = [self._new_trajectory(i) for i in range(size)]
        self.returns: list[float] = []
        """The returns of complete episodes."""

    def play(self, log: LogWriter) -> None:
        """Run the environments until the recording is complete, and write every step to the log."""
        env, next_step = self._env, self._env.spec.autoreset == "next_step"
        size = env.num_envs
        observation = env.reset([stream_seed(self._seed, "record", i) for i in range(size)]).copy()
        ended = np.zeros(size, np.bool_)  # the next step of a next-step environment only resets it
        while any(self._left):
            noise = np.stack([generator.random(self._width) for generator in self._noise])
            action, likelihood = self._choice(observation, noise)
            after, reward, terminated, truncated, final = env.step(action.copy())  # an environment may change it
            true_next = after if final is None else np.where((terminated | truncated)[:, None], final, after)
            seen = [i for i in range(size) if self._left[i] and not ended[i]]
            self._check_finite(seen, observation, true_next, reward)
            log.write(
                [
                    self._row(
                        i,
                        (observation[i], action[i], float(reward[i]), true_next[i]),
                        None if likelihood is None else float(likelihood[i]),
                        terminated=bool(terminated[i]),
                        truncated=bool(truncated[i]),
                    )
                    for i in seen
                ]
            )
            ended = (terminated | truncated) if next_step else ended
            observation = after.copy()

    def _new_trajectory(self, i: int) -> _Trajectory:
        self._count[i] += 1
        return _Trajectory(f"{self._seed}-{i}-{self._count[i] - 1}")

    def _row(
        self,
        i: int,
        step: tuple[np.ndarray, np.ndarray, float, np.ndarray],
        likelihood: float | None,
        *,
        terminated: bool,
        truncated: bool,
    ) -> dict[str, Any]:
        observation, action, reward, after = step
        trajectory = self._current[i]
        names = self._names
        row: dict[str, Any] = {
            "mdp_id": trajectory.name,
            "sequence_number": trajectory.length,
            "state_features": dict(zip(names.states, map(float, observation), strict=True)),
            "action": names.action(action),
            "reward": reward,
            "log_probability" if names.actions is None else "propensity": likelihood,
        }
        if names.actions is not None:
            row["possible_actions"] = names.actions
        trajectory.length += 1
        trajectory.total += reward
        ended = terminated or truncated
        self._left[i] -= 1 if self._by_steps or ended else 0
        row |= {"terminated": terminated, "truncated": (truncated and not terminated) or not (ended or self._left[i])}
        if terminated and names.actions is not None:
            row["possible_next_actions"] = []
        if row["truncated"]:  # no later row holds the state to bootstrap from
            row["next_state_features"] = dict(zip(names.states, map(float, after), strict=True))
        if ended:
            self.returns.append(trajectory.total)
            self._current[i] = self._new_trajectory(i)
        elif trajectory.length > (self._env.spec.max_episode_steps or MAX_STEPS) + 1:
            raise RunError(f"an episode has not ended after {trajectory.length} steps; record --steps, not --episodes")
        return row

    def _check_finite(self, seen: list[int], *values: np.ndarray) -> None:
        for i in seen:
            if not all(np.isfinite(value[i]).all() for value in values):
                raise RunError(
                    f"environment {i} gave a number that is not finite, in trajectory {self._current[i].name}"
                )


def _check(spec: EnvSpec, task: str) -> None:
    if spec.num_agents > 1:
        raise ConfigError(
            f"task={task} has {spec.num_agents} agents, and a log holds the decisions of one; use another task"
        )
    if spec.image is not None:
        raise ConfigError(f"task={task} observes images, and a log holds features; use a task with numbers")
    if spec.action.kind == "multi_discrete":
        raise ConfigError(f"task={task} takes several choices at once, and a log names one; use another task")


def names_of(spec: EnvSpec) -> Names:
    """Indices as names."""
    size, action = spec.observation_size, spec.action
    actions = None if action.kind == "continuous" else [str(a) for a in range(action.sizes[0])]
    return Names([str(k) for k in range(size)], actions, [str(size + d) for d in range(action.width)])


def _uniform(spec: EnvSpec) -> Choice:
    """Uniformly random actions, within the bounds if they are continuous."""
    action = spec.action
    if action.kind == "discrete":
        uniform = np.full((1, action.sizes[0]), 1 / action.sizes[0])
        return lambda observation, noise: draw(np.repeat(uniform, len(observation), 0), noise)
    low, high = np.array(action.low), np.array(action.high)
    if not np.isfinite([low, high]).all():
        raise ConfigError("the task's actions have no bounds to draw from; record a run of it")
    log_density = -np.log(high - low, where=high > low, out=np.zeros_like(low)).sum()  # one value has no density
    return lambda observation, noise: (
        (low + (high - low) * noise).astype(np.float32),
        np.full(len(observation), log_density),
    )


def draw(probability: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Actions [B] drawn from p [B, A] by uniform numbers [B, 1], and the probability of each [B]."""
    cumulative = np.cumsum(probability, -1)
    cumulative[:, -1] = np.inf  # rounded sums may be less than 1
    row, action = np.arange(len(cumulative)), np.asarray((noise < cumulative).argmax(-1))
    # Rounding may select a last action of probability 0.
    action = np.where(probability[row, action] > 0, action, probability.argmax(-1))
    return action, probability[row, action]
