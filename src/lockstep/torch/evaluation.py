"""Evaluation over all ranks: each shard plays its part of the episodes, everyone learns all results."""

from collections.abc import Callable

import numpy as np

from lockstep.envs.spec import EnvSpec
from lockstep.envs.vector import VectorEnv, make_vector_env
from lockstep.evaluate import Episodes, play, quota
from lockstep.normalize import RunningMoments
from lockstep.rollout import clipper
from lockstep.run import Run
from lockstep.torch.comm import Comm
from lockstep.torch.networks import Policy, actor_of
from lockstep.world import stream, stream_seed


class Evaluation:
    """Plays a policy as it is now; environments are made at the first evaluation and kept."""

    def __init__(
        self, run: Run, comm: Comm, spec: EnvSpec, policy: Policy, observations: RunningMoments | None
    ) -> None:
        self._run, self._comm, self._observations = run, comm, observations
        self._distribution, self._actor = policy.distribution, actor_of(policy, comm.device)
        self._clip = clipper(spec.action)
        self._envs: dict[int, VectorEnv] = {}

    def play(self, index: int, *, beat: Callable[[], object]) -> Episodes:
        """All episodes of evaluation number `index`, in shard order, on every rank; collective."""
        mine: list[tuple[int, list[float], list[int]]] = []
        world, seed = self._comm.world, self._run.seed
        for shard in world.shards:
            num_envs, episodes = quota(self._run.evaluate_episodes, world, shard)
            if not num_envs:
                continue
            if shard not in self._envs:
                self._envs[shard] = make_vector_env(self._run.task, self._run.env, num_envs)
            key = f"evaluate {index}/{shard}"
            seeds = [stream_seed(seed, key, i) for i in range(num_envs)]
            noise = stream(seed, key)
            played = play(self._envs[shard], lambda o, noise=noise: self._choose(o, noise), episodes, seeds, beat)
            mine.append((shard, played.returns, played.lengths))
        every = sorted(part for rank in self._comm.gather_object(mine, "evaluate") for part in rank)
        return Episodes([r for _, returns, _ in every for r in returns], [n for *_, lengths in every for n in lengths])

    def close(self) -> None:
        """Close the environments."""
        for env in self._envs.values():
            env.close()
        self._envs.clear()

    def _choose(self, observation: np.ndarray, noise: np.random.Generator) -> np.ndarray:
        if self._observations is not None:
            observation = self._observations.normalize(observation)
        parameters = self._actor(observation)
        if self._run.evaluate_greedy:
            return self._clip(self._distribution.mode(parameters))
        return self._clip(
            self._distribution.sample(parameters, self._distribution.draw_noise(noise, parameters.shape[:-1]))
        )
