"""The sweep file: which settings are tried, with which seeds, by which sampler."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, cast

from lockstep.algorithms import offline
from lockstep.cli.parser import did_you_mean
from lockstep.cli.sweep.space import Space, parse_space
from lockstep.config import settings
from lockstep.distributed.timers import PHASES
from lockstep.errors import ConfigError
from lockstep.estimators import result
from lockstep.launch.flags import number
from lockstep.run import AnyRun, Run
from lockstep.system.files import read_text

Sampler = Literal["grid", "random", "optuna"]
_RETURNS = ("last_return", "best_return")
_OFFLINE = (*offline.METRICS, *result.METRICS)
_OF_EVERY_RUN = (
    *(f"episode/{name}" for name in ("return_mean", "length_mean", "count", "return_mean_100")),
    *("progress/updates", "progress/episodes", "time/steps_per_second"),
    *(f"time/{phase}_{unit}" for phase in PHASES for unit in ("s", "s_max")),
)
_LIMIT = 10_000
"""Largest number of seeds of one `first:end`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The content of a sweep file."""

    train: str = ""
    """Arguments of `lockstep train` that all runs share."""
    seeds: tuple[int, ...] = (0,)
    """Every combination of settings is trained with each of these."""
    settings: Space = field(default_factory=dict[str, Any])
    """The search space: by setting, a list of values, or a range for `random` and `optuna`."""
    sampler: Sampler = "grid"
    """`grid`: every combination; `random`: independent draws; `optuna`: TPE, with pruning."""
    trials: int | None = None
    """Number of combinations that `random` and `optuna` try."""
    sampler_seed: int = 0
    """Seed of the draws, from 0 to 2^31 - 1."""
    metric: str = "last_return"
    """The score of a run: `last_return`, `best_return`, or the last value of a metric of `metrics.jsonl`."""
    direction: Literal["maximize", "minimize"] = "maximize"
    """Whether a large or a small score is good."""
    prune: bool = True
    """`optuna` only: end runs whose best evaluation so far is below the median of complete trials at that step."""
    directory: str | None = None
    """Where relative paths of `train` start; default: the working directory."""

    def __post_init__(self) -> None:
        """Check what cannot be checked setting by setting."""
        if not 0 <= self.sampler_seed < 2**31:
            raise ConfigError(f"sampler_seed={self.sampler_seed} must be from 0 to {2**31 - 1}")
        if self.sampler == "grid":
            ranges = [name for name, choice in self.settings.items() if not isinstance(choice, tuple)]
            if ranges:
                raise ConfigError(
                    f"settings.{ranges[0]} is a range, and sampler=grid needs a list of values; give one, or choose "
                    "sampler: random or optuna"
                )
            if self.trials is not None:
                raise ConfigError(f"trials={self.trials} is for sampler random or optuna; grid tries every combination")
        elif not self.settings:
            raise ConfigError(f"sampler={self.sampler} needs settings to choose from; list them under settings")
        elif self.trials is None:
            raise ConfigError(f"sampler={self.sampler} needs the number of trials; write trials: 20, or --trials 20")

    @property
    def words(self) -> list[str]:
        """The arguments of `lockstep train`."""
        try:
            return shlex.split(self.train)
        except ValueError as error:
            raise ConfigError(f"train={self.train!r} cannot be split into arguments ({error})") from None


def load_sweep(path: Path, changes: Mapping[str, Any]) -> Sweep:
    """Read a sweep file; `changes` that are not None replace its entries.

    Raises:
        ConfigError: the file cannot be read, or an entry is unknown or has the wrong type.
    """
    data = settings.parse(read_text(path), str(path))
    if not isinstance(data, Mapping):
        raise ConfigError(f"{path} must be a mapping with train, seeds and settings; docs/sweeps.md describes it")
    given = {name: value for name, value in changes.items() if value is not None}
    try:
        return parse_sweep({**cast(Mapping[str, Any], data), **given})
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def parse_sweep(data: Mapping[str, Any]) -> Sweep:
    """The sweep that a mapping describes."""
    known = settings.hints_of(Sweep())
    unknown = [name for name in data if name not in known]
    if unknown:
        raise ConfigError(f"unknown entry {unknown[0]}; a sweep has {', '.join(known)}")
    values = dict(data)
    for name in known:
        if name in values and name not in ("seeds", "settings"):
            values[name] = settings.converted(name, values[name], known[name])
    if "seeds" in values:
        values["seeds"] = parse_seeds(values["seeds"])
    values["settings"] = parse_space(values.get("settings") or {})
    trials = values.get("trials")
    if trials is not None and trials < 1:
        raise ConfigError(f"trials={trials} must be at least 1")
    return Sweep(**values)


def dump_sweep(sweep: Sweep) -> str:
    """The sweep as YAML, without entries that have their default."""
    default = Sweep()
    tree = {item.name: getattr(sweep, item.name) for item in fields(sweep)}
    changed = {name: value for name, value in tree.items() if value != getattr(default, name)}
    return settings.to_yaml(settings.plain(changed))


def parse_seeds(value: Any, name: str = "seeds") -> tuple[int, ...]:
    """Seeds from a list of numbers, one number, or text: `0:5` (0 to 4), `0,3,7`, `0:3,10`.

    Raises:
        ConfigError: there is none, one is no whole number of at least 0, or one occurs twice.
    """
    parts = cast(list[Any], value) if isinstance(value, list) else str(value).split(",")
    seeds = list[int]()
    for part in parts:
        first, colon, last = str(part).strip().partition(":")
        begin = number(first or ("0" if colon else ""), name, "a number, first:end or a list of them", least=0)
        end = number(last, name, "a number, first:end or a list of them", least=0) if colon else begin + 1
        if end <= begin or end - begin > _LIMIT:
            raise ConfigError(f"{name} {value}: {part} must be first:end with 1 to {_LIMIT} seeds; 0:5 is 0 to 4")
        seeds += range(begin, end)
    repeated = [seed for seed in seeds if seeds.count(seed) > 1] if len(set(seeds)) < len(seeds) else []
    if not seeds:
        raise ConfigError(f"{name} {value} is empty; give at least one, such as 0:5 for 0 to 4")
    if repeated:
        raise ConfigError(f"{name} {value}: seed {repeated[0]} occurs twice; the same seed gives the same run")
    return tuple(seeds)


def check_metric(metric: str, run: AnyRun) -> None:
    """Raise `ConfigError` if `metric` is no score that `run` could have."""
    known = metric_names(run)
    if metric in (*_RETURNS, *known):
        return
    raise ConfigError(
        f"metric={metric} must be {', '.join(_RETURNS)}, or a metric of a run with algo={run.algo}; "
        f"{did_you_mean(get_close_matches(metric, [*_RETURNS, *known])) or 'docs/metrics.md has their names'}"
    )


def metric_names(run: AnyRun) -> tuple[str, ...]:
    """The names that `metrics.jsonl` of a run may have."""
    own = import_module(f"lockstep.algorithms.{run.algo}").METRICS if isinstance(run, Run) else _OFFLINE
    return (*own, *_OF_EVERY_RUN)
