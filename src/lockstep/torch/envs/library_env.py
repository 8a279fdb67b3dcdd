"""The environments of a rank as other training libraries see them.

`RecordedEnv` measures what a library collects. `HostTaskEnv` and `TensorTaskEnv` give tasks with a numpy interface and
those on torch tensors the interface of Isaac Lab's environments, for which these libraries have wrappers.
"""

import hashlib
import time
from collections.abc import Callable
from typing import Any, cast

import gymnasium
import numpy as np
import torch
from torch import Tensor

from lockstep.config.env import EnvConfig
from lockstep.envs.make import env_spec, make_vector_env
from lockstep.envs.spec import EnvSpec
from lockstep.envs.vector import CriticEnv, VectorEnv
from lockstep.errors import ConfigError
from lockstep.torch.envs.interface import Observation, TensorVectorEnv
from lockstep.torch.envs.make import make_tensor_env

_POLICY = "policy"  # the group of observations that libraries give the policy
_GROUPS = (_POLICY, "critic")
_COMPARED_STEPS = 8


class EpisodeSums:
    """Returns and lengths of the episodes that ended, as sums on the device."""

    def __init__(self, num_envs: int, device: torch.device) -> None:
        self._return = torch.zeros(num_envs, device=device)
        self._length = torch.zeros(num_envs, device=device)
        self._sums = torch.zeros(3, dtype=torch.float64, device=device)

    def add(self, reward: Tensor, ended: Tensor) -> None:
        """Add one step of all environments: rewards [B], and where an episode ended, bool [B].

        A reward that is not finite counts 0.
        """
        self._return += reward.nan_to_num(0.0, 0.0, 0.0)
        self._length += 1
        done = ended.to(self._return.dtype)
        self._sums += torch.stack([(self._return * done).sum(), (self._length * done).sum(), done.sum()]).double()
        self._return *= 1 - done
        self._length *= 1 - done

    def take(self) -> tuple[float, float, float]:
        """Sum of returns, sum of lengths and number of the episodes since the last call; waits for the device."""
        total_return, total_length, count = cast("list[float]", self._sums.tolist())
        self._sums.zero_()
        return total_return, total_length, count


class RecordedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Measures the steps of an environment with Isaac Lab's interface, and changes nothing.

    Args:
        env: the environment.
        num_envs: of this rank.
        on_first_steps: called once, with a fingerprint of the observations and actions of the first steps.
        on_step: called after each step.

    Attributes:
        steps: calls of `step` so far.
        episodes: sums over the episodes that ended.
        env_s: seconds of the environment's own steps. A GPU may still compute when a step returns.
    """

    def __init__(
        self, env: Any, num_envs: int, on_first_steps: Callable[[str], None], on_step: Callable[[], None]
    ) -> None:
        super().__init__(env)
        self.steps = 0
        self.env_s = 0.0
        self.episodes = EpisodeSums(num_envs, torch.device(env.unwrapped.device))
        self._digest = hashlib.blake2b(digest_size=16)
        self._on_first_steps, self._on_step = on_first_steps, on_step

    def step(self, action: Any) -> Any:
        """Step all environments."""
        started = time.perf_counter()
        observations, reward, terminated, truncated, extras = self.env.step(action)
        self.env_s += time.perf_counter() - started
        self.steps += 1
        with torch.no_grad():
            self.episodes.add(torch.as_tensor(reward), torch.as_tensor(terminated) | torch.as_tensor(truncated))
            if self.steps <= _COMPARED_STEPS:
                self._add_to_digest([action, observations])
        if self.steps == _COMPARED_STEPS:
            self._on_first_steps(self.first_steps())
        self._on_step()
        return observations, reward, terminated, truncated, extras

    def first_steps(self) -> str:
        """The fingerprint of the observations and actions of the first steps."""
        return self._digest.hexdigest()

    def _add_to_digest(self, tree: Any) -> None:
        """Add all tensors of a tree."""
        if isinstance(tree, dict):
            tree = [one for _, one in sorted(cast("dict[str, Any]", tree).items())]
        if isinstance(tree, list | tuple):
            for part in cast("list[Any]", tree):
                self._add_to_digest(part)
        elif isinstance(tree, Tensor):
            self._digest.update(tree.detach().cpu().contiguous().numpy().tobytes())


class _TaskEnv(gymnasium.Env[Any, Any]):
    """The attributes that libraries read from Isaac Lab's environments.

    Args:
        task: its name.
        env: its environments of this rank; closed if the task cannot be used.
        device: of the tensors.
        seed: of this rank; environments that are separately seedable get streams of it.
    """

    def __init__(self, task: str, env: VectorEnv | TensorVectorEnv, device: torch.device, seed: int) -> None:
        spec, num_envs = env.spec, env.num_envs
        if spec.autoreset == "next_step":
            env.close()
            raise ConfigError(
                f"task={task} resets in a step of its own, which other libraries would learn from; train it with "
                f"lockstep train {task}"
            )
        if spec.num_agents > 1:
            env.close()
            raise ConfigError(
                f"task={task} has several agents; those that ended wait for the others, which other libraries would "
                f"learn from; train it with lockstep train {task}"
            )
        self.vector_spec: EnvSpec = spec
        self.num_envs, self.device, self._seed = num_envs, device, seed
        self.max_episode_length = spec.max_episode_steps or 1_000_000
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.long, device=device)
        self.cfg = {"task": task, "num_envs": num_envs}
        self.single_observation_space, self.single_action_space = _spaces(spec)
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)
        self.obs_buf: dict[str, Tensor] = {}
        self._close = env.close

    def close(self) -> None:
        """Close the environments."""
        self._close()


class HostTaskEnv(_TaskEnv):
    """A Gymnasium or built-in task with the interface of Isaac Lab's environments; `num_envs` on this rank."""

    def __init__(self, task: str, num_envs: int, device: torch.device, seed: int) -> None:
        config = EnvConfig()
        if env_spec(task, config).autoreset == "next_step":  # libraries cannot leave out the steps that reset
            config = EnvConfig(vectorization="sync")
        self._env = make_vector_env(task, config, num_envs)
        super().__init__(task, self._env, device, seed)
        action = self.vector_spec.action
        self._bounds = (np.array(action.low), np.array(action.high)) if action.kind == "continuous" else None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start new episodes everywhere."""
        self.obs_buf = self._groups(self._env.reset(_seeds(self._seed, seed, self.num_envs)))
        self.episode_length_buf.zero_()
        return self.obs_buf, {}

    def step(self, action: Any) -> Any:
        """Step all environments."""
        observation, reward, terminated, truncated, _ = self._env.step(self._host_action(action))
        ended = torch.from_numpy(np.array(terminated | truncated)).to(self.device)
        self.episode_length_buf = (self.episode_length_buf + 1) * ~ended
        self.obs_buf = self._groups(observation)
        return self.obs_buf, self._tensor(reward), self._tensor(terminated), self._tensor(truncated), {}

    def _groups(self, observation: np.ndarray) -> dict[str, Tensor]:
        """Copies of the groups that there are, by name."""
        found = {_POLICY: _as_numbers(self._tensor(observation))}
        if self.vector_spec.critic_size is not None:
            found["critic"] = self._tensor(cast(CriticEnv, self._env).critic_observation()[0])
        return found

    def _host_action(self, action: Tensor) -> np.ndarray:
        array = action.detach().cpu().numpy()
        if self._bounds is not None:
            return np.clip(array.reshape(self.num_envs, -1), *self._bounds).astype(np.float32)
        kind = self.vector_spec.action.kind
        return array.reshape(self.num_envs, -1).astype(np.int64) if kind == "multi_discrete" else array.reshape(-1)

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.array(array)).to(self.device)


class TensorTaskEnv(_TaskEnv):
    """A task on torch tensors with the interface of Isaac Lab's environments: groups `policy` and, if any, `critic`."""

    def __init__(self, task: str, num_envs: int, device: torch.device, seed: int) -> None:
        self._env = make_tensor_env(task, EnvConfig(), num_envs, device)
        super().__init__(task, self._env, device, seed)
        action = self.vector_spec.action
        bounds = (action.low, action.high) if action.kind == "continuous" else ()
        self._bounds = tuple(torch.tensor(bound, dtype=torch.float32, device=device) for bound in bounds)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start new episodes everywhere."""
        self.obs_buf = _groups(self._env.reset(_seeds(self._seed, seed, self.num_envs)))
        self.episode_length_buf.zero_()
        return self.obs_buf, {}

    def step(self, action: Any) -> Any:
        """Step all environments. What is returned is no live buffer."""
        with torch.no_grad():
            step = self._env.step(self._valid(action.detach()))
        self.episode_length_buf = (self.episode_length_buf + 1) * ~(step.terminated | step.truncated)
        self.obs_buf = _groups(step.observation)
        return self.obs_buf, step.reward.clone(), step.terminated.clone(), step.truncated.clone(), {}

    def _valid(self, action: Tensor) -> Tensor:
        if self._bounds:
            return action.reshape(self.num_envs, -1).clamp(*self._bounds)
        width = (self.num_envs, -1) if self.vector_spec.action.kind == "multi_discrete" else (self.num_envs,)
        return action.reshape(width).long()


def _groups(observation: Observation) -> dict[str, Tensor]:
    """Copies of the groups that there are, by name."""
    parts = zip(_GROUPS, observation, strict=True)
    return {name: _as_numbers(part.clone()) for name, part in parts if part is not None}


def _as_numbers(observation: Tensor) -> Tensor:
    """Images of uint8 as float32 in [0, 1]: the libraries' networks do not take uint8, or only while they act."""
    return observation.float() / 255.0 if observation.dtype == torch.uint8 else observation


def _seeds(of_rank: int, seed: int | None, num_envs: int) -> list[int]:
    """A seed for each environment, from that of `reset` or of the rank."""
    return [int(one) for one in np.random.SeedSequence(of_rank if seed is None else seed).generate_state(num_envs)]


def _spaces(spec: EnvSpec) -> tuple[gymnasium.spaces.Dict, gymnasium.Space[Any]]:
    """Spaces of one environment's observation groups and action."""
    shapes = [spec.observation_shape, *([] if spec.critic_size is None else [(spec.critic_size,)])]
    boxes = (gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float32) for shape in shapes)
    return gymnasium.spaces.Dict(dict(zip(_GROUPS, boxes, strict=False))), _action_space(spec)


def _action_space(spec: EnvSpec) -> gymnasium.Space[Any]:
    action = spec.action
    if action.kind == "discrete":
        return gymnasium.spaces.Discrete(action.sizes[0])
    if action.kind == "multi_discrete":
        return gymnasium.spaces.MultiDiscrete(list(action.sizes))
    low, high = np.array(action.low, np.float32), np.array(action.high, np.float32)
    return gymnasium.spaces.Box(low, high, dtype=np.float32)
