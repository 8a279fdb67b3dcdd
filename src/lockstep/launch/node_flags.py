"""The flags that choose the nodes and ranks of a launch: torchrun's names, and ours."""

import argparse
import os
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from lockstep.errors import ConfigError
from lockstep.launch.flags import add_flag, number, port_of, seconds_of, split_address
from lockstep.launch.nodes import Nodes
from lockstep.launch.supervise import DEFAULT_BOUNDS, Bounds
from lockstep.system.cores import usable_cores

_RENDEZVOUS_PORT = 29400  # torchrun's default, for --rdzv-endpoint
_MASTER_PORT = 29500  # torchrun's default, for --master-addr
_MULTI_NODE_FLAGS = (
    "node_rank",
    "rdzv_endpoint",
    "rdzv_id",
    "rdzv_backend",
    "local_addr",
    "join_timeout",
    "token_file",
)
ELASTIC_RESTARTS = 3
"""Default where nodes may be lost: a lost node ends all ranks, and only a restart continues on the others."""


def add_node_arguments(parser: argparse._ArgumentGroup | argparse.ArgumentParser, *, restarts: bool = True) -> None:  # pyright: ignore[reportPrivateUsage]
    """Add the flags, each with hyphens and with underscores."""

    def add(flag: str, metavar: str | None, text: str, *aliases: str) -> None:
        add_flag(parser, flag, metavar, text, *aliases)

    add("--nnodes", "N|MIN:MAX", "machines; MIN:MAX: they may come and go")
    aliases = ("--node-index", "--node_index")  # as workflow files have it
    add("--node-rank", "R", "which of them this is, from 0; the main node is 0 (default: detected)", *aliases)
    add("--nproc-per-node", "K|auto", "ranks on this machine (default: auto, one per GPU, else 1)")
    add("--rdzv-endpoint", "HOST:PORT", "where the nodes meet: an address of the main node, a free port there")
    add("--init-file", "FILE", "meet through a file that all nodes see, instead of an address")
    add("--rdzv-id", "ID", "name of the run; nodes of other runs are sent away")
    add("--rdzv-backend", "c10d|static", "accepted as torchrun's; both mean the same here")
    add("--master-addr", "HOST", "as --rdzv-endpoint, with --master-port")
    add("--master-port", "PORT", "see --master-addr")
    add("--local-addr", "ADDRESS", "this machine's own address, where the one found is not the right one")
    add("--standalone", None, "this machine alone")
    add("--join-timeout", "SECONDS", "how long to wait for the other nodes (default: 300)")
    add("--token-file", "FILE", "holds a secret that all nodes share (or set LOCKSTEP_TOKEN)")
    if restarts:
        add("--max-restarts", "N", "restart all ranks up to N times after one failed (default: 0; MIN:MAX: 3)")
        add_grace(parser)


def add_grace(parser: argparse._ArgumentGroup | argparse.ArgumentParser) -> None:  # pyright: ignore[reportPrivateUsage]
    """Add `--grace-s`, as every launcher of ours has it."""
    grace_s = DEFAULT_BOUNDS.grace_s
    text = f"time for a last checkpoint: seconds from a signal to SIGKILL of the ranks (default: {grace_s:g})"
    add_flag(parser, "--grace-s", "S", text)


def bounds_of(args: argparse.Namespace, early_s: float = DEFAULT_BOUNDS.early_s) -> Bounds:
    """How long ranks may take to end, with `--grace-s` after a signal."""
    grace_s = DEFAULT_BOUNDS.grace_s if args.grace_s is None else seconds_of(args.grace_s, "--grace-s")
    return Bounds(early_s=early_s, grace_s=grace_s)


def add_ranks(parser: argparse.ArgumentParser) -> None:
    """Add `--ranks`, by which `lockstep train` counts them, to a launcher of scripts."""
    add_flag(parser, "--ranks", "N|auto", "the same as --nproc-per-node, for one machine")


def take_ranks(args: argparse.Namespace) -> None:
    """Treat `--ranks N` as `--nproc-per-node N`. Raises `ConfigError` if other flags contradict it."""
    if args.ranks is None:
        return
    if args.nproc_per_node is not None:
        raise ConfigError("--ranks and --nproc-per-node both count the ranks of this machine; give one")
    if args.nnodes not in (None, "1"):
        raise ConfigError(
            f"--ranks {args.ranks} counts the ranks of one machine; with --nnodes {args.nnodes} say --nproc-per-node K"
        )
    if args.ranks != "auto":
        number(args.ranks, "--ranks", "a number or auto")
    args.nproc_per_node = args.ranks


def without_node_flags(words: list[str]) -> list[str]:
    """Arguments with the flags that only the launcher of a node needs taken out."""
    flags = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_node_arguments(flags)
    return flags.parse_known_args(words)[1]


def asks_for_nodes(args: argparse.Namespace, *more: str) -> bool:
    """Whether the flags ask for a launcher of this node's ranks, whatever started this process.

    Raises `ConfigError` for flags that mean nothing without `--nnodes`; `more` of them, as the command has it.
    """
    if args.nnodes is not None or args.standalone:
        return True
    for name in (*_MULTI_NODE_FLAGS, *more):
        if getattr(args, name) is not None:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(f"{flag} {getattr(args, name)} is for several machines; add --nnodes N")
    return False


