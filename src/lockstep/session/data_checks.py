"""Checks of prepared data, before a process starts."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.algorithms.offline import LoggedConfig, OfflineDQNConfig
from lockstep.errors import ConfigError
from lockstep.run import OfflineRun
from lockstep.world import World

if TYPE_CHECKING:
    from lockstep.data.dataset import Dataset

_VERIFIED = 1 << 30
"""Largest prepared data, in bytes, whose checksums are verified when a run starts: a second or two."""
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
    judged_on = dataset if run.eval_data is None else _opened("eval_data", run.eval_data, verify)
    info = dataset.info
    if run.algo not in _ALGORITHMS_OF[info.kind]:
        raise ConfigError(
            f"algo={run.algo} cannot learn from {run.data}: its actions are {info.kind}; use "
            f"{' or '.join(_ALGORITHMS_OF[info.kind])}"
        )
    for name in ("kind", "state_features", "actions", "action_features", "metrics"):
        if getattr(info, name) != getattr(judged_on.info, name):
            raise ConfigError(
                f"eval_data={run.eval_data} differs from data={run.data} in {name}; prepare it with "
                f"--like {shlex.quote(run.data)}"
            )
    if (judged_on.state_features, judged_on.action_features) != (dataset.state_features, dataset.action_features):
        raise ConfigError(
            f"eval_data={run.eval_data} is normalized differently from data={run.data}; prepare it with "
            f"--like {shlex.quote(run.data)}"
        )
    if isinstance(run.algorithm, OfflineDQNConfig):
        check_boost(run.algorithm, dataset)
    if run.algorithm.estimate:
        from lockstep.data.packages import import_optional

        import_optional("scipy", "offline")  # now rather than at the estimates, hours later
    way_out = without_candidates(run.algorithm)
    if info.kind == "parametric" and not info.has_possible_actions and way_out is not None:
        raise ConfigError(
            f"{run.data} does not say which actions are possible next (possible_actions), and learning needs it; "
            f"{way_out}"
        )
    return dataset, judged_on


def check_boost(config: OfflineDQNConfig, dataset: "Dataset") -> None:
    """Raise `ConfigError` for a boosted action that the data do not have."""
    for name in config.reward_boost:
        if name not in dataset.info.actions:
            raise ConfigError(
                f"reward_boost names the action {name}, which {dataset.path} does not have; its actions are "
                f"{', '.join(dataset.info.actions)}"
            )


def _opened(setting: str, name: str, verify: bool) -> "Dataset":
    from lockstep.data.dataset import Dataset  # not needed by runs in environments

    path = Path(name)
    if not path.exists():
        seen = "" if path.is_absolute() else f" below {Path.cwd()}, where this was started"
        raise ConfigError(
            f"{setting}={name} does not exist{seen}; say where it is now (--set {setting}=DIR), or prepare a log: "
            f"lockstep offline prepare LOG --out {shlex.quote(name)}"
        )
    verify = verify and sum(file.stat().st_size for file in path.rglob("*.npy")) <= _VERIFIED
    return Dataset.open(path, verify=verify)


def without_candidates(config: LoggedConfig) -> str | None:
    """The flags to learn from data without possible next actions; `None` if no change is needed."""
    maxq = isinstance(config, OfflineDQNConfig) and config.maxq
    if not (config.estimate or maxq):
        return None
    flags = "--set maxq=false --set estimate=false" if maxq else "--set estimate=false"
    return f"learn from the actions that were taken alone: {flags}"


def check_rows(run: OfflineRun, world: World) -> None:
    """Raise `ConfigError` for more shards than there are rows."""
    rows = _opened("data", run.data, verify=False).info.num_rows
    if rows < world.num_shards:
        raise ConfigError(
            f"{run.data} has {rows} rows for {world.num_shards} shards: a shard would have nothing to learn from; use "
            f"at most --ranks {rows}"
        )
