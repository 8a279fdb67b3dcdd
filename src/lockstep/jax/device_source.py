"""Environments on the devices of this process, as a source of data between compiled calls.

Shapes: K shards of this process.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from lockstep.distributed.fingerprint import combine
from lockstep.errors import ConfigError
from lockstep.experience.episodes import EpisodeStats
from lockstep.jax.comm import Comm
from lockstep.jax.device_shard import REWARD, NonFiniteValue, Shard
from lockstep.jax.envs.interface import Observation
from lockstep.record.episodes import RecentEpisodes
from lockstep.record.progress import Progress
from lockstep.run import Run
from lockstep.session.non_finite import ENVIRONMENT, Finding, NonFiniteError, nearest

_EPISODES = ("returned", "length", "discounted", "first")
"""Fields of a `Shard` that are saved beside its environments and their observations."""


class DeviceSource:
    """The shards of this process and what the host reads of them; a subclass has the compiled loop.

    Args:
        run: the config.
        comm: the ranks.
        num_steps: of each environment in an update.

    Attributes:
        episodes: always empty; see `report_episodes`.
    """

    _own: Shard
    """The shards of this process, on its devices."""

    def __init__(self, run: Run, comm: Comm, num_steps: int) -> None:
        self._run, self._comm = run, comm
        self._size = comm.world.shard_size(run.num_envs, "num_envs")
        self._new_steps = run.num_envs * num_steps
        self.episodes = [EpisodeStats(self._size) for _ in comm.world.shards]

    def until_due(self, progress: Progress) -> int:
        """The number of updates until the next host synchronization."""
        run, size = self._run, self._new_steps
        periods = filter(None, (run.log_every, run.evaluate_every, run.checkpoint_every))
        ends = [(progress.env_steps // every + 1) * every for every in periods]
        steps = min([run.total_steps, *ends]) - progress.env_steps
        return max(min(-(-steps // size), run.check_every - progress.updates % run.check_every), 1)

    def report_episodes(self, statistics: np.ndarray, recent: Sequence[RecentEpisodes]) -> None:
        """Report the episodes that ended in `run_until_due`.

        Args:
            statistics: [K, ...], of which the first three columns are set: number, returns, lengths.
            recent: of each local shard; the newest updates with episodes are appended.
        """
        for k, totals in enumerate(self._comm.unshard(self._own.totals)):
            returns = np.float64(totals.returns) + np.float64(totals.returns_rest)
            statistics[k, :3] = totals.ended, returns, totals.lengths
            recent[k].count += int(totals.ended) - int(totals.recent_ended.sum())  # of older updates
            for i in np.flatnonzero(totals.recent_ended):
                recent[k].add(int(totals.updates[i]), int(totals.recent_ended[i]), float(totals.recent_returns[i]))

    @property
    def fingerprints(self) -> list[str]:
        """Checksums of observations, actions and noise in each local shard's first rollout."""
        return [f"{int(first):08x}" for first in self._comm.unshard(self._own.first)]

    def fingerprint(self) -> str:
        """Fingerprint of this process' first rollout."""
        return combine(self.fingerprints)

    def shard_state(self, k: int) -> dict[str, Any]:
        """State of local shard `k` between two rollouts."""
        shard: Shard = self._comm.unshard_one(self._own, k)
        policy, critic = shard.observation
        observation = {"observation": policy} | ({} if critic is None else {"critic": critic})
        memory = {"memory": shard.memory} if shard.memory.size else {}
        episodes = {name: getattr(shard, name) for name in _EPISODES}
        return {"state": list(shard.state)} | observation | memory | episodes

    def restore_shard(self, k: int, state: dict[str, Any], step: int) -> bool:
        """Restore local shard `k` from its `shard_state`; True, because the restore is always exact."""
        del step
        if "returned" not in state:
            raise ConfigError(
                "env.placement: this run collected from environments on the host; resume it with "
                "--set env.placement=host"
            )
        parts: list[Shard] = self._comm.unshard(self._own)
        saved = {name: state[name] for name in _EPISODES} | {
            "state": tuple(state["state"]),
            "observation": Observation(state["observation"], state.get("critic")),
            "memory": state.get("memory", parts[k].memory),
        }
        current = {name: getattr(parts[k], name) for name in saved}
        if _shapes(saved) != _shapes(current):
            raise ConfigError(
                f"task={self._run.task}: its environments' state or observations have other shapes than in the "
                "checkpoint; resume with the task as it was, or start a new run (--init-from RUN takes over its policy)"
            )
        typed = jax.tree.map(lambda old, new: np.asarray(new, old.dtype), current, saved)
        parts[k] = parts[k]._replace(**typed)
        self._own = self._comm.shard(parts)
        return True

    def find_fault(self) -> Finding | None:
        """The first environment of all ranks that gave a non-finite number; *collective*."""
        found: dict[int, Finding] = {}
        faults: list[NonFiniteValue] = self._comm.unshard(self._own.fault)
        for shard, fault in zip(self._comm.world.shards, faults, strict=True):
            if fault.what:
                what = "a reward" if fault.what == REWARD else "an observation"
                env = shard * self._size + int(fault.env)
                words = f"environment {env} gave {what} that is not finite ({float(fault.value)})"
                found[shard] = Finding(ENVIRONMENT, int(fault.step), env, words)
        return nearest(self._comm, found)

    def non_finite_error(self, update: int, otherwise: NonFiniteError | None = None) -> NonFiniteError:
        """The error that names the environment that a non-finite number comes from; *collective*.

        Args:
            update: the number of updates before it.
            otherwise: the error if all numbers from the environments are finite; None: loss or gradient is not.
        """
        cause, where = self.find_fault(), f"update {update + 1} (non_finite=stop)"
        if cause is not None:
            message = (
                f"{cause.description} in step {cause.step} of the rollout of {where}; "
                "look for a division by 0 or a diverging simulation"
            )
            return NonFiniteError(message, cause.rank, {})
        message = (
            f"loss or gradient is not finite in {where}, although all numbers from the environments are finite; "
            "try a smaller learning_rate, or non_finite=skip"
        )
        return otherwise or NonFiniteError(message, None, {})


def _shapes(tree: Any) -> tuple[Any, list[tuple[int, ...]]]:
    """The structure of a tree of arrays, and their shapes."""
    return jax.tree.structure(tree), [np.shape(leaf) for leaf in jax.tree.leaves(tree)]
