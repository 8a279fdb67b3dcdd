"""PettingZoo's parallel environments, whose agents share one policy: each agent is a row of the batch."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, cast

import numpy as np

from lockstep.config.env import EnvConfig
from lockstep.envs.adapters import close_or_warn, config_errors, text_reward_error
from lockstep.envs.drawing import frames_per_second
from lockstep.envs.errors import describe_error, name_in_shard
from lockstep.envs.groups import refuse_groups
from lockstep.envs.load import near
from lockstep.envs.package_folders import package_folders
from lockstep.envs.spaces import (
    Convert,
    action_spec,
    flat_space,
    flatten_observation,
    image_parts,
    image_shape,
    restore_action,
)
from lockstep.envs.spec import EnvSpec, threshold_of
from lockstep.envs.state import has_state_methods
from lockstep.envs.vector import Step, VectorEnv, refuse_unknown_kwargs
from lockstep.errors import ConfigError, RunError

PACKAGES = {"pettingzoo": "pip install 'lockstep-rl[pettingzoo]'", "mpe2": "pip install mpe2"}
"""Install command by package; a task is `PACKAGE/MODULE`, with `/` for the dots of the module."""
_NEEDS = {"butterfly": ("pygame", "pymunk"), "sisl": ("pygame", "scipy", "Box2D"), "atari": ("multi_agent_ale_py",)}
"""Packages that PettingZoo's tasks import, by folder."""
_RETURNED = {
    "reset": ("observations", "infos"),
    "step": ("observations", "rewards", "terminations", "truncations", "infos"),
}


def is_task(task: str) -> bool:
    """Whether `task` names a module of a package of parallel environments."""
    return ":" not in task and task.partition("/")[0] in PACKAGES and "/" in task


def task_ids(package: str) -> list[str]:
    """The tasks of an installed package whose own packages are installed too; imports none of them."""
    ids: list[str] = []
    for folder in package_folders(package):
        for file in sorted([*folder.glob("*_v[0-9]*.py"), *folder.glob("*/*_v[0-9]*.py")]):
            names = file.relative_to(folder).with_suffix("").parts
            needed = _NEEDS.get(names[0], ()) if len(names) > 1 else ()
            if "parallel_env" in file.read_text(encoding="utf-8") and all(map(find_spec, needed)):
                ids.append("/".join((package, *names)))
    return ids


def make(task: str, config: EnvConfig, num_envs: int, *, render: bool) -> VectorEnv:
    """The environments of `PACKAGE/MODULE`, with at least `num_envs` agents."""
    package = task.partition("/")[0]
    if find_spec(package) is None:
        raise ConfigError(f"task={task} needs the Python package {package}: {PACKAGES[package]}")
    module = task.replace("/", ".")
    with config_errors(task):
        try:
            creator = importlib.import_module(module).parallel_env
        except (ModuleNotFoundError, AttributeError) as error:
            if isinstance(error, ModuleNotFoundError) and not module.startswith(error.name or module):
                raise
            reason = "has no parallel_env, in which all agents act at once"
            if isinstance(error, ModuleNotFoundError):
                reason = f"is unknown{near(task, task_ids(package))}"
            raise ConfigError(f"task={task} {reason}; `lockstep tasks {package}` lists those that can run") from error
    return adapt(creator, task, config, num_envs, render=render)


def is_parallel_env(cls: type) -> bool:
    """Whether a class derives from `pettingzoo.ParallelEnv`, which is not imported."""
    return any(base.__name__ == "ParallelEnv" and base.__module__.startswith("pettingzoo.") for base in cls.__mro__)


