"""Optuna chooses the settings of a sweep, and ends trials early; its storage is `optuna.db`, SQLite.

TPE (Bergstra et al., 2011) proposes settings from the scores of the trials before, the interquartile means over seeds.
The median pruner compares the best evaluated return of a trial so far with the returns of complete trials at the same
step; the first run of a trial that reaches a step counts.
"""

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lockstep.cli.sweep.space import Range
from lockstep.cli.sweep.sweep_file import Sweep
from lockstep.cli.sweep.trial import Status, Trial, numbered_name
from lockstep.data.packages import import_optional
from lockstep.errors import ConfigError
from lockstep.record.score_statistics import interquartile_mean

STORAGE_FILE = "optuna.db"
_STUDY = "lockstep"


class OptunaTrials:
    """Trials of an Optuna study. Those of an earlier start come first; unfinished ones of them continue."""

    def __init__(self, sweep: Sweep, folder: Path) -> None:
        optuna = import_optional("optuna", "sweep", "sampler=optuna")
        self._optuna = optuna
        self._space = sweep.settings
        self._count = sweep.trials or 0
        self._prunes = sweep.prune and "/" not in sweep.metric
        self._distributions = {name: _distribution(optuna, choice) for name, choice in sweep.settings.items()}
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        if not (folder / STORAGE_FILE).exists():  # before Optuna makes an empty one
            _check_trials_are_known(folder, ())
        storage = f"sqlite:///{(folder / STORAGE_FILE).absolute()}"
        self._study = optuna.create_study(
            study_name=_STUDY, storage=storage, direction=sweep.direction, load_if_exists=True
        )
        earlier = self._study.trials
        _check_trials_are_known(folder, earlier)
        self._check_same_space(sweep.direction, earlier)
        # A sampler that starts again with the same seed would repeat its first random draws.
        seed = sweep.sampler_seed + len(earlier)
        self._study.sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        self._study.pruner = optuna.pruners.MedianPruner() if sweep.prune else optuna.pruners.NopPruner()
        self._earlier = deque[Any](earlier)
        self._known = [self._trial(one) for one in earlier if self._has_all_settings(one)]
        self._open: dict[Trial, Any] = {}
        self._reported: dict[Trial, set[int]] = {}

    def _check_same_space(self, direction: str, earlier: Sequence[Any]) -> None:
        """Raise `ConfigError` if trials of an earlier start were chosen from other lists, or for another direction."""
        categorical = self._optuna.distributions.CategoricalDistribution
        changed = ["direction"] if self._study.direction.name.lower() != direction else []
        for name, before in dict.fromkeys(pair for trial in earlier for pair in trial.distributions.items()):
            now = self._distributions.get(name)
            if before != now and (isinstance(before, categorical) or isinstance(now, categorical)):
                changed.append(f"settings.{name}")
        if changed:
            raise ConfigError(
                f"{changed[0]} of the sweep has changed since its first trials, and Optuna cannot continue with them; "
                "choose another directory with --run-dir"
            )

    def known(self) -> list[Trial]:
        """The trials of earlier starts."""
        return self._known

    def next(self) -> Trial | None:
        """The next trial of an earlier start, else a new one; None if there are enough."""
        while self._earlier:
            found = self._earlier.popleft()
            if not self._has_all_settings(found):
                self._tell(found.number, state="FAIL")
                continue
            trial = self._trial(found)
            if not found.state.is_finished():
                self._open[trial] = self._optuna.trial.Trial(self._study, found._trial_id)
                self._reported[trial] = set(found.intermediate_values)
            return trial
        if len(self._study.get_trials(deepcopy=False)) >= self._count:
            return None
        asked = self._study.ask(self._distributions)
        trial = self._trial(asked)
        self._open[trial], self._reported[trial] = asked, set()
        return trial

    def should_prune(self, trial: Trial, step: int, value: float) -> bool:
        """Report an evaluation; returns whether the best of the trial is worse than the median of complete ones.

        Not again at a step that is known, and not if an earlier start reported the end of the trial.
        """
        if not self._prunes or trial not in self._open or step in self._reported[trial]:
            return False
        self._reported[trial].add(step)
        self._open[trial].report(value, step)
        return bool(self._open[trial].should_prune())

    def complete(self, trial: Trial, scores: Sequence[float], status: Status) -> None:
        """Report the end of a trial, unless an earlier start did."""
        found = self._open.pop(trial, None)
        if found is None:
            return
        if status == "done":
            self._study.tell(found, float(interquartile_mean(scores)))
        else:
            self._tell(found, state="PRUNED" if status == "pruned" else "FAIL")

    def _tell(self, trial: Any, state: str) -> None:
        states = self._optuna.trial.TrialState
        self._study.tell(trial, state=states[state], skip_if_finished=True)

    def _has_all_settings(self, found: Any) -> bool:
        """Whether a trial of an earlier start has all its settings: its proposal was not cut short."""
        return set(found.params) == set(self._distributions)

    def _trial(self, found: Any) -> Trial:
        return Trial(numbered_name(found.number), self._values(found.params))

    def _values(self, params: dict[str, Any]) -> dict[str, Any]:
        """The settings, in the order of the sweep file; choices are stored by their position."""
        values: dict[str, Any] = {}
        for name, choice in self._space.items():
            values[name] = params[name] if isinstance(choice, Range) else choice[params[name]]
        return values


def _check_trials_are_known(folder: Path, earlier: Sequence[Any]) -> None:
    """Raise `ConfigError` for a trial in the folder that the study lacks: a new one of its number would get its runs.

    The study is gone, or an older copy of it was put back.
    """
    known = {numbered_name(trial.number) for trial in earlier}
    found = {path.name for where in (folder, folder / "configs") for path in where.glob("trial_*")}
    if unknown := sorted(found - known):
        raise ConfigError(
            f"{folder} has {unknown[0]}, which {STORAGE_FILE}, the file of its Optuna study, does not have; put that "
            "file back, or choose another directory with --run-dir"
        )


def _distribution(optuna: Any, choice: tuple[Any, ...] | Range) -> Any:
    """Optuna's form of a list or a range. Items of a list are stored by position: they may be lists themselves."""
    if not isinstance(choice, Range):
        return optuna.distributions.CategoricalDistribution(range(len(choice)))
    if choice.whole:
        step = 1 if choice.step is None else int(choice.step)
        return optuna.distributions.IntDistribution(int(choice.low), int(choice.high), log=choice.log, step=step)
    return optuna.distributions.FloatDistribution(choice.low, choice.high, log=choice.log, step=choice.step)
