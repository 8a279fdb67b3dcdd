"""Collecting rollouts from environments on torch tensors, which JAX reads through DLPack.

Observations stay on the device: the network acts on views of the environments' storage, and a whole rollout becomes one
array. The host reads rewards and flags once per rollout. `lockstep.experience.rollout.Collector` is the same for
environments with a numpy interface: from the same seeds both collect the same bits on a CPU.

Shapes: K shards of this process, T steps, B environments of a shard, O and C numbers of the policy's and of the
critic's observation, W noise of an action.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import jax
import numpy as np

from lockstep.distributed.fingerprint import combine, digest
from lockstep.distributed.timers import ACT, ENV, OTHER, Timers
from lockstep.envs.dlpack import DLPackEnv
from lockstep.envs.joined_groups import numbers_of, split_groups
from lockstep.experience.acting import Actor, ActorWithState, RecurrentActor
from lockstep.experience.episodes import EpisodeStats
from lockstep.experience.normalize import RunningMoments
from lockstep.experience.rollout import Rollout, Sampler, clipper, find_non_finite, step_error
from lockstep.jax.moments import normalized
from lockstep.jax.transfer import to_device
from lockstep.world import World, env_seeds, stream


def rollout_on_device(rollout: Rollout, device: Any) -> Rollout:
    """A rollout in numpy with its observations on a device, as those of `TensorCollector`."""
    final: list[Any] = [(np.full(len(envs), t), envs, jax.device_put(rows, device)) for t, envs, rows in rollout.final]
    return replace(rollout, observation=jax.device_put(rollout.observation, device), final=final)


def rollout_on_host(rollout: Rollout) -> Rollout:
    """The rollout in numpy."""
    return replace(rollout, observation=np.asarray(rollout.observation), final=_final_on_host(rollout.final))


def _final_on_host(final: Sequence[tuple[Any, np.ndarray, Any]]) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """Final observations of a rollout in numpy, each step by itself."""
    return [
        (int(t), envs[i : i + 1], np.asarray(rows)[i : i + 1])
        for steps, envs, rows in final
        for i, t in enumerate(np.broadcast_to(steps, len(envs)))
    ]


class _Shard:
    """The environments of one shard, and what acts in them.

    Attributes:
        actor: with the state of each environment.
        generator: of exploration, the stream of `Collector`.
        noise: [T, B, W] of the rollout.
        action: [T, B] or [T, B, D] of the rollout.
        ended: bool [B], in the last step of the rollout.
    """

    def __init__(
        self,
        env: DLPackEnv,
        actor: Actor | RecurrentActor,
        sampler: Sampler,
        device: Any,
        moments: RunningMoments | None,
        generator: np.random.Generator,
    ) -> None:
        spec, size = env.spec, env.num_envs
        self.env = env
        self.actor = ActorWithState(actor, (size,))
        self.generator = generator
        self.episodes = EpisodeStats(size)
        self.ended = np.zeros(size, bool)
        self.action = np.zeros(0)
        self.begins = np.zeros((0, size), bool)
        self._sampler = sampler
        self._device = device
        self._moments = moments
        self._clip = clipper(spec.action)
        self._same_step = spec.autoreset == "same_step"

    def begin(self, num_steps: int) -> None:
        """Begin a rollout, and draw the noise of all steps."""
        action, size = self.env.spec.action, self.env.num_envs
        self.env.begin(num_steps)
        self.noise = self._sampler.draw_noise(self.generator, (num_steps, size))
        shape = () if action.kind == "discrete" else (action.width,)
        self.action = np.zeros((num_steps, size, *shape), np.float32 if action.kind == "continuous" else np.int64)
        self.begins = np.zeros((num_steps + 1, size), bool)
        self.begins[0] = self.actor.begins
        self.state = self.actor.finite_state()

    def act(self, t: int) -> np.ndarray:
        """The actions of step t for the environment."""
        with np.errstate(over="ignore", invalid="ignore"):  # reported with the rollout
            self.action[t] = chosen = self._sampler.sample(self.actor(self._seen()), self.noise[t])
        return self._clip(chosen)

    def _seen(self) -> np.ndarray:
        """The last observation as the actor receives it."""
        row, moments = self.env.observation(), self._moments
        if self._device.platform == "cpu":  # a view, which actors on a CPU take in less time than an array of JAX
            seen, _ = split_groups(np.from_dlpack(row), self.env.spec)
            return seen if moments is None else moments.normalize(seen)
        rows: Any = split_groups(cast(Any, to_device(row, self._device)), self.env.spec)[0]
        return rows if moments is None else cast(Any, normalized(moments, rows))

    def last_observation(self) -> np.ndarray:
        """Where the last rollout stopped, copied to the host."""
        return np.array(to_device(self.env.observation(), self._device))

    def step(self, t: int, action: np.ndarray) -> None:
        """Step the environments."""
        self.env.step(action)
        if self.actor.is_recurrent:
            ended = self.env.ended()
            # With `next_step` autoreset the observation after an end is still the final one of the old episode.
            self.begins[t + 1] = ended if self._same_step else self.ended
            self.ended = ended
            self.actor.begins = self.begins[t + 1].copy()

    def finish(self, ended_before: np.ndarray, first_env: int) -> Rollout:
        """The rollout, with its observations on the device.

        Args:
            ended_before: bool [B], in the last step of the previous rollout.
            first_env: global index of the first environment.
        """
        steps = self.env.finish()
        ended = steps.terminated | steps.truncated
        before = np.concatenate([ended_before[None], ended[:-1]])
        weight, reward = np.ones_like(steps.reward), steps.reward
        if not self._same_step:  # a row that only resets belongs to no episode, whatever it pays
            weight, reward = 1.0 - before.astype(np.float32), np.where(before, np.float32(0.0), reward)
        self.ended = ended[-1]
        self.episodes.update(reward, ended, weight)
        final: list[Any] = [(t, envs, to_device(rows, self._device)) for t, envs, rows in steps.final]
        observation: Any = to_device(steps.observation, self._device)
        rollout = Rollout(observation, self.action, reward, steps.terminated, ended, weight, final)
        if not steps.is_finite:
            host = rollout_on_host(rollout)
            numbers = [(t, rows, numbers_of(last, self.env.spec)) for t, rows, last in host.final]
            observed = numbers_of(host.observation, self.env.spec)
            rollout.fault = find_non_finite(observed, host.reward, numbers, first_env)
        if self.actor.is_recurrent:
            rollout.state, rollout.begins = self.state, self.begins
        return rollout


class TensorCollector:
    """Steps the tensor environments of this process' shards, and hands their rollouts to JAX.

    Args:
        world: the ranks and shards.
        envs: the environments of each local shard, in order.
        actor: observations [B, O] to distribution parameters [B, P]; a recurrent one with states [B, A].
        sampler: the distribution.
        device: of the learner, where rollouts go.
        num_steps: T.
        seed: of the run.
        timers: record the time spent acting and in environments.
        observation_moments: normalizer of observations, if any.
    """

    def __init__(  # noqa: PLR0913  # everything a rollout needs, once, by keyword
        self,
        world: World,
        envs: Sequence[DLPackEnv],
        actor: Actor | RecurrentActor,
        sampler: Sampler,
        *,
        device: Any,
        num_steps: int,
        seed: int,
        timers: Timers,
        observation_moments: RunningMoments | None = None,
    ) -> None:
        self._world = world
        self._num_steps = num_steps
        self._seed = seed
        self._timers = timers
        self._shards = [
            _Shard(env, actor, sampler, device, observation_moments, stream(seed, "action", shard))
            for shard, env in zip(world.shards, envs, strict=True)
        ]
        self.episodes = [shard.episodes for shard in self._shards]
        self.fingerprints: list[str] = []
        """Of each shard's first rollout: observations, actions and noise."""
        for k in range(len(envs)):
            self._reset(k, "env")

    def _reset(self, k: int, name: str) -> None:
        """Begin new episodes in local shard number `k`, each environment from the seed of its global index."""
        shard = self._shards[k]
        shard.env.reset(env_seeds(self._seed, name, self._world.shards[k], shard.env.num_envs))
        shard.actor.begins[:] = True

    def collect(self) -> list[Rollout]:
        """Step every environment T times; one rollout for each local shard, with observations as JAX arrays."""
        timers, shards = self._timers, self._shards
        ended_before = [shard.ended for shard in shards]
        for shard in shards:
            shard.begin(self._num_steps)
        for t in range(self._num_steps):
            for k, shard in enumerate(shards):
                timers.enter(ACT)
                action = shard.act(t)
                timers.enter(ENV)
                try:
                    shard.step(t, action)
                except Exception as error:
                    raise step_error(self._world, k, shard.env.num_envs, error) from error
        timers.enter(OTHER)
        rollouts = [
            shard.finish(ended_before[k], self._world.shards[k] * shard.env.num_envs) for k, shard in enumerate(shards)
        ]
        if not self.fingerprints:
            self.fingerprints = [
                combine(digest(part) for part in (np.asarray(rollout.observation), shard.action, shard.noise))
                for shard, rollout in zip(shards, rollouts, strict=True)
            ]
        return rollouts

    @property
    def savable(self) -> bool:
        """Whether all environments can be saved in mid-episode."""
        return all(shard.env.savable for shard in self._shards)

    def shard_state(self, k: int) -> dict[str, Any]:
        """State of local shard `k` between two rollouts, as `Collector.shard_state`."""
        shard = self._shards[k]
        actor = {"state": shard.actor.state, "begins": shard.actor.begins} if shard.actor.is_recurrent else {}
        return actor | {
            "environments": shard.env.state() if shard.env.savable else None,
            "observation": shard.last_observation(),
            "ended": shard.ended,
            "noise": [shard.generator.bit_generator.state],
            "episodes": shard.episodes.state(),
            "fingerprint": self.fingerprints[k] if self.fingerprints else None,
        }

    def restore_shard(self, k: int, state: dict[str, Any], step: int) -> bool:
        """Restore local shard `k` from its `shard_state` at `step` of the run, or from `Collector`'s.

        Returns:
            Whether its environments continue; those that cannot be saved start new episodes, with new seeds.
        """
        shard = self._shards[k]
        [shard.generator.bit_generator.state] = state["noise"]
        self.fingerprints[k : k + 1] = [state["fingerprint"]] if state["fingerprint"] is not None else []
        if state["environments"] is None or not shard.env.savable:
            self._reset(k, f"env from {step}")
            return False
        shard.env.restore(state["environments"], state["observation"])
        shard.ended = np.array(state["ended"])
        if shard.actor.is_recurrent:
            shard.actor.state, shard.actor.begins = state["state"], state["begins"]
        shard.episodes.restore(state["episodes"])
        return True

    def fingerprint(self) -> str:
        """Fingerprint of this process' first rollout; equal ones mean that ranks collect the same data."""
        return combine(self.fingerprints)

    def close(self) -> None:
        """Close the environments."""
        for shard in self._shards:
            shard.env.close()
