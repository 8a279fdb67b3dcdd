"""From logs to prepared data, in bounded memory.

The first pass reads the log, writes its rows to the disk by ranges of trajectories, and collects names, end marks and a
sample of the features. The second pass reads one range at a time, orders it, adds next states and actions
(`lockstep.data.preparation.next_rows`), normalizes and writes it. Rows of the result are ordered by the hash of their
trajectory and then by sequence number, independent of the order of the log and of the memory limit.

A trajectory has to fit into memory, and so do the names of features and of discrete actions.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.config import settings
from lockstep.data.dataset_files import (
    ACTION_FEATURES,
    DESCRIPTION,
    STATE_FEATURES,
    check_file,
    quick_to_verify,
    read_description,
)
from lockstep.data.dataset_writer import DatasetWriter, check_output
from lockstep.data.feature_file import load_features
from lockstep.data.features import Features, ordered
from lockstep.data.formulas import LARGEST
from lockstep.data.preparation.identify import CONTINUOUS, NormParams, bounded, exceeds, identify
from lockstep.data.preparation.passes import Preparation, scan_log
from lockstep.data.preparation.progress import Report
from lockstep.data.preparation.scan import FeatureSample, merge_samples
from lockstep.data.preparation.scratch import check_space, locked, remove_leftovers, scratch
from lockstep.errors import ConfigError

if TYPE_CHECKING:
    from lockstep.data.logs.format import Log

__all__ = ["FeatureSample", "PrepareOptions", "identify_features", "prepare_dataset", "sample_features"]

MEMORY = 1 << 30
"""Default for the approximate size of rows and their copies in memory, in bytes."""
_VERSION = 7
"""Version of the arithmetic: data of another version is prepared again."""

Show = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareOptions:
    """Options that determine the prepared rows."""

    kind: str | None = None
    """`discrete`, `parametric` or `continuous`; `None`: found from the log."""
    actions: tuple[str, ...] | None = None
    """Names of discrete actions, in the order of their indices; `None`: those that occur."""
    actions_given: bool = True
    """Whether `actions` are in the order of indices. False: other prepared data found them in a log, and sorted them;
    numbers in a log are names there, as without `actions`."""
    columns: Mapping[str, Any] | None = None
    """Names of the columns in the log, by the names of the schema."""
    max_episode_steps: int | None = None
    """Step limit of an episode; the end of an episode of this length is a truncation, unless the log marks it."""
    state_features: Path | None = None
    """A file with the normalization of states; `None`: identified from the log."""
    action_features: Path | None = None
    """A file with the normalization of actions, unless they are discrete."""
    metrics: tuple[str, ...] | None = None
    """Metrics that the log must have, those of the data of `--like`; `None`: any."""
    norm: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Overrides of `lockstep.data.preparation.identify.NormParams`."""

    def __post_init__(self) -> None:
        """Check all options."""
        if self.max_episode_steps is not None and self.max_episode_steps < 1:
            raise ConfigError(f"max_episode_steps={self.max_episode_steps} must be at least 1")
        self.norm_params()

    def norm_params(self, *, continuous: bool = False) -> NormParams:
        """Settings for identifying types; their defaults depend on whether actions are continuous."""
        defaults = CONTINUOUS if continuous else NormParams()
        return settings.override(defaults, dict(self.norm))

    def plain(self) -> dict[str, Any]:
        """Plain values for `dataset.json`; equal options give equal rows of one log."""
        files = {"state_features": self.state_features, "action_features": self.action_features}
        digests = {name: None if file is None else _given_features(file).digest for name, file in files.items()}
        same: dict[str, Any] = {"kind": self.kind, "actions": self.actions, "columns": self.columns}
        given: dict[str, Any] = settings.plain(self.norm_params())
        norm = {name: given[name] for name in dict.fromkeys(name.partition(".")[0] for name in self.norm)}
        if self.actions is not None and not self.actions_given:
            same["actions_given"] = False
        return settings.plain(same | {"max_episode_steps": self.max_episode_steps} | digests) | {"norm": norm}


