"""The complete config of a run: one tree of dataclasses, to and from YAML.

Every count is global. Where a run takes place (ranks, run directory) is not part of it: the same run scales out
unchanged.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lockstep import settings
from lockstep.algorithms.ppo import PPOConfig
from lockstep.errors import ConfigError


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

    hidden: tuple[int, ...] = (64, 64)
    """Units of each hidden layer."""
    activation: Literal["tanh", "relu", "elu"] = "tanh"
    """Between layers."""
    shared: bool = False
    """One body with two heads instead of two networks."""
    module: str | None = None
    """Your own network, `module:Class`; `docs/algorithms/ppo.md` says what it is called with."""
    initial_log_std: float = 0.0
    """Log deviation of continuous actions at the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Everything that decides what is computed."""

    task: str
    """A Gymnasium id, a built-in `lockstep/...` id, or `module:Class` of your own environment."""
    algo: Literal["ppo"] = "ppo"
    """Algorithm; decides what `algorithm` holds."""
    ml_framework: Literal["torch", "jax"] = "torch"
    """Backend."""
    seed: int = 0
    """Same seed, same parameters, on any number of ranks once `num_shards` is pinned."""
    num_envs: int = 8
    """Environments stepped in parallel, all ranks together."""
    total_steps: int = 500_000
    """Environment steps of the run, all ranks together."""
    algorithm: PPOConfig = field(default_factory=PPOConfig)
    """The algorithm's own settings."""
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
    evaluate_episodes: int = 100
    """Episodes of one evaluation, over all ranks."""
    evaluate_greedy: bool = True
    """Evaluate the most likely action instead of a sampled one."""
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

    def __post_init__(self) -> None:
        """Refuse values that cannot run."""
        for name in ("num_envs", "total_steps", "shard_threads", "evaluate_episodes", "num_checkpoints", "check_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1")
        for name in ("num_shards", "log_every", "evaluate_every", "checkpoint_every"):
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
    return settings.updated(Run(task=str(task)), settings.flatten(data, Run))


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
    return settings.override(run, changes)
