"""The flags of `--on ray`, and the ranks that they describe."""

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from lockstep.errors import ConfigError
from lockstep.launch.flags import add_flag, number, seconds_of
from lockstep.launch.node_flags import node_counts
from lockstep.system.files import read_text

ENGINES = ("ray",)
STRATEGIES = ("STRICT_PACK", "PACK", "SPREAD", "STRICT_SPREAD")
_RAY_FLAGS = ("address", "strategy", "cpus_per_rank", "gpus_per_rank", "resources_per_rank", "runtime_env")
_OTHER_LAUNCHER = (
    *("node_rank", "rdzv_endpoint", "rdzv_id", "rdzv_backend", "init_file", "master_addr", "master_port"),
    *("local_addr", "token_file", "standalone", "distributed"),
)
"""Flags of launchers that run on each node; here Ray does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayRequest:
    """The ranks to place, and on which cluster."""

    minimum: int = 1
    """Number of bundles of the placement group that are needed to start and to continue."""
    maximum: int = 1
    ranks_per_bundle: int = 1
    """1 with `--ranks`; with `--nnodes`, a bundle is a node and holds `--nproc-per-node` ranks."""
    strategy: str = "PACK"
    """Of the placement group."""
    cpus: int = 1
    """CPUs of a rank, and its threads."""
    gpus: int | None = None
    """GPUs of a rank; None: one per device of the rank where the cluster has GPUs and the run may use them."""
    resources: Mapping[str, float] = field(default_factory=dict[str, float])
    """Custom resources of a rank."""
    address: str | None = None
    """Of the cluster; None: a running one of this machine, else a new one on this machine."""
    runtime_env: Mapping[str, Any] | None = None
    """Ray's runtime environment of the job."""
    join_timeout_s: float = 300.0
    """Bound on waiting for the resources."""

    @property
    def elastic(self) -> bool:
        """Whether fewer ranks than the maximum may train."""
        return self.minimum != self.maximum

    @property
    def ranks(self) -> int:
        """The largest number of ranks."""
        return self.maximum * self.ranks_per_bundle

    @property
    def bundle(self) -> dict[str, float]:
        """The resources of one bundle of the placement group."""
        one = {"CPU": float(self.cpus), "GPU": float(self.gpus or 0), **self.resources}
        return {name: self.ranks_per_bundle * amount for name, amount in one.items() if amount}


def add_ray_arguments(parser: argparse._ArgumentGroup | argparse.ArgumentParser, *, sweep: bool = False) -> None:  # pyright: ignore[reportPrivateUsage]
    """Add `--on` and the flags of Ray; those of a `sweep` describe whole runs, not ranks."""
    what = "the runs" if sweep else "the ranks"
    parser.add_argument("--on", choices=ENGINES, help=f"where {what} train: actors of a Ray cluster (default: here)")
    where = "of the Ray cluster (default: one that runs here, else a new one)"
    add_cluster_arguments(parser, "HOST:PORT|local", where, sweep=sweep)
    if not sweep:
        text = "GPUs of each rank (default: one per device of the rank, where the cluster has GPUs and the run may use "
        add_flag(parser, "--gpus-per-rank", "N", text + "them)")


def add_cluster_arguments(
    parser: argparse._ArgumentGroup | argparse.ArgumentParser,  # pyright: ignore[reportPrivateUsage]
    address: str,
    where: str,
    *,
    sweep: bool = False,
) -> None:
    """Add the flags that describe the cluster and the placement of the ranks; `where` explains `--address`."""

    def add(flag: str, metavar: str, text: str) -> None:
        add_flag(parser, flag, metavar, text)

    add("--address", address, where)
    add("--runtime-env", "FILE|JSON", "Ray's runtime environment: working_dir, pip, env_vars, ...")
    if sweep:
        return
    add("--strategy", "|".join(STRATEGIES), "of the placement group (default: PACK; --nnodes: STRICT_SPREAD)")
    add("--cpus-per-rank", "N", "CPUs of each rank, and its threads (default: 1)")
    parser.add_argument(
        *("--resources-per-rank", "--resources_per_rank"),
        metavar="NAME=AMOUNT",
        action="append",
        default=[],
        help="a custom resource of each rank; repeatable",
    )