def adapt(creator: Callable[..., Any], task: str, config: EnvConfig, num_envs: int, *, render: bool) -> "ParallelEnvs":
    """The environments that `creator` makes, with at least `num_envs` agents."""
    refuse_groups(config, "tasks of PettingZoo are not divided into groups")
    for name, value in (("wrappers", list(config.wrappers)), ("vectorization", config.vectorization)):
        if value not in ([], "auto", "sync"):
            raise ConfigError(
                f"env.{name}={value} is for environments of Gymnasium; {task} is one of PettingZoo: remove it"
            )
    with config_errors(task):
        refuse_unknown_kwargs(creator, config, task, settings=False)
        kwargs = dict(config.kwargs) | ({"render_mode": "rgb_array"} if render else {})
        first = creator(**kwargs)
        count = -(-num_envs // max(len(first.possible_agents), 1))
        return ParallelEnvs([first, *(creator(**kwargs) for _ in range(count - 1))], task, config.max_episode_steps)


class ParallelEnvs:
    """The parallel environments of a shard; row `e * num_agents + i` is agent `i` of environment `e`.

    An agent whose episode ends before those of the others waits until all have ended: its row then observes zeros,
    receives no reward and takes no part in learning. The environment is reset in the step that ends its last agents.

    Args:
        envs: at least one.
        task: their name, for messages.
        limit: steps of an episode, after which all agents are truncated.

    Attributes:
        observation_space: of an agent.
    """

    def __init__(self, envs: Sequence[Any], task: str, limit: int | None) -> None:
        self._envs = envs
        self._task = task
        self._limit = limit
        self._agents: list[Any] = list(envs[0].possible_agents)
        space, action = self._shared_space("observation_space"), self._shared_space("action_space")
        self.observation_space = space
        flat = flat_space(space, task)
        self.spec = EnvSpec(
            observation_size=int(np.prod(flat.shape)),
            image=image_shape(space),
            image_parts=image_parts(space),
            action=action_spec(action, task),
            autoreset="same_step",
            separately_seedable=True,
            reward_threshold=threshold_of(envs[0], task),
            max_episode_steps=limit,
            num_agents=len(self._agents),
        )
        self.num_envs = len(envs) * len(self._agents)
        self.savable = all(has_state_methods(env.unwrapped) for env in envs)
        self._flatten: Convert = flatten_observation(space)
        self._restore_action = restore_action(action, self.spec.action)
        self._seeds, self._episodes = np.zeros((2, len(envs)), np.int64)
        self._observation = np.zeros((self.num_envs, *flat.shape), self.spec.observation_dtype)
        self._acting = np.zeros(self.num_envs, bool)
        self._ended = np.zeros(self.num_envs, bool)  # in this episode; some environments go on naming such agents
        self._waiting = np.zeros(self.num_envs, bool)
        self._steps = np.zeros(len(envs), np.int64)

    def reset(self, seeds: Sequence[int]) -> np.ndarray:
        """Start new episodes everywhere; the seed of an environment is that of its first agent's row."""
        self._waiting[:] = False
        for e in range(len(self._envs)):
            self._seeds[e], self._episodes[e] = seeds[e * len(self._agents)], 0
            self._begin(e)
        return self._observation.copy()

    def step(self, action: np.ndarray) -> Step:
        """Step every environment once."""
        reward = np.zeros(self.num_envs, np.float32)
        terminated, truncated = np.zeros((2, self.num_envs), bool)
        self._waiting = ~self._acting
        for e, env in enumerate(self._envs):
            rows = self._rows(e)
            chosen = {self._agents[i]: self._action(action[row]) for i, row in enumerate(rows) if self._acting[row]}
            observed, rewards, ended, cut, _ = self._call("step", env, e, chosen)
            self._steps[e] += 1
            at_limit = self._limit is not None and self._steps[e] >= self._limit
            for i, row in enumerate(rows):
                agent = self._agents[i]
                if self._acting[row]:
                    missing = [agent not in part for part in (observed, rewards, ended, cut)]
                    if any(missing):
                        raise RunError(f"{name_in_shard(e)}: step returned nothing for agent {agent}, which acted")
                    if isinstance(rewards[agent], (str, bytes)):
                        raise text_reward_error(f"{name_in_shard(e)} (agent {agent})", rewards[agent])
                    with np.errstate(over="ignore"):  # one beyond float32 becomes infinite, which the rollout refuses
                        reward[row] = rewards[agent]
                    terminated[row] = ended[agent]
                    truncated[row] = cut[agent] or (at_limit and not ended[agent])
                if agent in observed and not self._ended[row]:
                    self._observation[row] = self._flat(e, agent, observed)
            over = terminated[rows] | truncated[rows]
            self._ended[rows] |= over
            present = np.array([agent in env.agents for agent in self._agents]) & ~self._ended[rows]
            if (self._acting[rows] & ~over & ~present).any():
                raise RunError(f"{name_in_shard(e)}: an agent left without being terminated or truncated")
            self._acting[rows] = present & (not at_limit)
        final = self._observation.copy()
        self._observation[~self._acting] = 0
        for e in range(len(self._envs)):
            if not self._acting[self._rows(e)].any():
                self._begin(e)
        return self._observation.copy(), reward, terminated, truncated, final

    def waiting(self) -> np.ndarray:
        """Rows that took no part in the last step: their agent's episode had ended before, or not begun."""
        return self._waiting

    @property
    def frames_per_second(self) -> float:
        """Of a video."""
        return frames_per_second(self._envs[0])

    def render(self) -> Any:
        """The frames of all environments, if made with `render=True`."""
        return [env.render() for env in self._envs]

    def state(self) -> dict[str, Any]:
        """See `SavableEnv`."""
        return {
            "environments": [env.unwrapped.state() for env in self._envs],
            "acting": self._acting,
            "ended": self._ended,
            "steps": self._steps,
            "seeds": self._seeds,
            "episodes": self._episodes,
            "observation": self._observation,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """See `SavableEnv`."""
        for env, saved in zip(self._envs, state["environments"], strict=True):
            env.unwrapped.restore(saved)
        self._acting[:], self._steps[:] = state["acting"], state["steps"]
        self._seeds[:], self._episodes[:] = state["seeds"], state["episodes"]
        self._observation[:] = state["observation"]
        self._ended[:] = state.get("ended", False)

    def close(self) -> None:
        """Close every environment."""
        for e, env in enumerate(self._envs):
            close_or_warn(env, name_in_shard(e))

    def _rows(self, e: int) -> np.ndarray:
        """The rows of the agents of environment `e`."""
        size = len(self._agents)
        return np.arange(e * size, (e + 1) * size)

    def _begin(self, e: int) -> None:
        """Start the next episode in environment `e`.

        Each episode has a seed, because environments may draw one from the system where `reset` is given none.
        """
        env = self._envs[e]
        seed = int(self._seeds[e])
        if self._episodes[e] > 0:
            seed = int(np.random.Philox(key=[seed, int(self._episodes[e])]).random_raw()) >> 33
        self._episodes[e] += 1
        observed, _ = self._call("reset", env, e, seed)
        self._steps[e] = 0
        self._ended[self._rows(e)] = False
        for agent, row in zip(self._agents, self._rows(e), strict=True):
            self._acting[row] = agent in env.agents
            self._observation[row] = self._flat(e, agent, observed) if self._acting[row] else 0
        if not self._acting[self._rows(e)].any():
            raise RunError(f"{name_in_shard(e)}: reset left no agents")

    def _call(self, method: str, env: Any, e: int, argument: Any) -> Sequence[Any]:
        """Call `reset` or `step`. Raises a `RunError` that names the environment."""
        try:
            found = env.reset(seed=argument) if method == "reset" else env.step(argument)
        except Exception as error:
            raise RunError(f"{name_in_shard(e)} failed in {method}: {describe_error(error)}") from error
        parts = _RETURNED[method]
        values = cast("Sequence[Any]", found) if isinstance(found, tuple | list) else None
        if values is None or len(values) != len(parts):
            what = f"a {type(cast('object', found)).__name__}" if values is None else f"{len(values)} values"
            raise RunError(
                f"{name_in_shard(e)}: {method} returned {what}; return {len(parts)} dicts by agent: {', '.join(parts)}"
            )
        return values

    def _flat(self, e: int, agent: Any, observed: Mapping[Any, Any]) -> np.ndarray:
        """An agent's observation. Raises a `RunError` if there is none, or if it is not of the space's shape."""
        if agent not in observed:
            raise RunError(f"{name_in_shard(e)}: there is no observation of agent {agent}, which is one of its agents")
        flat, shape = self._flatten(observed[agent]), self._observation.shape[1:]
        if flat.shape != shape:  # numpy would broadcast a single number silently
            raise RunError(
                f"{name_in_shard(e)}: the observation of agent {agent} has the shape {list(flat.shape)} when flat, "
                f"that of its space {list(shape)}"
            )
        return flat

    def _action(self, action: np.ndarray) -> Any:
        return action if self._restore_action is None else self._restore_action(action)

    def _shared_space(self, method: str) -> Any:
        """The observation or action space of all agents. Raises `ConfigError` if theirs differ."""
        if not callable(getattr(self._envs[0], method)):
            raise ConfigError(f"task={self._task}: {method} is no method; write def {method}(self, agent)")
        spaces: Mapping[Any, Any] = {agent: getattr(self._envs[0], method)(agent) for agent in self._agents}
        if not spaces:
            raise ConfigError(f"task={self._task} has no agents (possible_agents is empty)")
        first = self._agents[0]
        for agent, space in spaces.items():
            if space != spaces[first]:
                raise ConfigError(
                    f"task={self._task} cannot be learned by one policy for all agents: the {method} of {first} is "
                    f"{spaces[first]}, that of {agent} {space}; make them "
                    "equal in a class of your own (module:Class, derived from pettingzoo.ParallelEnv)"
                )
        return spaces[first]
