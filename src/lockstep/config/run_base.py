"""The settings of every run."""

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

from lockstep.algorithms.interface import LEFT_TO_LOOPS
from lockstep.config.settings import as_text
from lockstep.errors import WHAT_SHARDS_ARE, ConfigError
from lockstep.world import World

_TRACKERS = ("wandb", "mlflow")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBase:
    """How a run computes, records and ends; `lockstep.run` adds the task, the data and the algorithm."""

    ml_framework: Literal["torch", "jax"] = "torch"
    """Backend."""
    seed: int = 0
    """Same seed, same parameters, on any number of ranks once `num_shards` is pinned."""
    num_shards: int | None = None
    """Equal parts (shards) that the run is cut into and dealt to the ranks. Results depend on it, not on the number of
    ranks: a number gives equal bits on any number of ranks. `null`: one per rank at the first start."""
    shard_threads: int = 1
    """Intra-op threads while a pinned shard computes; part of what fixes the bits."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto`: a GPU per rank if this machine has one, else the CPU."""
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """Collectives; `auto`: nccl on GPUs, gloo on CPUs."""
    share_gpus: bool = False
    """Several ranks on one GPU where a host has more ranks than GPUs, with collectives by gloo: for tests; torch."""
    devices_per_process: int = 1
    """Devices that one process drives, each of them a rank; JAX only."""
    compile: bool = False
    """torch.compile the loss and its backward pass (torch before 2.11: the loss alone). JAX compiles in any case."""
    compile_mode: Literal["default", "max-autotune"] = "default"
    """Of `compile=true`: `max-autotune` measures several kernels for each operation, which takes minutes."""
    capture: bool | None = None
    """Gradient steps, acting, and steps of environments on the device, as CUDA graphs; torch on a GPU. `null`: where
    they can be, but for networks of your own, whose Python a graph would not run again. Lines at the start say what
    is."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of the forward and backward pass; parameters stay float32."""
    tf32: bool | None = None
    """Whether a GPU may round the factors of float32 products to TensorFloat-32. `null`: as the framework does by
    default, and never in a run whose `num_shards` is pinned."""
    log_every: int | None = 10_000
    """Environment steps between lines of metrics.jsonl."""
    evaluate_every: int | None = 50_000
    """Environment steps between evaluations; `null`: only at the end."""
    evaluate_episodes: int | None = None
    """Episodes of one evaluation, over all ranks. `null`: 100, or 10 where observations are images. With several agents
    each agent's counts as one, and the number is rounded up to whole environments."""
    evaluate_greedy: bool = True
    """Evaluate the most likely action instead of a sampled one."""
    evaluate_video: bool = False
    """Record a video of one more episode at each evaluation, `videos/step_N.gif` in the run directory."""
    checkpoint_every: int | None = 100_000
    """Environment steps between checkpoints; `null`: only at the end, and when a signal stops the run."""
    num_checkpoints: int = 3
    """Newest checkpoints to keep; that of the best evaluation is kept too."""
    check_every: int = 10
    """Updates between two proofs that all ranks hold the same bits."""
    non_finite: Literal["stop", "skip"] = "stop"
    """A NaN or an infinity in loss, gradient, reward or observation: `stop` the run, or `skip` that step or update."""
    stop_return: float | None = None
    """Stop, solved, once an evaluation's mean return reaches this. `null`: the task's own threshold, if it has one; in
    a run on logged data, none."""
    stop_when_solved: bool = True
    """Whether reaching `stop_return` ends the run."""
    trackers: tuple[str, ...] = ()
    """Experiment trackers besides TensorBoard: `wandb`, `mlflow`, or `module:Class` of your own."""
    timeout_s: float = 120.0
    """Bound on any collective and on any stall after the first update."""
    startup_timeout_s: float = 300.0
    """Bound on everything before the first update."""

    def with_shards(self, world: World, num_shards: int | None = None) -> World:
        """The world with this run's shards: pinned, else `num_shards` of a checkpoint, else one per rank.

        Raises:
            ConfigError: there are fewer shards than ranks.
        """
        sharded, ranks = world.with_shards(self.num_shards), world.size * self.devices_per_process
        sharded = replace(sharded, num_shards=self.num_shards or num_shards or ranks)
        if sharded.num_shards < ranks:
            raise ConfigError(
                f"num_shards={sharded.num_shards} is fewer than the {ranks} ranks ({world.size} processes x "
                f"devices_per_process={self.devices_per_process}); use fewer, or --set num_shards={ranks} "
                f"({WHAT_SHARDS_ARE})"
            )
        return sharded

    def check(self) -> None:
        """Validate the values; raises `ConfigError`."""
        for name in ("shard_threads", "devices_per_process", "num_checkpoints", "check_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1")
        for name in ("num_shards", "log_every", "evaluate_every", "evaluate_episodes", "checkpoint_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value} must be at least 1, or null")
        for name in ("timeout_s", "startup_timeout_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name}={getattr(self, name)} must be a finite number greater than 0")
        if self.seed < 0:
            raise ConfigError(f"seed={self.seed} must not be negative")
        if self.backend == "nccl" and self.device == "cpu":
            raise ConfigError("backend=nccl needs GPUs, but device=cpu; use --set backend=gloo")
        self._check_sharing()
        self._check_framework()
        if self.shard_threads != 1 and self.num_shards is None:
            raise ConfigError(
                f"shard_threads={self.shard_threads} is for pinned shards; add --set num_shards=N, or leave it out"
            )
        self._check_trackers()

    def _check_sharing(self) -> None:
        if not self.share_gpus:
            return
        if self.backend == "nccl":
            raise ConfigError(
                "share_gpus=true with backend=nccl: NCCL refuses two ranks on one GPU; use backend=gloo or auto"
            )
        if self.ml_framework == "jax":
            raise ConfigError(
                "share_gpus=true: with ml_framework=jax, GPUs use NCCL, which refuses two ranks on one GPU; leave it "
                "out, or use --ml-framework torch"
            )

    def _check_trackers(self) -> None:
        for name in self.trackers:
            if name not in _TRACKERS and ":" not in name:
                raise ConfigError(
                    f"trackers={name} is unknown; use {', '.join(_TRACKERS)}, module:Class or file.py:Class "
                    "(TensorBoard files are always written)"
                )

    def _check_framework(self) -> None:
        """Refuse settings that the chosen framework does not support."""
        if self.ml_framework == "torch":
            if self.compile_mode != "default" and not self.compile:
                raise ConfigError(f"compile_mode={self.compile_mode} needs compile=true; set both, or leave it out")
            if self.devices_per_process != 1:
                raise ConfigError(
                    f"devices_per_process={self.devices_per_process}: a torch rank is a process with one device; use "
                    f"--ranks {self.devices_per_process}, or --ml-framework jax"
                )
            return
        if self.compile or self.compile_mode != "default":
            given = "compile=true" if self.compile else f"compile_mode={self.compile_mode}"
            raise ConfigError(f"{given} is for torch.compile; ml_framework=jax compiles in any case, leave it out")
        if self.capture:
            raise ConfigError(
                "capture=true makes CUDA graphs of torch's gradient steps; ml_framework=jax compiles whole updates in "
                "any case, leave it out"
            )
        if self.shard_threads != 1:
            raise ConfigError(
                f"shard_threads={self.shard_threads}: ml_framework=jax computes a pinned shard on one thread; leave it "
                "out, or use --ml-framework torch"
            )


def check_followed(run: RunBase, follows: Collection[str], reason: str) -> None:
    """Raise `ConfigError` for a setting that only the code of an algorithm can follow, if it does not.

    Args:
        run: the config.
        follows: the settings in `LEFT_TO_LOOPS` that the code follows.
        reason: says of another one that it is not followed, for the message.
    """
    for name, neutral in LEFT_TO_LOOPS.items():
        value = getattr(run, name)
        if name not in follows and value not in neutral:
            raise ConfigError(f"{name}={as_text(value)}: {reason}; leave {name} out")
