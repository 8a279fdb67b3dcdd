"""The complete config of a run: one tree of dataclasses, to and from YAML.

Every count is global. Where a run takes place (ranks, run directory) is not part of it: the same run scales out
unchanged.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, cast

from lockstep import settings
from lockstep.algorithms.dqn import DQNConfig
from lockstep.algorithms.ppo import PPOConfig
from lockstep.errors import ConfigError

ALGORITHMS: Mapping[str, type[PPOConfig] | type[DQNConfig]] = {"ppo": PPOConfig, "dqn": DQNConfig}
"""The settings that each algorithm has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvConfig:
    """How environments of a task are made."""

    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    """Keyword arguments of the environment."""
    wrappers: tuple[str, ...] = ()
    """Gymnasium wrappers by `module:Class`, innermost first; given the environment alone."""
    vectorization: Literal["auto", "entry_point", "sync", "async"] = "auto"
    """`auto`: the task's own vectorized entry point if it has one, else `sync`; `async`: a process per environment."""
    max_episode_steps: int | None = None
    """Truncate episodes here instead of at the task's own limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConfig:
    """The policy and value networks."""

    encoder: Literal["auto", "mlp", "nature", "impala", "wide", "small"] = "auto"
    """What stands between an observation and the heads. `auto`: `nature` for images, `mlp` for all else.
    `nature`: Mnih et al., 2015; `small`: Mnih et al., 2013; `impala`: Espeholt et al., 2018; `wide`: 128, 128 and 512
    channels; `mlp`: the linear layers of `hidden`."""
    features: int = 512
    """Units of the linear layer behind the convolutions."""
    hidden: tuple[int, ...] = (64, 64)
    """`mlp` only: units of each hidden layer."""
    activation: Literal["tanh", "relu", "elu"] = "tanh"
    """`mlp` only: between layers."""
    shared: bool | None = None
    """One body with two heads instead of two networks; `null`: for images."""
    module: str | None = None
    """Your own network, `module:Class`; `docs/networks.md` says what it is called with."""
    initial_log_std: float = 0.0
    """Log deviation of continuous actions at the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Everything that decides what is computed."""

    task: str
    """A Gymnasium id, a built-in `lockstep/...` id, or `module:Class` of your own environment."""
    algo: Literal["ppo", "dqn"] = "ppo"
    """Algorithm; decides what `algorithm` holds."""
    ml_framework: Literal["torch", "jax"] = "torch"
    """Backend."""
    seed: int = 0
    """Same seed, same parameters, on any number of ranks once `num_shards` is pinned."""
    num_envs: int = 8
    """Environments stepped in parallel, all ranks together."""
    total_steps: int = 500_000
    """Environment steps of the run, all ranks together."""
    algorithm: PPOConfig | DQNConfig = cast(PPOConfig, None)  # noqa: RUF009  # `__post_init__` knows which
    """The algorithm's own settings; by default those of `algo`."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    num_shards: int | None = None
    """Units of state. A number pins it: results then have equal bits on any number of ranks. `null`: one per rank."""
    shard_threads: int = 1
    """Intra-op threads while a pinned shard computes; part of what fixes the bits."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto`: a GPU per rank if this machine has one, else the CPU."""
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """Collectives; `auto`: nccl on GPUs, gloo on CPUs."""
    compile: bool = False
    """torch.compile the loss; fixed before the first step."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of the forward and backward pass; parameters stay float32."""
    log_every: int | None = 10_000
    """Environment steps between lines of metrics.jsonl."""
    evaluate_every: int | None = 50_000
    """Environment steps between evaluations; `null`: only at the end."""
    evaluate_episodes: int | None = None
    """Episodes of one evaluation, over all ranks. `null`: 100, or 10 where observations are images."""
    evaluate_greedy: bool = True
    """Evaluate the most likely action instead of a sampled one."""
    evaluate_video: bool = False
    """Draw one more episode at each evaluation, `videos/step_N.gif` in the run directory."""
    checkpoint_every: int | None = 100_000
    """Environment steps between checkpoints; `null`: only at the end, and when a signal stops the run."""
    num_checkpoints: int = 3
    """Newest checkpoints to keep; that of the best evaluation is kept too."""
    check_every: int = 10
    """Updates between two proofs that all ranks hold the same bits."""
    non_finite: Literal["stop", "skip"] = "stop"
    """A NaN or an infinity in loss, gradient, reward or observation: `stop` the run, or `skip` that step or update."""
    stop_return: float | None = None
    """Stop, solved, once an evaluation's mean return reaches this. `null`: the task's own threshold, if it has one."""
    stop_when_solved: bool = True
    """Whether reaching `stop_return` ends the run."""
    timeout_s: float = 120.0
    """Bound on any collective and on any stall after the first update."""
    startup_timeout_s: float = 300.0
    """Bound on everything before the first update."""

    def __post_init__(self) -> None:  # noqa: C901  # one check after another
        """Fill in the algorithm's defaults and refuse values that cannot run."""
        if cast(object, self.algorithm) is None:
            object.__setattr__(self, "algorithm", ALGORITHMS[self.algo]())
        if type(self.algorithm) is not ALGORITHMS.get(self.algo):
            raise ConfigError(
                f"algo={self.algo} does not go with a {type(self.algorithm).__name__}; set both algo and algorithm"
            )
        for name in ("num_envs", "total_steps", "shard_threads", "num_checkpoints", "check_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1")
        for name in ("num_shards", "log_every", "evaluate_every", "evaluate_episodes", "checkpoint_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value} must be at least 1, or null")
        for name in ("timeout_s", "startup_timeout_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}={getattr(self, name)} must be greater than 0")
        if self.seed < 0:
            raise ConfigError(f"seed={self.seed} must not be negative")
        if self.backend == "nccl" and self.device == "cpu":
            raise ConfigError("backend=nccl needs GPUs, but device=cpu; use --set backend=gloo")