def prepare_dataset(
    paths: Sequence[Path],
    out: Path,
    options: PrepareOptions,
    *,
    memory: int = MEMORY,
    replace: bool = True,
    show: Show = print,
    progress: Report | None = None,
) -> Path:
    """Prepare logs, unless `out` already holds the result; returns `out`, or where that link points.

    May be called concurrently on one machine.

    Args:
        paths: files, folders and Minari datasets.
        out: directory for the prepared data, or a link to one.
        options: that determine the rows.
        memory: approximate limit for rows in memory, in bytes.
        replace: replace other prepared data in `out`.
        show: displays a line to the user.
        progress: called several times a second.

    Raises:
        ConfigError: the log is invalid, or `out` holds other files, or is a mount point.
        RunError: the disk has too little space.
    """
    log = _opened(paths, options)
    if out.name in ("", "..") or out.is_symlink():
        out = out.resolve()  # a link stays: the result, and what is written before it, are on the disk it points to
    rules = options.plain()
    about = {"version": _VERSION, "sources": [_source(path) for path in log.paths], "options": rules}
    with locked(out, show):
        remove_leftovers(out)
        same, damaged = _found(out, about)
        if same and not damaged:
            show(f"{out} is prepared already")
            return out
        replace = replace or same
        check_output(out, replace=replace)
        if damaged:
            show(f"{out} is damaged and prepared again")
        with scratch(out) as directory:
            scan = scan_log(log, directory, options.norm_params().num_samples, memory, progress)
            features = _features(scan.features(), options, show)
            job = Preparation(scan, log, options.max_episode_steps, options.actions, features)
            _check_metrics(job.schema.metrics, options.metrics, log.paths[0])
            check_space(directory, scan.num_rows * job.row_bytes)
            with DatasetWriter(out, job.schema.kind, job.schema.sizes, replace=replace) as writer:
                job.write(writer, memory, progress)
                info = job.info(rules)
                writer.finish(info, *features, check=job.check_rows(), about=about)
            for line in (*log.notes, *job.messages(job.first_left_out)):
                show(line)
    return out


def _found(out: Path, about: Mapping[str, Any]) -> tuple[bool, bool]:
    """Whether `out` is the result of the same preparation, and whether that or its description is damaged.

    Edited features are no damage: the run that would use them refuses them, and names the way to prepare with them.
    """
    if not (out / DESCRIPTION).exists():
        return False, False
    try:
        description = read_description(out)
    except ConfigError:
        return False, True
    if description["about"] != about:
        return False, False
    verify = quick_to_verify(out)
    try:
        for name, file in description["files"].items():
            if name not in (STATE_FEATURES, ACTION_FEATURES):
                check_file(out, name, file, verify=verify)
    except ConfigError:
        return True, True
    return True, False


def sample_features(paths: Sequence[Path], options: PrepareOptions, progress: Report | None = None) -> FeatureSample:
    """A sample of the logs of one node, to identify features from."""
    log = _opened(paths, options)
    return scan_log(log, None, options.norm_params().num_samples, 0, progress).features()


def identify_features(samples: Sequence[FeatureSample], options: PrepareOptions) -> tuple[Features, Features | None]:
    """Features of states, and of actions unless they are discrete, from the samples of several nodes."""
    return _features(merge_samples(samples, options.norm_params().num_samples), options, None)


def _opened(paths: Sequence[Path], options: PrepareOptions) -> "Log":
    from lockstep.data.logs.format import read_log

    like = options.metrics is not None  # only other prepared data say so
    return read_log(
        paths,
        columns=options.columns,
        kind=options.kind,
        actions=options.actions,
        indexed=options.actions_given,
        like=like,
    )


def _features(sample: FeatureSample, options: PrepareOptions, show: Show | None) -> tuple[Features, Features | None]:
    params = options.norm_params(continuous=sample.action_bounds is not None)
    overrides = params.feature_overrides
    if not sample.state_ids:
        raise ConfigError('no row has any state_features; log at least one, such as {"0": 1.0} if all states are alike')
    _check_overrides(sample, options, params)
    found = list[Features | None]()
    for name, file, ids, table in (
        ("state", options.state_features, sample.state_ids, sample.state),
        ("action", options.action_features, sample.action_ids, sample.action),
    ):
        if name == "action" and not sample.action_ids:
            if file is not None:
                raise ConfigError(
                    f"--action-features {file}: actions of this log are names, not features; leave it out"
                )
            found.append(None)
        elif file is not None:
            features = _given_features(file)
            bounds = sample.action_bounds if name == "action" else None
            given = f"--{name}-features {file}" if options.metrics is None else f"--like {file.parent}"
            _compare(features.ids, ids, name, file, given, None if bounds is not None else show)
            if bounds is not None:
                _check_bounded(features, bounds, file, given, show)
            found.append(features)
        elif name == "action" and sample.action_bounds is not None:
            found.append(bounded(sample.action_bounds, params))
        else:
            mine = {key: kind for key, kind in overrides.items() if key in ids}
            found.append(identify(ids, table, settings.updated(params, {"feature_overrides": mine})))
    if show is not None and options.norm and options.state_features and (options.action_features or not found[1]):
        show(f"{', '.join(options.norm)} have no effect: the types of all features are from files")
    state, action = found
    assert state is not None
    return state, action