def nodes_of(args: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> Nodes:
    """The machines that the flags describe. Raises `ConfigError` for flags that contradict each other."""
    minimum, maximum = node_counts(args.nnodes)
    if maximum > 1 and args.standalone:
        raise ConfigError(f"--standalone is this machine alone, but --nnodes={args.nnodes}; leave one of them out")
    if args.rdzv_backend not in (None, "c10d", "static"):
        raise ConfigError(f"--rdzv-backend {args.rdzv_backend} is not supported; use c10d, or leave it out")
    rank = environment.get("RANK", environment.get("JAX_RANK"))
    size = environment.get("WORLD_SIZE", environment.get("JAX_WORLD_SIZE"))
    typed = f"--nnodes {args.nnodes}" if args.nnodes is not None else "--standalone" if args.standalone else None
    if typed is not None and rank is not None and size is not None:
        raise ConfigError(
            f"{typed} starts ranks, but this process is rank {rank} of {size} already; leave {typed.split()[0]} out, "
            "or start it without that launcher"
        )
    host, port = _endpoint(args, alone=maximum == 1)
    if maximum > 1 and not host and args.init_file is None:
        raise ConfigError(
            f"--nnodes {args.nnodes}: the nodes need a place to meet; give --rdzv-endpoint HOST:PORT, an address of "
            "the main node, or --init-file FILE on a disk that all nodes see"
        )
    if host and args.init_file is not None:
        raise ConfigError("--init-file and an address both say where to meet; give one")
    rank = _node_rank(args, environment, elastic=minimum != maximum)
    if maximum == 1 and args.node_rank is not None and rank != 0:
        raise ConfigError(f"--node-rank {rank} does not exist on one machine; leave it out, or add --nnodes N")
    nodes = Nodes(
        minimum=minimum,
        maximum=maximum,
        node_rank=rank,
        nproc=nproc_of(args.nproc_per_node, _framework(args)),
        host=host,
        port=port,
        init_file=Path(args.init_file) if args.init_file is not None else None,
        run_id=args.rdzv_id or "",
        token=token_of(args.token_file, environment),
        local_address=args.local_addr or "",
        join_timeout_s=seconds_of(args.join_timeout or "300", "--join-timeout"),
    )
    if maximum == 1 and (args.master_addr, args.master_port) != (None, None):
        return replace(nodes, setting="--master-addr, --master-port", rank_port=port)
    return nodes


def max_restarts_of(args: argparse.Namespace, nodes: Nodes) -> int:
    """How often all ranks may start anew after one failed."""
    if args.max_restarts is None:
        return ELASTIC_RESTARTS if nodes.elastic else 0
    return number(args.max_restarts, "--max-restarts", least=0)


def node_counts(text: str | None) -> tuple[int, int]:
    """The minimum and maximum of `--nnodes`; default: one node."""
    if text is None:
        return 1, 1
    low, colon, high = text.partition(":")
    minimum = number(low, "--nnodes", "N or MIN:MAX")
    maximum = number(high, "--nnodes", "N or MIN:MAX") if colon else minimum
    if minimum > maximum:
        raise ConfigError(f"--nnodes {text}: the maximum is less than the minimum; use {maximum}:{minimum}")
    return minimum, maximum


def _endpoint(args: argparse.Namespace, *, alone: bool) -> tuple[str, int]:
    master = args.master_addr is not None or args.master_port is not None
    if args.rdzv_endpoint is not None and master:
        raise ConfigError("--rdzv-endpoint and --master-addr, --master-port both say where to meet; give one")
    if master:
        return args.master_addr or "127.0.0.1", port_of(args.master_port or str(_MASTER_PORT), "--master-port")
    if args.rdzv_endpoint is None:
        return "", 0
    host, port = split_address(args.rdzv_endpoint, "--rdzv-endpoint")
    if alone and port == "0":  # as torchrun's documentation starts several jobs on one machine: any free port
        return "", 0
    return host, port_of(port or str(_RENDEZVOUS_PORT), f"--rdzv-endpoint {args.rdzv_endpoint}: port")


def _node_rank(args: argparse.Namespace, environment: Mapping[str, str], *, elastic: bool) -> int | None:
    if args.node_rank is not None:
        return number(args.node_rank, "--node-rank", least=0)
    if not elastic and args.nnodes is not None and "SLURM_STEP_ID" in environment:  # srun, one task per node
        return number(environment.get("SLURM_NODEID", ""), "SLURM_NODEID", least=0)
    return None


def _framework(args: argparse.Namespace) -> str:
    """The framework that the flags name; else the installed one, torch first."""
    return getattr(args, "ml_framework", None) or ("torch" if find_spec("torch") is not None else "jax")


def nproc_of(text: str | None, framework: str = "torch") -> int:
    """The ranks of this machine: as many as typed, or one per device that the framework can use."""
    if text in (None, "auto", "gpu"):
        from lockstep.launch.gpus import visible_gpus

        gpus = visible_gpus(framework)
        if text == "gpu" and gpus == 0:
            raise ConfigError(
                f"--nproc-per-node gpu, but there is no GPU that {framework} can use; `lockstep doctor` says why"
            )
        return max(gpus, 1)
    return usable_cores() if text == "cpu" else number(text, "--nproc-per-node", "a number, auto, gpu or cpu")


def token_of(path: str | None, environment: Mapping[str, str]) -> str:
    """The secret in the file of `--token-file`; default: LOCKSTEP_TOKEN."""
    if path is None:
        return environment.get("LOCKSTEP_TOKEN", "")
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"--token-file {path} cannot be read: {reason}") from None
    if not token:
        raise ConfigError(f"--token-file {path} is empty; write a secret into it")
    return token
