"""Environments on torch tensors as a `DLPackEnv`, for learners of another framework."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lockstep.config.env import EnvConfig
from lockstep.envs.dlpack import DLPackArray, DLPackRollout
from lockstep.envs.joined_groups import joined_shape
from lockstep.torch.envs.interface import (
    Observation,
    TensorVectorEnv,
    can_save,
    check_observation,
    check_step,
    no_final_observation,
)
from lockstep.torch.envs.make import make_tensor_env
from lockstep.torch.envs.saved_tensors import to_arrays, to_tensors


class DLPackEnv:
    """The environments of a shard, and the storage of their rollout.

    What the environments return may be live buffers. It is copied once, into storage of which every element is written
    before it is exported and never again: the importer may still read it. Each rollout has new storage.
    """

    def __init__(self, env: TensorVectorEnv) -> None:
        spec = env.spec
        self.spec, self.num_envs = spec, env.num_envs
        self.savable = can_save(env)
        self._env = env
        self._same_step = spec.autoreset == "same_step"
        kind = torch.float32 if spec.image is None else torch.uint8
        self._observation = torch.zeros(1, env.num_envs, *joined_shape(spec), dtype=kind, device=env.device)
        self.begin(0)

    @torch.no_grad()
    def reset(self, seeds: Sequence[int]) -> None:
        """Start new episodes everywhere."""
        self.begin(0)
        first = self._env.reset(seeds)
        check_observation(self.spec, self.num_envs, first)
        self._store(self._observation[0], first)

    def begin(self, num_steps: int) -> None:
        """Begin a rollout with the last observation, in new storage."""
        last, device = self._observation[-1], self._env.device
        self._observation = last.new_empty(num_steps + 1, *last.shape)
        self._observation[0] = last
        self._final = last.new_empty(num_steps if self._same_step else 0, *last.shape)
        self._has_final = np.zeros(num_steps, bool)
        self._reward = torch.empty(num_steps, self.num_envs, device=device)
        self._terminated, self._truncated = torch.empty(2, num_steps, self.num_envs, dtype=torch.bool, device=device)
        self._step = 0

    def observation(self) -> DLPackArray:
        """The last observation."""
        return self._observation[self._step]

    @torch.no_grad()
    def step(self, action: DLPackArray) -> None:
        """Step every environment once."""
        kind = torch.float32 if self.spec.action.kind == "continuous" else torch.int64
        # A copy: an environment may write to its argument, which the learner keeps.
        given = torch.from_dlpack(action).to(self._env.device, kind, copy=True)
        step, t = self._env.step(given), self._step
        check_step(self.spec, self.num_envs, step)
        self._store(self._observation[t + 1], step.observation)
        self._reward[t] = step.reward
        self._terminated[t] = step.terminated
        self._truncated[t] = step.truncated
        if step.final is not None and self._same_step:
            self._store(self._final[t], step.final)
            self._has_final[t] = True
        self._step += 1

    def _store(self, rows: Tensor, observation: Observation) -> None:
        """Copy an observation to `rows`, as `lockstep.envs.joined_groups` has them."""
        critic = observation.critic
        if critic is None or self.spec.critic_size is None:
            rows.copy_(observation.policy)
            return
        size = self.spec.observation_size
        rows[:, :size] = observation.policy.flatten(1)
        rows[:, size:] = critic if self.spec.image is None else critic.float().contiguous().view(torch.uint8)

    def _is_finite(self, rows: Tensor) -> Tensor:
        """Whether all numbers of rows are finite; bytes of images are none."""
        if self.spec.image is not None and self.spec.critic_size is not None:
            critic = rows[..., self.spec.observation_size :]
            rows = critic.clone(memory_format=torch.contiguous_format).view(torch.float32)
        return rows.isfinite().all()

    def ended(self) -> np.ndarray:
        """Where the last step ended an episode."""
        return (self._terminated[self._step - 1] | self._truncated[self._step - 1]).cpu().numpy()

    def finish(self) -> DLPackRollout:
        """The rollout."""
        columns = self._reward, self._terminated, self._truncated
        reward, terminated, truncated = (column.cpu().numpy() for column in columns)
        final = self._final_rows(truncated & ~terminated) if self._same_step else []
        healthy = [self._is_finite(rows) for rows in (self._observation, *(rows for *_, rows in final))]
        healthy.append(self._reward.isfinite().all())
        is_finite = bool(torch.stack(healthy).all())
        return DLPackRollout(self._observation, reward, terminated, truncated, final, is_finite)

    def _final_rows(self, cut: np.ndarray) -> list[tuple[np.ndarray, np.ndarray, Tensor]]:
        """Final observations where an episode was truncated, `cut` [T, B]."""
        if cut[~self._has_final].any():
            raise no_final_observation()
        found = list[tuple[np.ndarray, np.ndarray, Tensor]]()
        steps, envs = np.nonzero(cut)
        for first in range(0, len(steps), self.num_envs):
            place = slice(first, first + self.num_envs)
            t, b = (torch.from_numpy(indices[place]).to(self._env.device) for indices in (steps, envs))
            rows = torch.zeros_like(self._observation[0])
            rows[: len(t)] = self._final[t, b]
            found.append((steps[place], envs[place], rows))
        return found

    def state(self) -> dict[str, Any]:
        """The complete state."""
        assert can_save(self._env)
        return to_arrays(self._env.state())

    def restore(self, state: dict[str, Any], observation: np.ndarray) -> None:
        """Load `state()` and the last observation."""
        assert can_save(self._env)
        self._env.restore(to_tensors(state))
        self.begin(0)
        self._observation[0] = torch.from_numpy(observation)

    def close(self) -> None:
        """Close the environments."""
        self._env.close()


def maker(task: str, config: EnvConfig, platform: str, number: int) -> tuple[Callable[[int], DLPackEnv], str]:
    """What makes the environments of a shard, by their number; and the kind of device that they are on.

    Args:
        task: of the environments.
        config: of the environments.
        platform: of the learner's device, as JAX names it: `gpu` or `cpu`.
        number: of the learner's device among those of this machine.
    """
    on_gpu = platform == "gpu" and number < torch.cuda.device_count()
    device = torch.device("cuda", number) if on_gpu else torch.device("cpu")
    return lambda num_envs: DLPackEnv(make_tensor_env(task, config, num_envs, device)), device.type
