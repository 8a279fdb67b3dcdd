"""The context of a training loop: comm, run directory, evaluation, logs, checkpoints, success and failure.

The loop is in the algorithm's `train(session)`; nothing here calls it. Framework-specific code is in a `Backend`, one
each in `lockstep.torch.session` and `lockstep.jax.session`.
"""

import contextlib
import os
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np

from lockstep.config.run_base import check_followed
from lockstep.distributed import stacks
from lockstep.distributed.agreement import check_different
from lockstep.distributed.timers import CHECKPOINT, EVALUATE, OTHER, RecordedTimers, Timers
from lockstep.distributed.watch import Watch
from lockstep.envs.make import env_spec, make_vector_env
from lockstep.envs.spec import EnvSpec
from lockstep.envs.vector import VectorEnv
from lockstep.errors import PEER_DELAY_S, ConfigError, MismatchError, PeerError, RunError
from lockstep.experience.acting import Actor, RecurrentActor
from lockstep.experience.evaluate import EvaluationStopped
from lockstep.experience.normalize import RunningMoments
from lockstep.experience.rollout import Collector, Sampler
from lockstep.preflight.compare import Forecast, add_forecast, start_flags
from lockstep.preflight.cost_model import Layout
from lockstep.record.evaluations import EvaluationResult
from lockstep.record.journal import Journal
from lockstep.record.numbers import whole
from lockstep.record.pending_run import PendingRun
from lockstep.record.progress import Progress
from lockstep.record.summary import seconds_since_process_start
from lockstep.run import Run, SomeRun
from lockstep.session.backend import Backend, SomeComm, SomeLearner, SomePolicy
from lockstep.session.checkpoints import Checkpoints
from lockstep.session.evaluation import Evaluation
from lockstep.session.gradient_schedule import updates_before_learning
from lockstep.session.loop_checks import check_totals, is_of_lockstep, metrics_of, name_of, required
from lockstep.session.policy_file import BEST_POLICY_FILE, POLICY_FILE
from lockstep.session.profile import PROFILE_FILE, WARMUP_UPDATES, Profile
from lockstep.session.resume import Resumption, load_resumption
from lockstep.session.run_state import Learner, RunState, Source
from lockstep.session.signals import WATCHED, StopSignals
from lockstep.session.task_checks import check_agents
from lockstep.session.unused_settings import warnings_of_start_policy
from lockstep.world import World

SomeEnv = TypeVar("SomeEnv", bound="Closable")
NUM_STATISTICS = 4 + len(WATCHED)
"""Numbers of a shard in `BaseSession.local_statistics`, in the columns below."""
_EPISODES = slice(0, 3)
"""The number of episodes that ended, their returns and their lengths, as `Journal.add_episodes` takes them."""
_WRITES = 3
_SIGNALS = slice(4, NUM_STATISTICS)
"""In the order of `WATCHED`."""


class Closable(Protocol):
    """Environments of any kind."""

    def close(self) -> None:
        """Free all resources."""
        ...


