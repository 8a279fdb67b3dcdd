"""What surrounds an algorithm's loop: the comm, the run directory, evaluation, logs, and the end, good or bad.

An algorithm's `train(session)` drives; nothing here calls back into it.
"""

import contextlib
import os
import time
from collections.abc import Callable, Generator
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import torch
from torch import Tensor

from lockstep.envs.vector import VectorEnv, env_spec, make_vector_env
from lockstep.errors import PEER_DELAY_S, ConfigError, PeerError, RunError
from lockstep.fingerprint import digest, fingerprint
from lockstep.normalize import RunningMoments
from lockstep.progress import Progress
from lockstep.record.journal import Journal
from lockstep.record.timers import CHECKPOINT, EVALUATE, Timers
from lockstep.rollout import Collector
from lockstep.run import Run, dump
from lockstep.signals import WATCHED, StopSignals
from lockstep.torch.comm import Comm
from lockstep.torch.evaluation import Evaluation
from lockstep.torch.export import BEST_POLICY_FILE, POLICY_FILE, save_policy, start_from
from lockstep.torch.hardware import describe, pin, share_cores
from lockstep.torch.networks import Policy
from lockstep.watch import Observed, Watch
from lockstep.world import World

MIN_EXACT_ENVS = 4


class Session:
    """One run on this rank, as a context manager. Collective throughout.

    Args:
        run: the config.
        world: who takes part; default: what a launcher's variables say.
        run_dir: where to write; default: a new directory below `runs/`.
        init_from: a run directory or policy file to start from.
        joined: the run directory was made by the launcher.

    Attributes:
        run: the config.
        comm: collectives.
        timers: where the time goes.
        spec: what an environment looks like.
        summary: what `summary.json` will hold.
        progress: global counters, once `training` began.
    """

    def __init__(
        self,
        run: Run,
        world: World | None = None,
        *,
        run_dir: Path | None = None,
        init_from: Path | None = None,
        joined: bool = False,
    ) -> None:
        self.run, self.world = run, (world or World.from_environment()).with_shards(run.num_shards)
        self.timers = Timers()
        self.spec = env_spec(run.task, run.env)
        self.progress = Progress(run.total_steps)
        self._init_from = init_from
        self._signals, self._stack = StopSignals(), contextlib.ExitStack()
        self._stop_return = run.stop_return if run.stop_return is not None else self.spec.reward_threshold
        pin(run, self.world)
        self.comm = Comm(
            self.world,
            device=run.device,
            backend=run.backend,
            timeout_s=run.timeout_s,
            startup_timeout_s=run.startup_timeout_s,
            timers=self.timers,
        )
        self._journal_at = (run_dir, joined)
        self.solved = False
        self.stopped_by = 0
        """The signal all ranks agreed to stop for; 0 while none."""

    def __enter__(self) -> Self:
        """Open everything, in an order that leaves nothing behind when a step fails."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._signals)
            stack.enter_context(self.comm)
            self._same_config()
            self.journal = Journal.open(self.run, self.world, self.comm.broadcast_object, *self._journal_at)
            stack.callback(self.journal.close)
            watch = Watch(
                self.comm.observe,
                self._on_stall,
                lambda: self._signals.received,
                timeout_s=self.run.timeout_s,
                startup_timeout_s=self.run.startup_timeout_s,
            )
            stack.callback(watch.close)
            self._stack = stack.pop_all()
        self.summary = self.journal.summary
        self.summary |= {
            "world_size": self.world.size,
            "num_shards": self.world.num_shards,
            "backend": self.comm.backend,
        }
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Tell what happened, then close everything."""
        try:
            if error is not None:
                self._fail(error)
        finally:
            self._stack.__exit__(kind, error, trace)

    # -- what the loop calls -------------------------------------------------------------------------------------------

    def make_envs(self, num_envs: int) -> list[VectorEnv]:
        """The vector environment of each local shard; closed with the session."""
        size = self.world.shard_size(num_envs, "num_envs")
        if self.world.pinned and size < MIN_EXACT_ENVS:
            self.journal.warn(
                f"{size} environments in a shard: kernels for fewer than {MIN_EXACT_ENVS} rows may give other bits "
                f"in another version of a library; use num_envs >= {MIN_EXACT_ENVS * self.world.num_shards} "
                "or fewer shards"
            )
        if self.world.num_shards % self.world.size:
            self.journal.warn(
                f"{self.world.num_shards} shards do not divide among {self.world.size} ranks: "
                "some ranks do more work than others"
            )
        envs = [make_vector_env(self.run.task, self.run.env, size) for _ in self.world.shards]
        for env in envs:
            self._stack.callback(env.close)
        return envs

    def begin(
        self, policy: Policy, observations: RunningMoments | None, shared_tensors: Callable[[], dict[str, Tensor]]
    ) -> None:
        """Say what is trained; starts it from `--init-from`, equal on all ranks."""
        rows = self.run.num_envs * self.run.algorithm.num_steps // self.run.algorithm.num_minibatches
        share_cores(self.world, rows // self.world.size * sum(p.numel() for p in policy.parameters()))
        self._policy, self._observations, self._shared_tensors = policy, observations, shared_tensors
        if self._init_from is not None:
            start_from(self._init_from, policy, observations)
            self.comm.broadcast_(policy)
            if observations is not None:
                observations.restore(self.comm.broadcast_object(observations.state()))
        self._evaluation = Evaluation(self.run, self.comm, self.spec, policy, observations)
        self._stack.callback(self._evaluation.close)

    @contextlib.contextmanager
    def training(self, progress: Progress, collector: Collector) -> Generator[None]:
        """The training loop runs inside: clocks start before, the result is found after."""
        self.progress, self._collector = progress, collector
        self.timers.restart()
        self._started = time.monotonic()
        yield
        self._finish()

    @property
    def over(self) -> bool:
        """Whether the loop ends: steps taken, task solved, or a signal. The same on every rank at the same update."""
        return self.progress.finished or self.solved or self.stopped_by != 0

    def local_facts(self) -> np.ndarray:
        """What all ranks must know of this one after a rollout: `[K, ...]` episodes, returns and lengths, signals."""
        facts = np.zeros((len(self.world.shards), 3 + len(WATCHED)))
        for k, episodes in enumerate(self._collector.episodes):
            facts[k, :3] = len(episodes.returns), episodes.returns.sum(), episodes.lengths.sum()
            self.journal.episodes[k].add(self.progress.updates, episodes.returns)
        self.journal.local_episodes += self._collector.num_episodes
        facts[0, 3:] = self._signals.flags()
        return facts

    def advance(self, num_steps: int, told: np.ndarray) -> None:
        """Count a rollout of `num_steps` global steps and take in the summed facts of all ranks."""
        self.progress.env_steps += num_steps
        self.progress.updates += 1
        self.progress.episodes += int(told[0])
        self.journal.add_episodes(told[:3])
        self.stopped_by = max((n for n, told_of in zip(WATCHED, told[3:], strict=True) if told_of), default=0)
        self.timers.updated(self.progress.updates)
        if self.progress.updates == 1:
            self.summary["startup_s"] = seconds_since_process_start()
            self.comm.check_different(self._collector.fingerprint(), "first_rollout")

    def log(self, metrics: dict[str, float]) -> None:
        """Write one line of metrics; one message."""
        bad = [name for name, value in metrics.items() if not np.isfinite(value)]
        if bad:
            raise RunError(
                f"{bad[0]} is no longer finite at step {self.progress.env_steps}; a smaller learning_rate may help"
            )
        rows = torch.from_numpy(self.journal.rows(self.timers.read(), time.monotonic() - self._started))
        spread = rows.new_zeros(len(rows), self.world.num_shards, rows.shape[1])
        for k, shard in enumerate(self.world.shards):
            spread[k, shard] = rows[k]
        total = self.comm.sum_shards(spread.view(len(rows), -1), "log")
        self.journal.log(self.progress, metrics, total.view(self.world.num_shards, -1).numpy())

    def log_rest(self, read: Callable[[], dict[str, float]]) -> None:
        """Log what came after the last log line, if anything did."""
        if self.journal.logged_at != self.progress.env_steps:
            self.log(read())

    def evaluate(self) -> None:
        """Play the evaluation episodes; stop the run, on all ranks together, if they solve the task."""
        previous = self.timers.enter(EVALUATE)
        episodes = self._evaluation.play(self.progress.env_steps, beat=lambda: self.timers.enter(EVALUATE))
        best = self.journal.evaluated(self.progress, episodes, self._stop_return, time.monotonic() - self._started)
        self.timers.enter(CHECKPOINT)
        if best and self.world.rank == 0:
            self._save(BEST_POLICY_FILE)
        self.timers.enter(previous)
        solved = self._stop_return is not None and self.summary["eval_return_mean"] >= self._stop_return
        self.solved = solved and self.run.stop_when_solved

    # -- the end -------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """After the last update: judge what was trained, prove that ranks agree, write everything."""
        if not self.stopped_by and self.journal.evaluated_at != self.progress.env_steps:
            self.evaluate()
        wall = time.monotonic() - self._started
        shared = self._shared_tensors()
        self.comm.check_equal(shared)
        parameters = {n: p.detach().float().cpu().numpy() for n, p in self._policy.named_parameters()}
        mine = {
            "rank": self.world.rank,
            "host": os.uname().nodename,
            "device": describe(self.comm.device),
            "params_fingerprint": fingerprint(parameters),
            "first_rollout_fingerprint": self._collector.fingerprint(),
            "env_steps": self.progress.env_steps // self.world.num_shards * len(self.world.shards),
            "episodes": self.journal.local_episodes,
            "phases_s": self.timers.read(),
        }
        ranks = self.comm.gather_object(mine, "summary")
        status = "interrupted" if self.stopped_by else "solved" if self.solved or self._solved_once() else "finished"
        if self.world.rank == 0:
            self._save(POLICY_FILE)
        self.journal.finish(self.progress, status, self.stopped_by, wall, ranks)

    def _solved_once(self) -> bool:
        return self.summary["solved_at_step"] is not None

    def _save(self, name: str) -> None:
        save_policy(self.journal.path / name, self._policy, self._observations, self.run, self.spec)

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, PeerError):
            time.sleep(PEER_DELAY_S)
        message = str(error) if isinstance(error, RunError | ConfigError) else f"{type(error).__name__}: {error}"
        culprit = error.rank if isinstance(error, PeerError) and error.rank is not None else self.world.rank
        elapsed = time.monotonic() - self._started if hasattr(self, "_started") else 0.0
        self.journal.fail(culprit, message, self.progress, elapsed)

    def _on_stall(self, culprit: Observed, report: str) -> None:
        self.journal.stalled(culprit.rank, report, str(culprit), self.progress)

    def _same_config(self) -> None:
        mine = digest(np.frombuffer(dump(self.run).encode(), np.uint8))
        every = self.comm.gather_object(mine, "config")
        odd = [rank for rank, theirs in enumerate(every) if theirs != every[0]]
        if odd:
            raise ConfigError(
                f"rank {odd[0]} was started with another config than rank 0; start all ranks with the same command"
            )


def seconds_since_process_start() -> float:
    """How long this process exists, interpreter start and imports included."""
    with open("/proc/self/stat") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
