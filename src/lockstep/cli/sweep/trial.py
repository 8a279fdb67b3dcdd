"""One combination of settings (a trial), its runs (one per seed), and where trials come from."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, cast

from lockstep.config.settings import short_names

_LONGEST_NAME = 100

Status = Literal["queued", "running", "done", "failed", "pruned", "interrupted"]


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """A combination of settings, in Optuna's word; its runs differ in the seed."""

    name: str
    """Its directory within that of the sweep; empty where there is only one trial."""
    settings: Mapping[str, Any]


@dataclass(slots=True, eq=False)
class SweepRun:
    """One run of a sweep."""

    trial: Trial
    seed: int
    name: str
    """`TRIAL/seed_S`, its path within the directory of the sweep."""
    path: Path
    """The run directory."""
    total_steps: int | None = None
    """Environment steps of the run, if its config has them."""
    has_replay: bool = False
    """Whether the run fills a replay before it learns."""
    status: Status = "queued"
    reason: str | None = None
    """Why it failed."""


class TrialSource(Protocol):
    """Chooses the trials of a sweep, and may end some early."""

    def known(self) -> list[Trial]:
        """The trials that are known now, whether or not `next` has returned them."""
        ...

    def next(self) -> Trial | None:
        """The next trial; None if there is no other."""
        ...

    def should_prune(self, trial: Trial, step: int, value: float) -> bool:
        """Record that a run of a trial had the mean return `value` in the evaluation at `step`.

        Returns:
            Whether to end the runs of the trial that have not ended.
        """
        ...

    def complete(self, trial: Trial, scores: Sequence[float], status: Status) -> None:
        """Record the end of a trial: the scores of its runs, and `done`, `failed` or `pruned`."""
        ...


class ListedTrials:
    """Trials that are known from the start: a grid, or random draws."""

    def __init__(self, combinations: Iterable[Mapping[str, Any]], *, numbered: bool) -> None:
        listed = list(combinations)
        self.trials = [
            Trial(numbered_name(number) if numbered else settings_name(settings), settings)
            for number, settings in enumerate(listed)
        ]
        self._left = iter(self.trials)

    def known(self) -> list[Trial]:
        """All trials."""
        return self.trials

    def next(self) -> Trial | None:
        """The next trial; None if there is no other."""
        return next(self._left, None)

    def should_prune(self, trial: Trial, step: int, value: float) -> bool:
        """No trial is ended early."""
        return False

    def complete(self, trial: Trial, scores: Sequence[float], status: Status) -> None:
        """No trial depends on earlier ones."""


def numbered_name(number: int) -> str:
    """`trial_007`."""
    return f"trial_{number:03d}"


def settings_name(settings: Mapping[str, Any]) -> str:
    """A directory name that tells the settings: `learning_rate=0.001,num_steps=64`."""
    names = short_names(list(settings))
    exact = ",".join(f"{name}={_shown(value)}" for name, value in zip(names, settings.values(), strict=True))
    name = re.sub(r"[^A-Za-z0-9._=,+-]", "-", exact)
    if name == exact and len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.blake2b(exact.encode(), digest_size=4).hexdigest()
    return f"{name[:_LONGEST_NAME]}-{digest}"


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "x".join(_shown(item) for item in cast(Sequence[Any], value))
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), default=str)