class BaseSession(Generic[SomeRun, SomeComm, SomePolicy, SomeLearner]):
    """One run on this rank, as a context manager. Collective throughout.

    Args:
        run: the config.
        world: the ranks; default: from the launcher's environment variables.
        run_dir: output directory, or its `PendingRun`; default: a new directory below `runs/`.
        init_from: a run directory or policy file with the initial parameters.
        resume: the run to resume; `run_dir` is ignored then, and `init_from` is too once there is a checkpoint.
        started_by_lockstep: set by our own launcher for its ranks, whose run directory it has made; never by users.
        profile: number of updates to record in `profile.json.gz`; default: none.

    Attributes:
        run: the config.
        comm: collectives.
        timers: time spent in each phase.
        summary: contents of `summary.json`.
        progress: global counters, once `training` has started.
        signals: stop signals that this rank received.
        stopped_by: the signal for which all ranks agreed to stop; 0 for none.
    """

    backend: Backend[SomeComm, SomePolicy, SomeLearner]

    def __init__(
        self,
        run: SomeRun,
        world: World | None = None,
        *,
        run_dir: Path | PendingRun | None = None,
        init_from: Path | None = None,
        resume: Path | Resumption | None = None,
        started_by_lockstep: bool = False,
        profile: int | None = None,
    ) -> None:
        self._resumed = resumed = load_resumption(resume, run) if isinstance(resume, Path) else resume
        earlier = resumed.run_dir if resumed is not None else None
        self._pending_run = PendingRun.resolve(run_dir, started_by_lockstep, earlier, init_from)
        self._init_from = init_from
        if resumed is not None:
            self._init_from = init_from or resumed.init_from if resumed.step is None else None
        world = world or World.from_environment()
        self.run = run
        self.world = run.with_shards(world, resumed.num_shards if resumed is not None else None)
        self.timers = Timers() if profile is None else RecordedTimers()
        self._profiled_updates = profile
        self._profile: Profile | None = None
        self._spec = env_spec(run.task, run.env) if run.task is not None else None
        self.progress = Progress(run.total_steps if isinstance(run, Run) else 1)
        self.signals = StopSignals()
        self._stack = contextlib.ExitStack()
        self._stop_return = self._threshold(run.stop_return)
        self.comm: SomeComm = self.backend.open(run, self.world, self.timers)
        self._state: RunState | None = None
        self._learner: Learner | None = None
        self._source: Source | None = None
        self._evaluation: Evaluation | None = None
        self._started: float | None = None
        self._new_updates: int | None = None
        self._updated = False
        self.solved = False
        self.stopped_by = 0

    def __enter__(self) -> Self:
        """Connect the ranks and open the run directory; what is open is closed if a step fails."""
        with contextlib.ExitStack() as stack:
            stack.push(self.signals)
            self._pending_run.start_phase("connecting the ranks" if self.world.size > 1 else "starting the device")
            stack.enter_context(self.comm)
            self._pending_run.release_signals()
            self.signals.__enter__()  # until here a signal ends the process: ranks that connect cannot agree on it
            flags = start_flags(
                resumed=None if self._resumed is None else self._resumed.run_dir,
                initialized=self._init_from is not None,
                profile=self._profiled_updates,
            )
            self._preflight = self.backend.preflight(self.comm, self.run, flags)
            self.journal = Journal.open(
                self.run, self.world, self.comm.broadcast_object, self._pending_run, exists=self._resumed is not None
            )
            stack.callback(self.journal.close)
            self._profile = self._open_profile()
            if self.run.ml_framework == "jax" or self.run.compile:
                self.journal.say("compiling ...")
            self._checkpoints = Checkpoints(
                self.run, self.comm, self.journal, resumed=self._resumed, initialized=self._init_from is not None
            )
            stack.callback(self._checkpoints.close)
            logs = self.journal.path / "logs"
            stack.enter_context(stacks.dumps_on_request(logs, self.world.rank))
            watch = Watch(
                self.comm.observe,
                self.journal.stalled,
                lambda: self.signals.received,
                timeout_s=self.run.timeout_s,
                startup_timeout_s=self.run.startup_timeout_s,
                before_exit=self.comm.announce_failure,
                logs=logs,
            )
            stack.callback(watch.close)
            self._stack = stack.pop_all()
        self.summary = self.journal.summary
        self.summary["backend"] = self.comm.backend
        self.summary["restarts"] = int(os.environ.get("LOCKSTEP_RESTARTS", "0"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Report the error, if any, then close everything.

        Returns:
            Whether a signal ended the run by the error: it ended a compiler, or a rank that compiled.
        """
        failure, signal = None, 0
        try:
            if error is not None:
                failure = self.backend.compiler_failure(error)
                signal = self._signal_behind(error, failure)
                if signal:
                    self.journal.interrupt(self.progress, signal, self._elapsed_s)
                else:
                    self._fail(failure or error)
        finally:
            self._stack.__exit__(kind, error, trace)
        if failure is not None and not signal:
            raise failure from error
        return signal != 0 and not isinstance(error, KeyboardInterrupt)

    # -- what the loop calls -------------------------------------------------------------------------------------------

    @property
    def spec(self) -> EnvSpec:
        """Observations and actions of the task."""
        assert self._spec is not None
        return self._spec

    def make_envs(self, num_envs: int) -> list[VectorEnv]:
        """Make the vector environment of each local shard; closed with the session.

        Args:
            num_envs: over all shards.

        Raises:
            ConfigError: `num_envs` does not divide among the shards.
        """
        return self._make_shards(num_envs, lambda size: make_vector_env(self.run.task or "", self.run.env, size))

    def make_collector(
        self,
        actor: Actor | RecurrentActor,
        sampler: Sampler,
        *,
        observation_moments: RunningMoments | None = None,
        noise_per_env: bool = False,
        with_critic: bool = False,
        report_non_finite: bool = False,
    ) -> Collector:
        """Make the collector of the run's environments on the host; see `Collector` for the arguments.

        With `report_non_finite`, the loop itself checks `Rollout.fault` and follows `Run.non_finite`; without it,
        `Collector.collect` raises `RunError` at a non-finite number.
        """
        run = self.run
        assert isinstance(run, Run)
        return Collector(
            self.world,
            self.make_envs(run.num_envs),
            actor,
            sampler,
            num_steps=run.algorithm.num_steps,
            seed=run.seed,
            timers=self.timers,
            observation_moments=observation_moments,
            noise_per_env=noise_per_env,
            with_critic=with_critic,
            report_non_finite=report_non_finite,
        )

    def check_shards(self, num_envs: int) -> int:
        """The environments of a shard; warns where shards are uneven or small.

        Raises:
            ConfigError: `num_envs` does not divide among the shards.
        """
        size = self.world.shard_size(num_envs, "num_envs")
        for warning in self.world.shard_warnings(size):
            self.journal.warn(warning)
        return size

    def _make_shards(self, num_envs: int, make: Callable[[int], SomeEnv]) -> list[SomeEnv]:
        """Make the environments of each local shard, closed with the session, by a function of their number."""
        size = self.check_shards(num_envs)
        check_agents(num_envs, self.world.num_shards, self.spec)
        envs = [make(size) for _ in self.world.shards]
        for env in envs:
            self._stack.callback(env.close)
        if unused := self.spec.unused_groups:
            choose = "env.policy_keys and env.critic_keys choose"
            self.journal.say(f"observations that no network receives: {', '.join(unused)} ({choose})")
        return envs

    def begin(
        self,
        policy: SomePolicy,
        learner: SomeLearner,
        *,
        observation_moments: RunningMoments | None = None,
        critic_moments: Mapping[str, RunningMoments] | None = None,
    ) -> None:
        """Register the policy and its algorithm; with `init_from`, load and broadcast the parameters. *Collective*.

        Args:
            policy: evaluated, and written to policy files.
            learner: checkpointed by its `shared_tensors`, into which a resumed run writes (JAX: `shared_arrays`,
                `load_shared` and, for several devices, `state`), `shard_state` and `restore_shard`. There, the names of
                the policy's tensors begin with `policy.`: `lockstep evaluate RUN --checkpoint N` reads these. Only a
                learner of the same class resumes the run. Its `FOLLOWS`, if it has that attribute, names the settings
                among `precision`, `compile`, `capture` and `non_finite` that its loop follows.
            observation_moments: normalizer of the policy's observations, if any.
            critic_moments: normalizers of what its value network learns from, by name: `critic_observations`,
                `returns`, `values`.

        Raises:
            ConfigError: the run has one of those settings that the loop does not follow.
        """
        not_followed = f"{type(learner).__name__} does not name it in FOLLOWS, the settings that its loop follows"
        check_followed(self.run, getattr(learner, "FOLLOWS", ()), not_followed)
        self.backend.share_cores(self.run, self.world, policy)
        self._policy = policy
        self._observation_moments = observation_moments
        self._critic_moments = critic_moments or {}
        self._learner = self.backend.restorable(learner, self.comm)
        self._learner_name = name_of(learner)
        if not is_of_lockstep(self._learner_name):
            self.summary["algo"] = self._learner_name
        if isinstance(run := self.run, Run):
            add_forecast(self._preflight, self._forecast(run, learner))
        self._preflight.report(self.journal)
        if self._init_from is not None:
            notes = self.backend.start_from(
                self._init_from, self.comm, policy, observation_moments, self._critic_moments, self.run, learner
            )
            for note in [*notes, *warnings_of_start_policy(self.run)]:
                self.journal.warn(note)
        if self._spec is not None:
            player = self.backend.player(policy, self.comm, observation_moments)
            self._evaluation = evaluation = Evaluation(self.run, self.comm, self._spec, player, self.journal)
            self._stack.callback(evaluation.close)

    def _forecast(self, run: Run, learner: SomeLearner) -> Callable[[Layout, float], Forecast | str]:
        return lambda layout, message_s: self.backend.forecast(run, self.comm, learner, layout, message_s)

    @contextlib.contextmanager
    def training(self, progress: Progress, source: Source) -> Generator[None]:
        """Context of the training loop: restores the checkpoint and starts the clocks, and writes the results after."""
        learner = required(self._learner, "training", "begin(policy, learner)")
        self.progress = progress
        self._source = source
        about, action = self._policy_metadata, self._spec and self._spec.action
        self._state = RunState(self.world, learner, source, self.journal, progress, about, action)
        elapsed_s = self._checkpoints.begin(self._state, progress, self._learner_name)
        before = self._checkpoints.run_before
        if before is not None:
            self.journal.judge_again(progress, self._stop_return, self._threshold(before.get("stop_return")), elapsed_s)
        self.solved = self.journal.reaches(self._stop_return) and self.run.stop_when_solved
        if before is not None and (self.progress.finished or self.solved):
            longer = ["raise total_steps" if isinstance(self.run, Run) else "raise epochs"] * progress.finished
            further = ["set stop_when_solved=false"] * self.solved
            self.journal.say(f"nothing is left to do; {' and '.join(longer + further)} to continue")
        if self._evaluation is not None and not self.over:
            self._evaluation.make_envs()
        self.timers.restart()
        self._started = time.monotonic() - elapsed_s
        self._updated = False
        if self.journal.evaluation_due:
            self.evaluate()
        yield
        self._finish()

    @property
    def over(self) -> bool:
        """Whether the loop ends: steps taken, task solved, or a signal. Equal on all ranks after the same update."""
        return self.progress.finished or self.solved or self.stopped_by != 0

    def local_statistics(self) -> np.ndarray:
        """Statistics of a rollout to sum over shards, [K, M]: episodes, returns, lengths, pending writes, signals."""
        source = required(self._source, "local_statistics()", "training(progress, source)")
        statistics = np.zeros((len(self.world.shards), NUM_STATISTICS))
        for k, episodes in enumerate(source.episodes):
            statistics[k, _EPISODES] = len(episodes.returns), episodes.returns.sum(), episodes.lengths.sum()
        statistics[0, _WRITES] = self._checkpoints.busy
        statistics[0, _SIGNALS] = self.signals.flags()
        return statistics

    def advance(self, num_steps: int, totals: np.ndarray, updates: int = 1) -> None:
        """Advance the counters, and decide from the sums over all shards whether a signal stops the run.

        Also counts the local episodes that ended, so do not call it twice for a rollout. Offline: once for a minibatch.

        Args:
            num_steps: environment steps of all ranks since the last call; offline: logged rows.
            totals: `local_statistics`, summed over all shards.
            updates: updates of the learner since the last call: one per rollout; offline: one per minibatch.
        """
        num_steps = whole(num_steps, "num_steps")
        check_totals(totals, NUM_STATISTICS)
        source = required(self._source, "advance(...)", "training(progress, source)")
        for k, episodes in enumerate(source.episodes):
            self.journal.episodes[k].add(self.progress.updates, len(episodes.returns), float(episodes.returns.sum()))
        self.progress.env_steps += num_steps
        self.progress.updates += updates
        self._new_updates = updates
        ended = totals[_EPISODES]
        self.progress.episodes += int(ended[0])
        self.journal.add_episodes(ended)
        signals = zip(WATCHED, totals[_SIGNALS], strict=True)
        self.stopped_by = max((number for number, count in signals if count), default=0)
        self._any_writes = bool(totals[_WRITES] > 0)
        self.timers.updated(self.progress.updates)
        if self._profile is not None:
            self.timers.enter(OTHER)  # writing the profile may take seconds
            self._say_if(self._profile.advance(updates))
        if not self._updated:
            self._updated = True
            self.summary["startup_s"] = seconds_since_process_start()
            assert self._state is not None
            ranks = len(self.backend.devices(self.comm))
            check_different(self.comm.gather_object, self._state.fingerprints(ranks), "first_rollout")

    def log_evaluate_checkpoint(self, num_steps: int, read: Callable[[], dict[str, float]]) -> None:
        """After an update of `num_steps` global steps: log, evaluate and write a checkpoint, each when due.

        Args:
            num_steps: environment steps of all ranks since the last call; offline: logged rows.
            read: returns the metrics since the last log line, and resets them.
        """
        if self._log_due(num_steps):
            self.log(metrics_of(read))
        if self.progress.due(self.run.evaluate_every, num_steps):
            self.evaluate()
        self.checkpoint_if_due(num_steps)

    def _log_due(self, num_steps: int) -> bool:
        """Whether the last `num_steps` global steps end with a line of metrics; equal on all ranks."""
        return self.progress.due(self.run.log_every, num_steps)

    def log(self, metrics: dict[str, float]) -> None:
        """Write one line of metrics; one message."""
        required(self._started, "log(metrics)", "training(progress, source)")
        bad = [name for name, value in metrics.items() if not np.isfinite(value)]
        if bad:
            raise RunError(
                f"{bad[0]} is no longer finite at step {self.progress.env_steps}; a smaller learning_rate may help"
            )
        peak = max((used or 0 for used in self.backend.peak_memory(self.comm)), default=0)
        rows = self.journal.rows(self.timers.read(), self._elapsed_s, peak)
        spread = np.zeros((len(rows), self.world.num_shards, rows.shape[1]))
        for k, shard in enumerate(self.world.shards):
            spread[k, shard] = rows[k]
        total = self.comm.sum_statistics(spread.reshape(len(rows), -1), "log")
        self.journal.log(self.progress, metrics, total.reshape(self.world.num_shards, -1))

    def evaluate(self) -> None:
        """Run the evaluation episodes, if there is a task; stop all ranks if they solve it; *collective*.

        A signal interrupts the evaluation, as games are long; the resumed run starts with it.
        """
        required(self._started, "evaluate()", "training(progress, source)")
        if self._evaluation is None:
            return
        previous = self.timers.enter(EVALUATE)
        try:
            episodes = self._evaluation.play(self.progress.env_steps, heartbeat=self._heartbeat)
        except EvaluationStopped as stopped:
            self.journal.evaluation_due = True
            self.stopped_by = stopped.signal
            self.timers.enter(previous)
            return
        best = self.journal.record_evaluation(
            self.progress, episodes.returns, episodes.lengths, self._stop_return, self._elapsed_s
        )
        self.timers.enter(CHECKPOINT)
        if best:
            found = EvaluationResult(self.progress.env_steps, self.summary["eval_return_mean"])
            saved = self.world.rank != 0 or self.journal.write_or_warn(lambda: self._save(BEST_POLICY_FILE, found))
            if self.comm.any(not saved, "evaluate"):
                self.journal.withdraw_best()
        self.timers.enter(previous)
        self.solved = self.journal.reaches(self._stop_return) and self.run.stop_when_solved
        if best:
            self._checkpoints.request()

    def checkpoint_if_due(self, num_steps: int) -> None:
        """After an update of `num_steps` global steps: check that ranks agree and write a checkpoint, when due."""
        new_updates = required(self._new_updates, "log_evaluate_checkpoint(...)", "advance(num_steps, totals)")
        if self.progress.updates % self.run.check_every < new_updates:
            self._check_in_sync()
        self._checkpoints.take_if_due(num_steps, self._elapsed_s, any_busy=self._any_writes)

    def checkpoint_last(self, read: Callable[[], dict[str, float]]) -> None:
        """After the loop: evaluate, write the final checkpoint, then log the metrics since the last line, if any."""
        required(self._started, "checkpoint_last(read)", "training(progress, source)")
        if not self.stopped_by and self.journal.evaluated_at != self.progress.env_steps:
            self.evaluate()
        self._checkpoints.checkpoint_last(self._elapsed_s)
        if self.journal.logged_at != self.progress.env_steps:
            self.log(metrics_of(read))

    # -- the end -------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """After the last update: check that ranks agree, write policy and summary."""
        if self._profile is not None:
            self._say_if(self._profile.end())
        wall = self._elapsed_s
        self._check_in_sync()
        assert self._state is not None
        phases = {"phases_s": self.timers.read()}
        devices, peaks = self.backend.devices(self.comm), self.backend.peak_memory(self.comm)
        local = self._state.rank_summaries(self.backend.parameters(self._policy), devices, peaks)
        gathered: list[list[dict[str, Any]]] = self.comm.gather_object([rank | phases for rank in local], "summary")
        ranks = [rank for process in gathered for rank in process]
        ended = "finished" if self.summary["solved_at_step"] is None else "solved"
        if self.world.rank == 0:
            self._save(POLICY_FILE)
        self.journal.finish(self.progress, "interrupted" if self.stopped_by else ended, self.stopped_by, wall, ranks)

    @property
    def _elapsed_s(self) -> float:
        """Seconds of training, including those before a resumed start; 0 before it starts."""
        return 0.0 if self._started is None else time.monotonic() - self._started

    def _threshold(self, stop_return: float | None) -> float | None:
        """The return that solves the task, by this setting."""
        of_task = self.spec.reward_threshold if isinstance(self.run, Run) else None
        return of_task if stop_return is None else stop_return

    @property
    def _policy_metadata(self) -> dict[str, Any] | None:
        """The metadata of the policy file, for checkpoints; None where the config of the run tells all of it."""
        return None

    def _heartbeat(self) -> None:
        self.timers.enter(EVALUATE)
        if self.signals.received is not None:
            raise EvaluationStopped(self.signals.received[1])

    def _check_in_sync(self) -> None:
        assert self._state is not None
        self.comm.check_equal(self._state.tensors())

    def _save(self, name: str, evaluation: EvaluationResult | None = None) -> None:
        path = self.journal.path / name
        moments = self._observation_moments, self._critic_moments
        self.backend.save(path, self._policy, *moments, self.run, evaluation)

    def _signal_behind(self, error: BaseException, failure: RunError | None) -> int:
        """The signal that this rank received and that ended the run by an error; 0 for none.

        The terminal, or a scheduler, signals the processes of a compiler as well, before ranks can agree to stop; the
        ranks that wait for one which compiled then only see it end.
        """
        received = self.signals.received
        lost = isinstance(error, PeerError) and not self._updated
        if received is None or not (failure is not None or lost or isinstance(error, KeyboardInterrupt)):
            return 0
        return received[1]

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, PeerError):
            time.sleep(PEER_DELAY_S)
        message = str(error) if isinstance(error, RunError | ConfigError) else f"{type(error).__name__}: {error}"
        rank: int | None = getattr(error, "rank", None)
        tensors = self._state.tensors() if self._state and isinstance(error, MismatchError) else {}
        self.backend.dump_error(error, self.journal.path, self.comm, tensors)
        code = error.exit_code if isinstance(error, ConfigError) else 1
        self.journal.fail(self.world.rank if rank is None else rank, message, self.progress, self._elapsed_s, code)

    def _open_profile(self) -> Profile | None:
        if self._profiled_updates is None or not isinstance(self.timers, RecordedTimers):
            return None
        world = self.world
        done_steps = self._resumed.step or 0 if self._resumed is not None else 0
        first = updates_before_learning(self.run, done_steps) + WARMUP_UPDATES
        return Profile(
            range(first, first + self._profiled_updates),
            self.timers,
            self.backend.tracer(self.comm),
            self.comm.gather_object,
            name=f"rank {world.rank}" if self.run.devices_per_process == 1 else f"process {world.rank}",
            file=self.journal.path / PROFILE_FILE,
            is_writer=world.rank == 0,
        )

    def _say_if(self, line: str | None) -> None:
        if line is not None:
            self.journal.say(line)