def load(path: Path) -> Run:
    """Read a run from a YAML (or JSON) file; what the file leaves out keeps its default."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    data = settings.parse(text, str(path))
    try:
        return from_dict(data)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def from_dict(data: object) -> Run:
    """Make a run of a tree of plain values. Unknown keys and wrong types are errors that name the setting."""
    task = settings.value_of(data, "task")
    if task is None:
        raise ConfigError("task is missing; a run is a mapping of settings that names at least its task")
    run = with_algo(Run(task=str(task)), settings.value_of(data, "algo"))
    own = settings.value_of(data, "algorithm")
    if isinstance(own, Mapping):
        _check_owner(run, [f"algorithm.{name}" for name in cast(Mapping[object, Any], own)])
    return settings.updated(run, settings.flatten(data, run))


def to_dict(run: Run) -> dict[str, Any]:
    """The complete tree of a run as plain values, in the order of the fields."""
    return settings.plain(run)


def dump(run: Run) -> str:
    """A run as YAML, complete: `load` gives back an equal one."""
    return settings.to_yaml(to_dict(run))


def override(run: Run, changes: Mapping[str, Any]) -> Run:
    """The same run with some settings changed, all at once.

    Args:
        run: where to start from.
        changes: by name. A bare name (`gamma`) reaches any field of the tree, a dotted one (`algorithm.gamma`) exactly
            one, `env.kwargs.key` one environment argument. A string is read as YAML (`null`, `1e-3`, `[64, 64]`);
            anything else is taken as it is.
    """
    run = with_algo(run, changes.get("algo"))
    _check_owner(run, changes)
    return settings.override(run, changes)


def with_algo(run: Run, algo: Any) -> Run:
    """The same run with the default settings of another algorithm. What is no algorithm changes nothing here.

    Raises:
        ConfigError: the run has settings of its own algorithm that would be lost.
    """
    if algo == run.algo or not isinstance(algo, str) or algo not in ALGORITHMS:
        return run
    default = ALGORITHMS[run.algo]()
    for item in fields(default):
        if (value := getattr(run.algorithm, item.name)) != getattr(default, item.name):
            raise ConfigError(
                f"algo={algo}, but this run is one of {run.algo}, with settings such as {item.name}={value} that would "
                f"be lost; leave algo={algo} out, or train the task alone: lockstep train {run.task} --algo {algo}"
            )
    return replace(run, algo=cast(Any, algo), algorithm=ALGORITHMS[algo]())


def _check_owner(run: Run, names: Iterable[str]) -> None:
    """Refuse settings of another algorithm, by its name."""
    known = {item.name for node in (run, run.algorithm, run.network, run.env) for item in fields(node)}
    for name in names:
        setting = name.removeprefix("algorithm.")
        owners = [algo for algo, cls in ALGORITHMS.items() if setting in {item.name for item in fields(cls)}]
        if owners and setting not in known:
            raise ConfigError(
                f"{name} is a setting of {' and '.join(owners)}, and this run trains with algo={run.algo}; "
                f"leave it out, or choose algo={owners[0]}"
            )