def ray_request(args: argparse.Namespace, default_ranks: int = 1) -> RayRequest | None:
    """The ranks that the flags of `lockstep train` describe; None without `--on ray`.

    Raises:
        ConfigError: flags contradict each other, or are for Ray without `--on ray`.
    """
    if args.on is None:
        for name in _RAY_FLAGS:
            if getattr(args, name):
                raise ConfigError(f"{_flag(name)} is for ranks on a Ray cluster; add --on ray, or leave it out")
        return None
    for name in _OTHER_LAUNCHER:
        if getattr(args, name) not in (None, False):
            raise ConfigError(f"{_flag(name)} is for launchers that run on each node, and --on ray needs none; omit it")
    minimum, maximum, per_bundle = _counts(args, default_ranks)
    return RayRequest(
        minimum=minimum,
        maximum=maximum,
        ranks_per_bundle=per_bundle,
        strategy=checked_strategy(args.strategy or ("STRICT_SPREAD" if args.nnodes else "PACK")),
        cpus=number(args.cpus_per_rank or "1", "--cpus-per-rank"),
        gpus=None if args.gpus_per_rank is None else number(args.gpus_per_rank, "--gpus-per-rank", least=0),
        resources=resources_of(args.resources_per_rank),
        address=checked_address(args.address),
        runtime_env=runtime_env_of(args.runtime_env),
        join_timeout_s=seconds_of(args.join_timeout or "300", "--join-timeout"),
    )


def _counts(args: argparse.Namespace, default_ranks: int) -> tuple[int, int, int]:
    """The smallest and the largest number of bundles, and the ranks of each."""
    if args.nnodes is not None:
        if args.ranks is not None:
            raise ConfigError(
                f"--ranks {args.ranks} and --nnodes {args.nnodes} both count ranks; with --nnodes give --nproc-per-node"
            )
        per_node = number(args.nproc_per_node or "1", "--nproc-per-node")
        return *node_counts(args.nnodes), per_node
    if args.nproc_per_node is not None:
        raise ConfigError(f"--nproc-per-node {args.nproc_per_node}: add --nnodes N, or give --ranks N instead")
    if args.ranks is None:
        return default_ranks, default_ranks, 1
    low, colon, high = args.ranks.partition(":")
    minimum = number(low, "--ranks", "N or MIN:MAX with --on ray")
    maximum = number(high, "--ranks", "N or MIN:MAX with --on ray") if colon else minimum
    if minimum > maximum:
        raise ConfigError(f"--ranks {args.ranks}: the maximum is less than the minimum; use {maximum}:{minimum}")
    return minimum, maximum, 1


def checked_strategy(strategy: str) -> str:
    """The strategy of a placement group, as typed."""
    if strategy not in STRATEGIES:
        raise ConfigError(f"--strategy {strategy} must be one of {', '.join(STRATEGIES)}")
    return strategy


def resources_of(pairs: list[str]) -> dict[str, float]:
    """The custom resources of `--resources-per-rank NAME=AMOUNT`."""
    found: dict[str, float] = {}
    for pair in pairs:
        name, _, amount = pair.partition("=")
        try:
            value = float(amount)
        except ValueError:
            value = 0.0
        if not name or not 0 < value < float("inf"):
            raise ConfigError(f"--resources-per-rank {pair} is not NAME=AMOUNT, such as fast_disk=1")
        if name in ("CPU", "GPU", "memory"):
            raise ConfigError(f"--resources-per-rank {pair}: give --cpus-per-rank or --gpus-per-rank instead")
        found[name] = value
    return found


def checked_address(address: str | None) -> str | None:
    """The address of a cluster for a driver, as typed."""
    if address is not None and "://" in address:
        raise ConfigError(
            f"--address {address}: ranks are placed by a process on a node of the cluster; give HOST:PORT there, or "
            "submit a job from anywhere: lockstep submit ... --on ray --address http://HEAD:8265"
        )
    return address


def runtime_env_of(text: str | None) -> dict[str, Any] | None:
    """The runtime environment in a YAML or JSON file, or given as JSON."""
    if text is None:
        return None
    if not text.lstrip().startswith("{"):
        from lockstep.config import settings

        found = settings.parse(read_text(Path(text)), f"--runtime-env {text}")
    else:
        try:
            found = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"--runtime-env {text} is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise ConfigError(f"--runtime-env {text} must be a mapping, such as {{'working_dir': '.'}}")
    found = cast(dict[str, Any], found)
    variables: Any = found.get("env_vars") or {}
    if not isinstance(variables, Mapping):
        raise ConfigError(f"--runtime-env {text}: env_vars={variables} must be a mapping from names to text")
    texts = {str(name): _variable(value) for name, value in cast(Mapping[Any, Any], variables).items()}
    return {**found, "env_vars": texts} if "env_vars" in found else found


def _variable(value: object) -> str:
    """The text of an environment variable, which YAML may have read as a number, a switch or nothing."""
    if value is None:
        return ""
    return json.dumps(value) if isinstance(value, bool) else str(value)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
