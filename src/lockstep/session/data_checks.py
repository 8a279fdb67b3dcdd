"""Checks of prepared data, before a process starts."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.algorithms.offline import CloningConfig, OfflineConfigBase, OfflineDQNConfig
from lockstep.errors import ConfigError
from lockstep.run import OfflineRun
from lockstep.world import World

if TYPE_CHECKING:
    from lockstep.data.dataset import Dataset
    from lockstep.data.info import DatasetInfo

_ALGORITHMS_OF = {
    "discrete": ("dqn", "bc"),
    "parametric": ("parametric_dqn", "bc"),
    "continuous": ("iql", "td3_bc", "cql"),
}
"""The algorithms that can learn from each kind of actions."""


def check_data(run: OfflineRun, *, verify: bool = False) -> "tuple[Dataset, Dataset]":
    """Open the prepared data for training and for evaluation.

    Args:
        run: the config.
        verify: also verify checksums, if that takes only seconds.

    Raises:
        ConfigError: data are missing or damaged, or do not fit each other or the algorithm.
    """
    dataset = _opened("data", run.data, verify)
    eval_dataset = dataset if run.eval_data is None else _opened("eval_data", run.eval_data, verify, like=run.data)
    info = dataset.info
    if run.algo not in _ALGORITHMS_OF[info.kind]:
        cloning = "; td3_bc with alpha=0 clones" if run.algo == "bc" else ""  # refused of these alone
        raise ConfigError(
            f"algo={run.algo} cannot learn from {run.data}: its actions are {info.kind}; use "
            f"{_one_of(_ALGORITHMS_OF[info.kind])}{cloning}"
        )
    if (name := first_difference(info, eval_dataset.info)) is not None:
        raise ConfigError(
            f"eval_data={run.eval_data} differs from data={run.data} in {name}; prepare it with "
            f"--like {shlex.quote(run.data)}"
        )
    if (eval_dataset.state_features, eval_dataset.action_features) != (dataset.state_features, dataset.action_features):
        raise ConfigError(
            f"eval_data={run.eval_data} is normalized differently from data={run.data}; prepare it with "
            f"--like {shlex.quote(run.data)}"
        )
    if isinstance(run.algorithm, OfflineDQNConfig):
        check_boost(run.algorithm, dataset)
    if run.algorithm.estimate:
        from lockstep.data.packages import import_optional

        import_optional("scipy", "offline")  # now rather than at the estimates, hours later
    if info.kind == "parametric" and not info.has_possible_actions:
        _check_without_candidates(run, eval_dataset.info)
    if run.eval_data is not None:
        check_choices(
            eval_dataset.info, f"eval_data={run.eval_data}", "prepare a log that has them, or leave eval_data out"
        )
    return dataset, eval_dataset


def first_difference(info: "DatasetInfo", other: "DatasetInfo") -> str | None:
    """What a policy of one log cannot find in the other, by its name; None for logs of the same states and actions."""
    names = ("kind", "state_features", "actions", "action_features", "metrics")
    return next((name for name in names if getattr(info, name) != getattr(other, name)), None)


def _one_of(names: tuple[str, ...]) -> str:
    """`a`, `a or b`, `a, b or c`."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def check_choices(info: "DatasetInfo", named: str, way_out: str) -> None:
    """Raise `ConfigError` for candidates on which no policy can be evaluated: those that were not taken are missing."""
    from lockstep.estimators.diagnose import NO_CHOICES  # not needed by runs in environments

    if info.kind == "parametric" and not info.has_possible_actions:
        raise ConfigError(f"{named} cannot be used for estimates: {NO_CHOICES}; {way_out}")


def check_boost(config: OfflineDQNConfig, dataset: "Dataset") -> None:
    """Raise `ConfigError` for a boosted action that the data do not have."""
    for name in config.reward_boost:
        if name not in dataset.info.actions:
            raise ConfigError(
                f"reward_boost names the action {name}, which {dataset.path} does not have; its actions are "
                f"{', '.join(dataset.info.actions)}"
            )


def _opened(setting: str, name: str, verify: bool, like: str | None = None) -> "Dataset":
    from lockstep.data.dataset import Dataset  # not needed by runs in environments

    path = Path(name)
    if not path.exists():
        seen = "" if path.is_absolute() else f" below {Path.cwd()}, where this was started"
        more = "" if like is None else f" --like {shlex.quote(like)}"
        raise ConfigError(
            f"{setting}={name} does not exist{seen}; say where it is now (--set {setting}=DIR), or prepare a log: "
            f"lockstep offline prepare LOG --out {shlex.quote(name)}{more}"
        )
    return Dataset.open(path, verify=verify and "small", named=setting, like=like)


def without_next_candidates(config: OfflineConfigBase) -> list[str]:
    """The settings to change so that data without possible next actions can be learned from."""
    if isinstance(config, OfflineDQNConfig) and config.maxq:
        return ["maxq=false", "estimate=false"]
    return ["estimate=false"] if config.estimate else []


def learn_from_taken(changes: list[str]) -> str:
    """The way out of data that lack possible actions, by these settings."""
    return f"learn only from the actions that were taken: {' '.join(f'--set {change}' for change in changes)}"


def _check_without_candidates(run: OfflineRun, eval_info: "DatasetInfo") -> None:
    """Raise `ConfigError` if a log without candidates, except those that were taken, is not enough to learn from."""
    config, lacks = run.algorithm, f"{run.data} does not say which actions were possible (possible_actions)"
    if isinstance(config, CloningConfig):
        # with the logged action as the only candidate its probability is 1, whatever the network outputs
        raise ConfigError(
            f"{lacks}, and algo={run.algo} learns to choose among them; the log must have possible_actions"
        )
    assert isinstance(config, OfflineDQNConfig)
    changes = without_next_candidates(config)
    needs = [f"{name}=true" for name, needed in (("maxq", config.maxq), ("estimate", config.estimate)) if needed]
    if config.cql_alpha > 0:
        needs.append(f"cql_alpha={config.cql_alpha:g}")
        changes.append("cql_alpha=0")
    if run.estimate_every is not None and not eval_info.has_possible_actions:
        needs.append(f"estimate_every={run.estimate_every}")
        changes.append("estimate_every=null")
    if needs:
        raise ConfigError(
            f"{lacks}, and {', '.join(needs)} need{'s' * (len(needs) == 1)} that; the log must have possible_actions, "
            f"or {learn_from_taken(changes)}"
        )


def check_enough_rows(run: OfflineRun, world: World) -> None:
    """Raise `ConfigError` for more shards than there are rows."""
    rows = _opened("data", run.data, verify=False).info.num_rows
    if rows < world.num_shards:
        setting = "--set num_shards=" if world.pinned else "--ranks "
        raise ConfigError(
            f"{run.data} has {rows} rows for {world.num_shards} shards: a shard would have nothing to learn from; use "
            f"{setting}{rows} or fewer"
        )
