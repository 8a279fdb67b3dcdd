"""The complete config of a run: one tree of dataclasses, from and to YAML.

Every count is global. Ranks and the run directory are not part of it: the same config runs on any number of ranks.
"""

import functools
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from lockstep.algorithms.all import (
    ALGORITHMS,
    CONTINUOUS_LOGS,
    JAX_OFFLINE_ALGORITHMS,
    OFFLINE_ALGORITHMS,
    AlgorithmConfig,
    AlgorithmName,
    OfflineConfig,
    OfflineName,
)
from lockstep.algorithms.offline import OfflineDQNConfig
from lockstep.algorithms.ppo import PPOConfig
from lockstep.config import settings
from lockstep.config.env import EnvConfig
from lockstep.config.network import NetworkConfig, ScoreNetworkConfig, default_network, default_score_network
from lockstep.config.renamed import (
    check_algorithm_name,
    check_names,
    check_tree_names,
    known_settings,
    renaming_error,
)
from lockstep.config.run_base import RunBase, check_followed
from lockstep.distributed.ranges import listed
from lockstep.errors import ConfigError
from lockstep.system.files import read_text
from lockstep.world import World

_SIMULATOR_SETTINGS = (
    "evaluate_every",
    "evaluate_episodes",
    "evaluate_greedy",
    "evaluate_video",
    "stop_return",
    "stop_when_solved",
)
"""Settings of runs on logged data that need a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(RunBase):
    """The config of a run that learns in environments."""

    task: str
    """A Gymnasium id, a built-in `lockstep/...` id, or `module:Class` of your own environment."""
    algo: AlgorithmName = "ppo"
    """Algorithm; decides what `algorithm` holds."""
    num_envs: int = 8
    """Environments stepped in parallel, all ranks together."""
    total_steps: int = 500_000
    """Environment steps of the run, all ranks together."""
    algorithm: AlgorithmConfig = cast(PPOConfig, None)  # noqa: RUF009  # `__post_init__` knows which
    """The algorithm's own settings; by default those of `algo`."""
    network: NetworkConfig = cast(NetworkConfig, None)  # noqa: RUF009  # `__post_init__` knows which
    """The networks; by default those of `algo`: two hidden layers of 256 units and ReLU for `sac` and `td3`."""
    env: EnvConfig = field(default_factory=EnvConfig)

    def __post_init__(self) -> None:
        """Fill in the algorithm's defaults, and validate."""
        if not isinstance(cast(object, self.task), str):
            raise ConfigError(
                f"task={self.task!r} must be text: a Gymnasium id, or the place of your class, as my_env.py:MyEnv"
            )
        _fill_in(self, default_network)
        for name in ("num_envs", "total_steps"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1")
        if self.ml_framework not in self.algorithm.FRAMEWORKS:
            raise ConfigError(
                f"algo={self.algo} does not exist with ml_framework={self.ml_framework}; use --ml-framework "
                f"{' or '.join(sorted(self.algorithm.FRAMEWORKS))}, or another algorithm"
            )
        check_followed(self, self.algorithm.FOLLOWS, f"algo={self.algo} does not follow this setting")
        if self.ml_framework == "jax" and self.network.channels_last:
            raise ConfigError(
                "network.channels_last=true is for ml_framework=torch: JAX's compiler chooses the layout; leave it out"
            )
        self.check()

    @property
    def subject(self) -> str:
        """The task, for names of directories and jobs."""
        return self.task

    @property
    def user_code(self) -> list[str]:
        """The settings that may name the user's own code."""
        symmetry = self.algorithm.symmetry if isinstance(self.algorithm, PPOConfig) else None
        return [self.task, *self.env.wrappers, self.network.module or "", symmetry or ""]

    @property
    def last_step(self) -> int:
        """The step at which a run ends that is neither solved nor stopped: `total_steps`, in whole rollouts."""
        rollout = self.num_envs * self.algorithm.num_steps
        return -(-self.total_steps // rollout) * rollout

    @property
    def sequence_length(self) -> int:
        """Steps of the sequences that PPO learns from; 1 for a policy without recurrent layers."""
        if self.network.recurrent == "none" or not isinstance(self.algorithm, PPOConfig):
            return 1
        return self.algorithm.steps_of_sequences

    def minibatch_rows(self, world: World) -> int:
        """Rows of one shard in a minibatch; raises `ConfigError` if counts do not divide among the shards."""
        rows = self.algorithm.minibatch_rows(world.shard_size(self.num_envs, "num_envs"), world.num_shards)
        if rows % self.sequence_length:
            raise ConfigError(
                f"a shard's part of a minibatch, {rows} transitions, is not a whole number of sequences of "
                f"{self.sequence_length} steps; change sequence_length, num_minibatches or num_envs"
            )
        return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineRun(RunBase):
    """The config of a run that learns from logged data; its steps are rows, all ranks together."""

    data: str
    """Prepared data to learn from: a directory that `lockstep offline prepare` wrote."""
    eval_data: str | None = None
    """Prepared data that estimates are made on; `null`: the data to learn from."""
    task: str | None = None
    """A simulator, where there is one, to evaluate the policy in: a Gymnasium id."""
    algo: OfflineName = "dqn"
    """Algorithm; decides what `algorithm` holds. `bc` is behaviour cloning; the last three learn from continuous
    actions."""
    epochs: int = 100
    """How often every row is learned from."""
    data_layout: Literal["auto", "same", "split", "shuffled_copies"] = "auto"
    """What the machines hold under `data`: the `same` rows, each its own part (`split`), or copies in another order."""
    estimate_every: int | None = None
    """Epochs between estimates of the policy's value from the log; `null`: at the end."""
    model_path: str | None = None
    """Directory for the finished policy, for use without Lockstep; written by rank 0 at the end. `null`: none."""
    network: ScoreNetworkConfig = cast(ScoreNetworkConfig, None)  # noqa: RUF009  # `__post_init__` knows which
    """The networks; by default those of `algo`: two hidden layers of 256 units for continuous actions."""
    env: EnvConfig = field(default_factory=EnvConfig)
    log_every: int | None = 100_000
    """Rows between lines of metrics.jsonl."""
    evaluate_every: int | None = None
    """Rows between evaluations in `task`; `null`: only at the end."""
    checkpoint_every: int | None = 1_000_000
    """Rows between checkpoints; `null`: only at the end, and when a signal stops the run."""
    algorithm: OfflineConfig = cast(OfflineDQNConfig, None)  # noqa: RUF009  # as in `Run`
    """The algorithm's own settings; by default those of `algo`."""

    def __post_init__(self) -> None:
        """Fill in the algorithm's defaults, and validate."""
        _fill_in(self, default_score_network)
        if self.ml_framework == "jax":
            self._check_jax()
        if self.epochs < 1:
            raise ConfigError(f"epochs={self.epochs} must be at least 1")
        if self.estimate_every is not None and self.estimate_every < 1:
            raise ConfigError(f"estimate_every={self.estimate_every} must be at least 1, or null")
        if self.task is None:
            self._check_no_simulator()
        config = self.algorithm
        if self.algo == "parametric_dqn" and isinstance(config, OfflineDQNConfig):
            for name, value in (("reward_boost", config.reward_boost), ("bcq_threshold", config.bcq_threshold)):
                if value not in ({}, None):
                    raise ConfigError(
                        f"{name}={value} is for named actions; algo=parametric_dqn has none, leave it out"
                    )
        self.check()

    def _check_no_simulator(self) -> None:
        """Raise `ConfigError` for settings of a simulator, which a run without a task does not have."""
        usual, default = {item.name: item.default for item in fields(self)}, EnvConfig()
        given = {name: value for name in _SIMULATOR_SETTINGS if (value := getattr(self, name)) != usual[name]}
        for item in fields(EnvConfig):
            if getattr(self.env, item.name) != getattr(default, item.name):
                given[f"env.{item.name}"] = getattr(self.env, item.name)
        if given:
            name, value = next(iter(given.items()))
            raise ConfigError(
                f"{name}={settings.as_text(value)} is for episodes in a simulator, and this run has none; add "
                "--task ID, or leave it out"
            )

    def _check_jax(self) -> None:
        """Raise `ConfigError` for what JAX does not support on logged data."""
        if self.algo not in JAX_OFFLINE_ALGORITHMS:
            raise ConfigError(
                f"algo={self.algo} does not learn from logged data with ml_framework=jax, which has "
                f"{' and '.join(JAX_OFFLINE_ALGORITHMS)}; choose one of these, or leave ml_framework out to use torch"
            )
        if self.model_path is not None:
            raise ConfigError(
                f"model_path={self.model_path}: ml_framework=jax writes no exported policy at the end; use null, and "
                "export the run afterwards, where torch is installed: lockstep export RUN"
            )

    @property
    def subject(self) -> str:
        """The name of the data, for names of directories and jobs."""
        return Path(self.data).name or "log"

    @property
    def user_code(self) -> list[str]:
        """The settings that may name the user's own code."""
        return [self.task or "", *self.env.wrappers]

    def minibatch_rows(self, world: World) -> int:
        """Rows of one shard in a minibatch; raises `ConfigError` if counts do not divide among the shards."""
        return self.algorithm.rows(world.num_shards)


AnyRun = Run | OfflineRun
SomeRun = TypeVar("SomeRun", bound=AnyRun)


def load(path: Path) -> AnyRun:
    """Read a run from a YAML or JSON file; settings that are left out have their defaults."""
    return run_from_file_content(settings.parse(read_text(path), str(path)), path)


def run_from_file_content(data: object, path: Path) -> AnyRun:
    """`from_dict` of what a file holds. The error names the file."""
    if settings.value_of(data, "training_data_path") is not None:
        raise ConfigError(
            f"{path} is a workflow file, not a run; lockstep offline train {shlex.quote(str(path))} learns from it"
        )
    try:
        return from_dict(data)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def from_dict(data: object) -> AnyRun:
    """Create a run from a tree of plain values: an `OfflineRun` if it has `data`, else a `Run`.

    Raises:
        ConfigError: a key is unknown or a value has the wrong type; names the setting.
    """
    task, logged = settings.value_of(data, "task"), settings.value_of(data, "data")
    if logged is None and task is None:
        raise ConfigError("task is missing; a run is a mapping of settings that names at least its task")
    first: AnyRun = Run(task=str(task)) if logged is None else OfflineRun(data=str(logged))
    run = with_algo(first, settings.value_of(data, "algo"))
    check_tree_names(run, data)
    for node, prefix in ((data, ""), (settings.value_of(data, "algorithm"), "algorithm.")):
        if isinstance(node, Mapping):
            _check_algorithm_settings(run, [f"{prefix}{name}" for name in cast(Mapping[object, Any], node)])
    return settings.updated(run, settings.flatten(data, run))


def to_dict(run: AnyRun) -> dict[str, Any]:
    """The complete tree of a run as plain values: first the fields of its class, then those of every run."""
    tree, shared = settings.plain(run), {item.name for item in fields(RunBase)}
    return {name: tree[name] for name in sorted(tree, key=lambda name: name in shared)}


def dump(run: AnyRun) -> str:
    """The complete run as YAML; `load` returns an equal one."""
    return settings.to_yaml(to_dict(run))


def override(run: SomeRun, changes: Mapping[str, Any]) -> SomeRun:
    """The same run with some settings changed, all at once.

    Args:
        run: the run to copy.
        changes: by name. A bare name (`gamma`) matches any field of the tree, a dotted one (`algorithm.gamma`) exactly
            one, `env.kwargs.key` one environment argument. A string is read as YAML (`null`, `1e-3`, `[64, 64]`);
            other values are used unchanged.
    """
    run = _with_named_algo(run, changes)
    check_names(run, changes, "set" if all(isinstance(value, str) for value in changes.values()) else "python")
    _check_algorithm_settings(run, changes)
    return settings.override(run, changes)


def check_setting_names(run: AnyRun, changes: Mapping[str, Any]) -> None:
    """Raise `ConfigError` if a name among the changes is no setting of the run's algorithm; values are not looked at.

    A task alone gets its default settings from an environment, which can take minutes to make. This is quick. Names of
    other libraries pass: what to write instead depends on those defaults, so that `override` refuses them.
    """
    run = _with_named_algo(run, changes)
    known = known_settings(run)
    names = [name for name in changes if renaming_error(name, "", known, "set") is None]
    _check_algorithm_settings(run, names)
    settings.check_known(run, names)


def _with_named_algo(run: SomeRun, changes: Mapping[str, Any]) -> SomeRun:
    """The same run with the algorithm among the changes, if there is one."""
    algo = changes.get("algo")
    return with_algo(run, settings.parse(algo, f"algo={algo}") if isinstance(algo, str) else algo)


def with_algo(run: SomeRun, algo: Any) -> SomeRun:
    """The same run with the default settings of another algorithm; unchanged if `algo` is no algorithm.

    Raises:
        ConfigError: the run has algorithm settings other than the defaults, which would be lost; or `algo` is another
            library's name of one of our algorithms.
    """
    known = _algorithms(run)
    if algo == run.algo or not isinstance(algo, str):
        return run
    if algo not in known:
        if isinstance(run, Run) and algo in OFFLINE_ALGORITHMS:
            raise ConfigError(f"algo={algo} learns from logged data: lockstep offline train DATA --algo {algo}")
        if isinstance(run, OfflineRun) and algo in ALGORITHMS:
            raise ConfigError(f"algo={algo} learns in environments: lockstep train TASK --algo {algo}")
        check_algorithm_name(algo, known)
        return run
    default = known[run.algo]()
    for item in fields(default):
        if (value := getattr(run.algorithm, item.name)) != getattr(default, item.name):
            what = (
                f"train {shlex.quote(run.task)}" if isinstance(run, Run) else f"offline train {shlex.quote(run.data)}"
            )
            raise ConfigError(
                f"algo={algo}, but this run trains with {run.algo}, whose settings, such as {item.name}={value}, would "
                f"be lost; leave algo={algo} out, or train the task alone: lockstep {what} --algo {algo}"
            )
    changes: dict[str, Any] = {"algo": algo, "algorithm": known[algo]()}
    if isinstance(run, Run) and run.network == default_network(run.algo):
        changes["network"] = default_network(algo)
    elif isinstance(run, OfflineRun) and run.network == default_score_network(run.algo):
        changes["network"] = default_score_network(algo)
    return replace(run, **changes)


def _algorithms(run: AnyRun) -> Mapping[str, type[AlgorithmConfig | OfflineConfig]]:
    return cast(Any, OFFLINE_ALGORITHMS if isinstance(run, OfflineRun) else ALGORITHMS)


def _fill_in(run: AnyRun, network_of: Callable[[str], Any]) -> None:
    """Set the default settings of the run's algorithm and of its networks where it has none, and convert all settings.

    Raises:
        ConfigError: the settings are those of another algorithm, or a value is of another type.
    """
    wanted = _algorithms(run).get(cast(Any, run.algo)) if isinstance(cast(object, run.algo), str) else None
    defaults = {"algorithm": wanted, "network": functools.partial(network_of, run.algo), "env": EnvConfig}
    for name, default in defaults.items():
        if default is not None and getattr(run, name) is None:
            object.__setattr__(run, name, default())
        if default is not None and not is_dataclass(given := getattr(run, name)):
            raise ConfigError(f"{name}={given!r} must be an instance of {type(default()).__name__}, or left out")
    settings.convert_fields(run)
    settings.convert_fields(run.algorithm)  # networks and environments have converted their own
    if type(run.algorithm) is not wanted:
        fitting = [algo for algo, cls in _algorithms(run).items() if cls is type(run.algorithm)]
        way_out = f"set algo={fitting[0]}" if len(fitting) == 1 else "set both algo and algorithm"
        raise ConfigError(f"algo={run.algo} does not go with a {type(run.algorithm).__name__}; {way_out}")


def _check_algorithm_settings(run: AnyRun, names: Iterable[str]) -> None:
    """Raise `ConfigError` for settings of another algorithm."""
    known = {item.name for node in (run, run.algorithm, run.network, run.env) for item in fields(node)}
    for name in names:
        setting = name.removeprefix("algorithm.")
        owners = [algo for algo, cls in _algorithms(run).items() if setting in {item.name for item in fields(cls)}]
        if owners and setting not in known:
            continuous = isinstance(run.algorithm, CONTINUOUS_LOGS)
            alike = [algo for algo in owners if issubclass(_algorithms(run)[algo], CONTINUOUS_LOGS) == continuous]
            fitting = alike or owners
            choose = f"algo={fitting[0]}" if len(fitting) == 1 else "one of them"  # the task decides which
            raise ConfigError(
                f"{name} is a setting of {listed(owners)}, and this run trains with algo={run.algo}; "
                f"leave it out, or choose {choose}"
            )
