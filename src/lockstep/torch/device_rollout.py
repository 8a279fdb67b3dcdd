"""Collecting rollouts from environments on torch tensors, without a copy through the host.

Inside the loop over the steps nothing waits for the device: no value of a tensor decides what Python does. Once per
rollout the host reads the episodes that ended and the sums for the normalizers.

Shapes: K shards of this rank, T steps, B environments of a shard.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from lockstep.distributed.fingerprint import combine, digest
from lockstep.distributed.timers import ACT, ENV, OTHER, Timers
from lockstep.errors import ConfigError
from lockstep.experience.rollout import step_error
from lockstep.session.normalizers import Normalizers, set_first_means
from lockstep.torch.comm import Comm
from lockstep.torch.device_shard import TensorRollout, TensorShard
from lockstep.torch.envs.interface import Observation, TensorVectorEnv, can_save, check_observation
from lockstep.torch.envs.saved_tensors import to_arrays, to_tensors
from lockstep.torch.moments import DeviceMoments
from lockstep.torch.networks import Policy
from lockstep.world import env_seeds, stream_seed


class TensorCollector:
    """Steps the tensor environments of this rank's shards with a policy on their device.

    Each shard is stepped by calls of its own, with kernels of the shard's shape, so that its numbers do not depend on
    the number of ranks.

    Args:
        comm: the ranks; the constructor is *collective* if there are normalizers.
        envs: the environments of each local shard, in order.
        policy: acts, and values observations.
        normalizers: frozen during a rollout.
        num_steps: T.
        gamma: discount, for the normalizer of returns.
        seed: of the run.
        timers: record the time spent acting and in environments.
        compiled: compile the policy for steps; not for recurrent ones.
        capture: captures the functions of a step, see `capture_rollout`; None: they run without graphs.

    Attributes:
        captures_acting: whether acting is a CUDA graph.
        captures_envs: whether the environments' steps are, too.
    """

    def __init__(  # noqa: PLR0913  # everything a rollout needs, once, by keyword
        self,
        comm: Comm,
        envs: Sequence[TensorVectorEnv],
        policy: Policy,
        normalizers: Normalizers,
        *,
        num_steps: int,
        gamma: float,
        seed: int,
        timers: Timers,
        compiled: bool = False,
        capture: Callable[..., Callable[..., Any]] | None = None,
    ) -> None:
        self._world = comm.world
        self._timers = timers
        self._seed = seed
        self._moments = {
            name: DeviceMoments(host, comm.device) for name, host in normalizers.named().items() if name != "values"
        }
        self._shards = list[TensorShard]()
        for k, env in enumerate(envs):
            generator = torch.Generator(env.device)
            generator.manual_seed(stream_seed(seed, "action", comm.world.shards[k]))
            first = env.reset(self._env_seeds(k, env.num_envs, "env"))
            check_observation(env.spec, env.num_envs, first)
            self._shards.append(
                TensorShard(
                    env, policy, first=first, num_steps=num_steps, moments=self._moments, gamma=gamma,
                    reward_scale=normalizers.reward_scale, generator=generator, compiled=compiled,
                    capture=capture,
                )
            )  # fmt: skip
        self.episodes = [shard.episodes for shard in self._shards]
        self.captures_acting = self._shards[0].captures_acting
        self.captures_envs = self._shards[0].captures_envs
        self._begin_normalizers(comm, normalizers)
        self.fingerprints: list[str] = []
        """Of each shard's first rollout: observations, actions and noise."""

    @torch.no_grad()
    def collect(self) -> list[TensorRollout]:
        """Step every environment T times; one rollout for each local shard."""
        timers, shards = self._timers, self._shards
        for moments in self._moments.values():
            moments.refresh()
        for shard in shards:
            shard.start()
        for t in range(len(shards[0].action)):
            for k, shard in enumerate(shards):
                timers.enter(ACT)
                action = shard.act(t)
                timers.enter(ENV)
                try:
                    shard.step(t, action)
                except Exception as error:
                    raise step_error(self._world, k, shard.env.num_envs, error) from error
        timers.enter(OTHER)
        rollouts = [shard.finish(self._world.shards[k] * shard.env.num_envs) for k, shard in enumerate(shards)]
        if not self.fingerprints:
            self.fingerprints = [
                combine(digest(part.cpu().numpy()) for part in (shard.groups[0].raw, shard.action, shard.noise))
                for shard in shards
            ]
        return rollouts

    def _env_seeds(self, k: int, size: int, name: str) -> list[int]:
        """Of the environments of local shard `k`, each by its global index."""
        return env_seeds(self._seed, name, self._world.shards[k], size)

    def _begin_normalizers(self, comm: Comm, normalizers: Normalizers) -> None:
        """Set the origin of the observation normalizers to the mean of the first observations; *collective*."""
        hosts = (normalizers.observations, normalizers.critic_observations)
        rows = [
            (host, [shard.groups[i].raw[-1].cpu().numpy() for shard in self._shards])
            for i, host in enumerate(hosts)
            if host is not None
        ]
        set_first_means(comm, rows, [np.ones(shard.env.num_envs) for shard in self._shards])

    @property
    def savable(self) -> bool:
        """Whether all environments can be saved in mid-episode."""
        return all(can_save(shard.env) for shard in self._shards)

    def shard_state(self, k: int) -> dict[str, Any]:
        """State of local shard `k` between two rollouts; includes the environments only if they can be saved."""
        shard = self._shards[k]
        env = shard.env
        recurrent = {"state": to_arrays(shard.states[-1]), "begins": to_arrays(shard.begins[-1])}
        return (recurrent if shard.states.numel() else {}) | {
            "environments": to_arrays(env.state()) if can_save(env) else None,
            "observation": [to_arrays(group.raw[-1]) for group in shard.groups],
            "ended": to_arrays(shard.ended[-1]),
            "generator": shard.generator.get_state().numpy(),
            "discounted": to_arrays(shard.discounted),
            "episodes": shard.episodes.state(),
            "fingerprint": self.fingerprints[k] if self.fingerprints else None,
        }

    def restore_shard(self, k: int, state: dict[str, Any], step: int) -> bool:
        """Restore local shard `k` from its `shard_state` at `step` of the run.

        Returns:
            Whether its environments continue. Those that cannot be saved, or were saved on another kind of device,
            start new episodes, with new seeds.
        """
        if "generator" not in state:
            raise ConfigError(
                "env.placement: this run collected from environments on the host; resume it with "
                "--set env.placement=host"
            )
        shard = self._shards[k]
        env = shard.env
        generator = torch.from_numpy(state["generator"])
        same_kind = generator.shape == shard.generator.get_state().shape  # those of CPUs and GPUs differ in size
        if same_kind:
            shard.generator.set_state(generator)
        else:
            shard.generator.manual_seed(stream_seed(self._seed, f"action from {step}", self._world.shards[k]))
        self.fingerprints[k : k + 1] = [state["fingerprint"]] if state["fingerprint"] is not None else []
        if state["environments"] is None or not can_save(env) or not same_kind:
            shard.store(-1, env.reset(self._env_seeds(k, env.num_envs, f"env from {step}")))
            shard.begins[-1] = 1.0
            return False
        env.restore(to_tensors(state["environments"]))
        shard.store(-1, Observation(*to_tensors(state["observation"])))
        shard.ended[-1] = torch.from_numpy(state["ended"])
        if "state" in state:
            shard.states[-1], shard.begins[-1] = (torch.from_numpy(state[name]) for name in ("state", "begins"))
        shard.discounted.copy_(torch.from_numpy(state["discounted"]))
        shard.episodes.restore(state["episodes"])
        return True

    def fingerprint(self) -> str:
        """Fingerprint of this rank's first rollout; equal ones mean that ranks collect the same data."""
        return combine(self.fingerprints)

    def close(self) -> None:
        """Close the environments."""
        for shard in self._shards:
            shard.env.close()
