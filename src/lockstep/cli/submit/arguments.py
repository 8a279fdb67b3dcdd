"""The arguments of `lockstep submit`."""

import argparse
import contextlib
import ipaddress
import re
from pathlib import Path

from lockstep.cli.flags import add_run_arguments
from lockstep.engines.ray.arguments import add_cluster_arguments
from lockstep.errors import ConfigError

DEFAULT_PORT = 29500
GRACE_S = "120"
JOB_RESTARTS = "10"

RAY_PLACEMENT = ("strategy", "cpus_per_rank", "resources_per_rank", "runtime_env")
"""Flags of Ray that a RayJob in Kubernetes has, too."""

ONLY_FOR = {
    "slurm": ("slurm",),
    "kubernetes": ("image", "kind", "namespace", "claim", "mount", "resource", "token_secret"),
    "ssh": ("hosts", "hostfile", "rdzv_endpoint"),
    "ray": ("address", *RAY_PLACEMENT),
}
"""Flags of only one kind of cluster."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the run, as `lockstep train` has them, and those of the cluster."""
    add_run_arguments(parser)
    _add_nodes(parser)
    _add_slurm(parser)
    _add_kubernetes(parser)
    _add_ssh(parser)
    add_cluster_arguments(parser.add_argument_group("ray"), "http://HEAD:8265", "of the dashboard of the cluster")


def _add_nodes(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--on", choices=tuple(ONLY_FOR), help="which kind of cluster (required)")
    add("--dry-run", action="store_true", help="print what would be submitted")
    add("--nnodes", metavar="N|MIN:MAX", help="machines; MIN:MAX: they may come and go (default: 1; ssh: all hosts)")
    add("--nproc-per-node", metavar="K|auto", help="ranks of each (default: one per GPU, else 1)")
    add("--gpus-per-node", metavar="N", default="0", help="GPUs to ask for on each (default: 0; not for ssh)")
    add("--name", metavar="NAME", help="of the job (default: the task and the time)")
    add("--port", metavar="P", help=f"where the launchers meet (default: {DEFAULT_PORT}; slurm: by the job's number)")
    add(
        "--chdir",
        metavar="DIR",
        help="where to run on every node (default: here; kubernetes, ray: the place that image or cluster give)",
    )
    add("--setup", metavar="COMMAND", action="append", default=[], help="a shell command to run first; repeatable")
    add(
        "--lockstep",
        metavar="COMMAND",
        help="what starts Lockstep on the nodes (default: this one; in images lockstep)",
    )
    add("--grace-s", metavar="S", default=GRACE_S, help=f"time for a last checkpoint, seconds (default: {GRACE_S})")
    text = f"how often the cluster may start the job again (default: {JOB_RESTARTS}; slurm and kubernetes only)"
    add("--job-restarts", metavar="N", help=text)
    add("--resume", metavar="DIR", help="resume a run (kubernetes: same --run-dir again)")
    add("--init-from", "--checkpoint", metavar="RUN|FILE", help="start from the policy of another run")
    add("--max-restarts", metavar="N", help="how often the launchers restart all ranks (default: 0; MIN:MAX: 3)")
    add("--join-timeout", metavar="S", help="how long launchers wait for each other, seconds")
    add("--token-file", metavar="FILE", help="secret of the run, a file on every node")


def _add_slurm(parser: argparse.ArgumentParser) -> None:
    parser.add_argument_group("slurm").add_argument(
        "--slurm", metavar="KEY[=VALUE]", action="append", default=[], help="any flag of sbatch, such as partition=gpu"
    )


def _add_kubernetes(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("kubernetes").add_argument
    add("--image", help="the container image, with lockstep in it")
    add("--claim", metavar="NAME", help="PersistentVolumeClaim (ReadWriteMany) that holds the run directory")
    add("--mount", metavar="DIR", help="where the claim appears in the containers (default: /runs)")
    add(
        "--kind",
        choices=("job", "jobset", "trainjob", "rayjob", "pytorchjob"),
        help="what to ask for (default: jobset); all but job need their operator in the cluster",
    )
    add("--namespace", help="Kubernetes namespace")
    add(
        "--resource",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="per node, such as cpu=8 or memory=32Gi; repeatable",
    )
    add("--token-secret", metavar="NAME", help="Secret whose key `token` is the secret of the run")


def _add_ssh(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("ssh").add_argument
    add("--hosts", metavar="A,B,...", help="the machines; the first is the main one")
    add("--hostfile", metavar="FILE", help="the same, one per line")
    add("--rdzv-endpoint", metavar="HOST:PORT", help="where the others reach the first host, if not by its name")


def hosts(args: argparse.Namespace) -> list[str]:
    """The hosts that the arguments name."""
    if bool(args.hosts) == bool(args.hostfile):
        raise ConfigError("name the machines with --hosts alpha,beta or with --hostfile FILE, one of the two")
    if args.hosts:
        found = [host.strip() for host in args.hosts.split(",")]
    else:
        try:
            lines = Path(args.hostfile).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--hostfile {args.hostfile} cannot be read: {error}") from None
        found = [name for line in lines if (name := line.partition("#")[0].strip())]
    for host in found:
        # ssh would parse a leading hyphen as a flag.
        if not re.fullmatch(r"([A-Za-z0-9_][\w.-]*@)?[A-Za-z0-9_][\w.:%-]*", host):
            raise ConfigError(
                f"host {host!r} is not HOST or USER@HOST; one per line or comma, ranks by --nproc-per-node"
            )
        if ":" in host and not is_ipv6(host.rpartition("@")[2]):
            raise ConfigError(f"host {host!r} is no IPv6 address; ssh takes a port from ~/.ssh/config, not from here")
    if not found or len(set(found)) < len(found):
        raise ConfigError(f"hosts {', '.join(found) or '(none)'}: name each machine once, and at least one")
    return found


def is_ipv6(host: str) -> bool:
    """Whether this is an IPv6 address, without brackets."""
    with contextlib.suppress(ValueError):
        ipaddress.IPv6Address(host)
        return True
    return False