def _given_features(file: Path) -> Features:
    """The features of a file that the user names. Columns are known by id: their order in the file does not matter.

    A file in prepared data keeps its order, since policies that learned from the data have parameters in that order.
    Earlier versions wrote x_10 before x_2.
    """
    features = load_features(file)
    if (file.parent / DESCRIPTION).is_file():
        return features
    return Features({key: features[key] for key in ordered(features.ids)})


def _check_overrides(sample: FeatureSample, options: PrepareOptions, params: NormParams) -> None:
    """Refuse settings for identifying types that would have no effect, as those of features that a file describes."""
    if unknown := sorted(set(params.feature_overrides) - {*sample.state_ids, *sample.action_ids}):
        raise ConfigError(f"feature_overrides names the feature {unknown[0]}, which no row of the log has")
    bounds = params.action_bounds
    if bounds is not None and sample.action_bounds is None:
        raise ConfigError(f"action_bounds={list(bounds)} is for continuous actions, and the log has none; leave it out")
    if bounds is not None and options.action_features is not None:
        raise ConfigError(
            f"--action-features {options.action_features} has bounds, and so has action_bounds={list(bounds)}; give one"
        )
    bounded_ids = sample.action_ids if sample.action_bounds is not None else ()
    for ids, file, what in (
        (sample.state_ids, options.state_features, f"whose type --state-features {options.state_features} gives"),
        (sample.action_ids, options.action_features, f"whose type --action-features {options.action_features} gives"),
        (bounded_ids, options, "a number of continuous actions, which have bounds and no other type"),
    ):
        named = sorted(set(params.feature_overrides) & set(ids))
        if file is not None and named:
            raise ConfigError(f"feature_overrides names {named[0]}, {what}; leave it out")


def _check_bounded(
    features: Features, logged: Mapping[str, tuple[float, float]], file: Path, given: str, show: Show | None
) -> None:
    """Refuse features that are not the bounds of all numbers of the log; show which numbers of the log exceed them.

    A logged density is one of all numbers of an action: without some of them, every ratio of densities is wrong.
    """
    if unknown := [name for name in logged if name not in features.ids]:
        raise ConfigError(
            f"actions of the log have {len(logged)} numbers, and {given} has no {unknown[0]}, but only "
            f"{', '.join(features.ids[:8])}; a continuous action has the same numbers in both: correct the log, or "
            f"leave {given.partition(' ')[0]} out"
        )
    for name, feature in features.items():
        if feature.type != "continuous_action":
            raise ConfigError(
                f"{given}: {name} is {feature.type}, and continuous actions have bounds; use "
                "type=continuous_action with min_value and max_value"
            )
        low, high = logged.get(name, (math.inf, -math.inf))
        assert feature.min_value is not None and feature.max_value is not None
        if max(-feature.min_value, feature.max_value) > LARGEST:
            raise ConfigError(
                f"{given}: the bounds [{feature.min_value:g}, {feature.max_value:g}] of {name} are "
                f"too large for 32 bits; give bounds within ±{LARGEST:.2g}"
            )
        if show is not None and exceeds(low, high, feature.min_value, feature.max_value):
            show(
                f"number {name} of the action is clipped to [{feature.min_value:g}, {feature.max_value:g}], the bounds "
                f"of {file}; the log has {low:g} to {high:g}. A clipped action has no density"
            )


def _check_metrics(logged: tuple[str, ...], wanted: tuple[str, ...] | None, path: Path) -> None:
    if wanted is not None and logged != wanted:
        raise ConfigError(
            f"{path}: metrics of the log ({', '.join(logged) or 'none'}) are not those of the --like data "
            f"({', '.join(wanted) or 'none'}); log the same"
        )


def _compare(
    known: tuple[str, ...], logged: tuple[str, ...], name: str, file: Path, given: str, show: Show | None
) -> None:
    if not set(known) & set(logged):
        raise ConfigError(
            f"{given} has none of the {name} features of the log ({', '.join(logged[:5])}, ...); was it made from "
            "another log?"
        )
    if show is None:
        return
    if unused := [key for key in logged if key not in known]:
        show(f"{name} features that {file} does not name are left out: {', '.join(unused[:8])}")
    if absent := [key for key in known if key not in logged]:
        show(f"{name} features of {file} that no row has: {', '.join(absent[:8])}")


def _source(path: Path) -> dict[str, Any]:
    """Path, size and modification time of a source, to detect changes."""
    from lockstep.data.logs.files import is_minari
    from lockstep.data.logs.minari import root_of, size_of

    place = root_of(path) if is_minari(path) else path
    files = [file for file in place.rglob("*") if file.is_file()] if place.is_dir() else [place]
    changed = max((file.stat().st_mtime_ns for file in files if file.exists()), default=0)
    return {"path": str(place.resolve()), "bytes": size_of(path), "changed_ns": changed}
