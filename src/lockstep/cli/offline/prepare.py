"""`lockstep offline prepare`: convert logs to prepared data."""

import argparse
import re
import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.cli.flags import add_set_argument
from lockstep.cli.request import set_values
from lockstep.errors import ConfigError

if TYPE_CHECKING:
    from lockstep.data.info import DatasetInfo
    from lockstep.data.prepare import PrepareOptions

_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_MIN_MEMORY = 1 << 24


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `lockstep offline prepare`."""
    add = parser.add_argument
    add("logs", metavar="LOG", nargs="+", help="JSON lines, Parquet, CSV, a folder of them, or a Minari dataset")
    add("--out", metavar="DIR", required=True, help="directory for the prepared data")
    add(
        "--kind", choices=("discrete", "parametric", "continuous"), help="kind of actions (default: found from the log)"
    )
    add("--actions", metavar="A,B", help="names of discrete actions, in the order of their indices; others are refused")
    add("--columns", metavar="FILE", help="YAML or JSON: what columns are called in the log")
    add("--max-episode-steps", metavar="N", help="limit of steps: an episode of N was cut off, unless `terminated`")
    add(
        "--like",
        metavar="DIR",
        help="take over columns, kind, actions, features, metrics and step limit of other prepared data",
    )
    add("--state-features", metavar="FILE", help="normalize states by this file, which an earlier preparation wrote")
    add("--action-features", metavar="FILE", help="the same for features of actions")
    add_set_argument(parser, "settings for finding types of features: num_samples, action_bounds, ...")
    add("--memory", metavar="BYTES", default="1G", help="memory for rows, such as 512M (default: 1G)")
    add("--force", action="store_true", help="replace other prepared data in DIR")
    add("--debug", action="store_true", help="show tracebacks")


def prepare_command(args: argparse.Namespace) -> int:
    """`lockstep offline prepare`; returns the exit code."""
    from lockstep.data.packages import import_optional

    import_optional("polars", "offline")
    from lockstep.data.preparation.progress import ProgressDisplay
    from lockstep.data.prepare import prepare_dataset
    from lockstep.record.console import Console
    from lockstep.system.exit_signals import exit_on_signal

    options, memory, out = _options(args), _bytes(args.memory), Path(args.out)
    console = Console()
    progress = ProgressDisplay(console)
    try:
        paths = [Path(name) for name in args.logs]
        with exit_on_signal():
            prepare_dataset(
                paths, out, options, memory=memory, replace=args.force, show=console.line, progress=progress
            )
        shown = shlex.quote(str(out))
        learn, estimate = f"learn from it: lockstep offline train {shown}", "estimate a policy on it: lockstep offline"
        console.line(learn if args.like is None else f"{estimate} evaluate RUN --data {shown}")
    finally:
        console.close()
    return 0


def _options(args: argparse.Namespace) -> "PrepareOptions":
    from lockstep.data.logs.schema import read_columns
    from lockstep.data.prepare import PrepareOptions
    from lockstep.launch.flags import number

    actions = None if args.actions is None else tuple(name.strip() for name in args.actions.split(","))
    if actions is not None and not all(actions):
        raise ConfigError(f"--actions {args.actions} has an empty name; write --actions left,right")
    limit = args.max_episode_steps
    options = PrepareOptions(
        kind=args.kind,
        actions=actions,
        columns=None if args.columns is None else read_columns(Path(args.columns)),
        max_episode_steps=None if limit is None else number(limit, "--max-episode-steps"),
        state_features=None if args.state_features is None else Path(args.state_features),
        action_features=None if args.action_features is None else Path(args.action_features),
        norm=_norm(args.set),
    )
    return options if args.like is None else _like(Path(args.like), options, args)


def _norm(pairs: list[str]) -> dict[str, str]:
    """The values of `--set`; raises `ConfigError` for settings of `lockstep offline train`."""
    from lockstep.algorithms.all import OFFLINE_ALGORITHMS
    from lockstep.config.settings import hints_of
    from lockstep.data.preparation.identify import NormParams
    from lockstep.run import OfflineRun

    found = set_values(pairs)
    own = NormParams.__dataclass_fields__
    of_training = {path.rpartition(".")[2] for path in hints_of(OfflineRun(data=""))}
    of_training |= {name for cls in OFFLINE_ALGORITHMS.values() for name in cls.__dataclass_fields__}
    for name, value in found.items():
        if name.partition(".")[0] not in own and name.rpartition(".")[2] in of_training:
            given = shlex.quote(f"{name}={value}")
            raise ConfigError(f"{name} is a setting of training: lockstep offline train DATA --set {given}")
    return found


def _like(other: Path, options: "PrepareOptions", args: argparse.Namespace) -> "PrepareOptions":
    """Take options that were not given from other prepared data, so that both suit the same policy."""
    from dataclasses import replace

    from lockstep.data.dataset import Dataset
    from lockstep.data.dataset_files import ACTION_FEATURES, STATE_FEATURES

    for name in ("kind", "actions", "state_features", "action_features", "set"):
        if getattr(args, name):
            raise ConfigError(f"--like {other} already sets --{name.replace('_', '-')}; leave one of them out")
    if not other.exists():
        raise ConfigError(f"--like {other} does not exist; give data that are prepared already")
    dataset = Dataset.open(other, named="--like")
    info, discrete = dataset.info, dataset.info.kind == "discrete"
    actions = info.actions if discrete else None
    previous: dict[str, Any] = dataset.info.rules.get("options", {})
    columns = options.columns
    if columns is None and previous.get("columns") is not None:
        columns = _columns_of(args.logs, previous["columns"], info)
    _check_kind(args.logs, other, columns, info.kind)
    return replace(
        options,
        kind=info.kind,
        actions=actions,
        actions_given=info.actions_given,
        columns=columns,
        max_episode_steps=(
            previous.get("max_episode_steps") if options.max_episode_steps is None else options.max_episode_steps
        ),
        state_features=other / STATE_FEATURES,
        action_features=None if discrete else other / ACTION_FEATURES,
        metrics=info.metrics,
    )


def _columns_of(logs: list[str], columns: dict[str, Any], info: "DatasetInfo") -> dict[str, Any] | None:
    """The column names of other data; None if the logs lack those columns, and have the names of the schema."""
    from lockstep.data.logs.format import read_log

    actions = info.actions if info.kind == "discrete" else None
    read = partial(read_log, logs, kind=info.kind, actions=actions, indexed=info.actions_given)
    try:
        read(columns=columns)
    except ConfigError:
        try:
            read()
        except ConfigError:
            return columns  # refused later, with the names that are missing
        return None
    return columns


def _check_kind(logs: list[str], other: Path, columns: Mapping[str, Any] | None, kind: str) -> None:
    """Raise `ConfigError` if the log has actions of another kind than the `other` data."""
    from lockstep.data.logs.format import read_log

    try:
        found = read_log(logs, columns=columns).kind
    except ConfigError:
        return  # refused later, with its own reason
    if (found == "discrete") != (kind == "discrete"):
        names, numbers = "names (discrete)", "numbers or features"
        ours, theirs = (names, numbers) if found == "discrete" else (numbers, names)
        raise ConfigError(
            f"--like {other} has actions that are {theirs}, and those of {logs[0]} are {ours}: it is a log of another "
            "task, or its action column needs --columns; leave --like out to prepare it by itself"
        )


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if found is None:
        raise ConfigError(f"--memory {text} is not a size; write a number of bytes, or 512M, or 2G")
    size = int(float(found[1]) * 1024 ** _UNITS[found[2]])
    if size < _MIN_MEMORY:
        raise ConfigError(f"--memory {text} is too little; give at least {_MIN_MEMORY >> 20}M")
    return size
