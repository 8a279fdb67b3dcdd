"""The session of a run on logged data: the data, estimates from the log, and the export of the finished policy."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from lockstep.algorithms.offline import OfflineDQNConfig
from lockstep.data.dataset import Dataset
from lockstep.data.layout import Layout, determine_layout
from lockstep.data.reader import Reader
from lockstep.distributed.timers import CHECKPOINT, EVALUATE
from lockstep.errors import ConfigError
from lockstep.estimators.result import ESTIMATES_FILE, Estimates
from lockstep.record.progress import Progress
from lockstep.run import OfflineRun
from lockstep.session.backend import Backend, SomeComm, SomeLearner, SomePolicy
from lockstep.session.data_checks import check_data
from lockstep.session.offline.data_notes import overlap_note, time_note
from lockstep.session.offline.estimate import estimate
from lockstep.session.offline.evaluator import Scorer
from lockstep.session.offline.policy_spec import OfflinePolicySpec, check_simulator
from lockstep.session.session import BaseSession
from lockstep.system.files import shown_path, write_atomically
from lockstep.world import World


class OfflineBackend(Backend[SomeComm, SomePolicy, SomeLearner], Protocol):
    """What a run on logged data needs of a framework beyond `Backend`."""

    def scorer(self, policy: SomePolicy, run: OfflineRun, comm: SomeComm) -> Scorer:
        """The policy with its models, always with the newest parameters."""
        ...

    def export(self, policy: SomePolicy, dataset: Dataset, folder: Path) -> Sequence[str]:
        """Write the finished policy for use without Lockstep; returns one line for the user about each file."""
        ...


class OfflineSession(BaseSession[OfflineRun, SomeComm, SomePolicy, SomeLearner]):
    """One run on logged data on this rank, as a context manager. All methods are collective.

    Args:
        backend: the framework.
        run: the config.
        world: the ranks; default: from the launcher's environment variables.
        options: the other arguments of `BaseSession`.

    Attributes:
        dataset: the training data, after `open_data`.
        policy_spec: everything about the policy but its parameters, after `open_data`.
    """

    dataset: Dataset
    policy_spec: OfflinePolicySpec
    _eval_dataset: Dataset
    _eval_layout: Layout
    _eval_data_overlaps: bool

    def __init__(
        self,
        backend: OfflineBackend[SomeComm, SomePolicy, SomeLearner],
        run: OfflineRun,
        world: World | None = None,
        **options: Any,
    ) -> None:
        self.backend = self._offline_backend = backend
        super().__init__(run, world, **options)

    def open_data(self) -> Reader:
        """Open the data and divide its rows among all ranks.

        Raises:
            ConfigError: on all ranks, if a rank cannot read its data, or the data do not fit the run or each other.
        """
        run, problem, restricted = self.run, "", False
        try:
            self.dataset, self._eval_dataset = check_data(run, verify=self.world.local_rank == 0)
            self.policy_spec = OfflinePolicySpec.of_run(run, self.dataset, self._spec)
            check_simulator(self.policy_spec, run.task or "")
            restricted = self.dataset.info.restricts_actions
        except ConfigError as error:
            problem = str(error)
        gathered: list[tuple[str, bool]] = self.comm.gather_object((problem, restricted), "data")
        if problems := [text for text, _ in gathered if text]:
            raise ConfigError(problems[0])
        if any(some for _, some in gathered) and not restricted:  # nodes may hold parts of a log
            self.policy_spec = replace(
                self.policy_spec, info=replace(self.policy_spec.info, has_impossible_actions=True)
            )
        layout = determine_layout(self.dataset, self.comm.gather_object, self.world, run.data_layout)
        # The data for estimates are compared now: an error at the first estimate would lose the training before it.
        self._eval_layout = layout
        if run.eval_data is not None:
            self._eval_layout = determine_layout(self._eval_dataset, self.comm.gather_object, self.world)
        info = self.dataset.info
        words = f"{info.num_rows} rows of {info.num_trajectories} trajectories"
        self.journal.say("; ".join(filter(None, (words, layout.description))))
        config = run.algorithm
        n_step = config.n_step if isinstance(config, OfflineDQNConfig) else 1
        counts = {"batch_size": config.batch_size, "epochs": run.epochs, "n_step": n_step, "seed": run.seed}
        reader = Reader(self.dataset, self.world, layout, **counts, gamma=config.gamma)
        for warning in reader.warnings:
            self.journal.warn(warning)
        self._eval_data_overlaps = run.eval_data is None
        if self.world.rank == 0:
            self._warn_of_data()
        self._estimate_every = run.estimate_every and run.estimate_every * reader.rows_per_epoch
        self._estimates: Estimates | None = None
        self._estimated_at = -1  # the step of the last estimate of this start: a checkpoint keeps none
        self.summary |= {"data": run.data, "rows": reader.rows_per_epoch, "estimates": None}
        return reader

    def _warn_of_data(self) -> None:
        """Say what is suspicious about the data; rank 0 alone, for all read the same, or parts of the same."""
        if note := time_note(self.run, self.dataset):
            self.journal.warn(note)
        if self.run.eval_data is not None and (note := overlap_note(self.dataset, self._eval_dataset)):
            self._eval_data_overlaps = True
            self.journal.warn(note)

    def estimate_due(self, progress: Progress, rows: int) -> bool:
        """Whether the last `rows` rows ended a period of `estimate_every` epochs, or the run."""
        return progress.finished or progress.due(self._estimate_every, rows)

    def estimate(self) -> None:
        """Estimate the current policy from the log; the line of metrics at this step has the result."""
        previous = self.timers.enter(EVALUATE)
        scorer = self._offline_backend.scorer(self._policy, self.run, self.comm)
        found = estimate(
            scorer,
            self._eval_dataset,
            self.comm,
            self.run,
            layout=self._eval_layout,
            heartbeat=lambda: self.timers.enter(EVALUATE),
        )
        self.journal.estimates, self._estimates = found.metrics(), found
        self._estimated_at = self.progress.env_steps
        self.summary["estimates"] = found.to_dict()
        if self.world.rank == 0:
            text = json.dumps({"step": self.progress.env_steps, **found.to_dict()}, indent=2) + "\n"
            self.journal.write_or_warn(lambda: write_atomically(self.journal.path / ESTIMATES_FILE, text))
        self.timers.enter(previous)

    def _log_due(self, num_steps: int) -> bool:
        """Each estimate has a line of its own, however rare lines are: the next estimate would replace it."""
        return super()._log_due(num_steps) or self.progress.due(self._estimate_every, num_steps)

    @property
    def _policy_metadata(self) -> dict[str, Any]:
        return self.policy_spec.to_dict()  # the features of its data are in no config

    def _finish(self) -> None:
        if self._estimated_at != self.progress.env_steps and not self.stopped_by:
            self.estimate()  # an evaluation in the simulator ended the run, or it had been finished before
        super()._finish()
        if self.stopped_by:
            return
        if self.run.model_path is not None and self.world.rank == 0:
            self.timers.enter(CHECKPOINT)
            for line in self._offline_backend.export(self._policy, self.dataset, Path(self.run.model_path)):
                self.journal.say(line)
        if self._estimates is not None:
            self.journal.say(self._estimates.line())
        run = shlex.quote(shown_path(self.journal.path))
        rows, data = (" on held-out rows", " --data DIR") if self._eval_data_overlaps else ("", "")
        self.journal.say(f"evaluate the policy{rows}: lockstep offline evaluate {run}{data}")
        self.journal.say(f"export it to one file that runs without Lockstep: lockstep export {run}")
