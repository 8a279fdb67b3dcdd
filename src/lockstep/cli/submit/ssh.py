"""Start one launcher per host through ssh; the first host is the main node.

The remote side has no terminal (`ssh -T`), so that stdout and stderr stay separate. Signals go through standard input
instead: a small shell next to the launcher sends it the signals whose names it reads, and TERM at the end of the input.
"""

import argparse
import re
import shlex
import shutil
from pathlib import Path

from lockstep.cli.submit.arguments import DEFAULT_PORT, hosts, is_ipv6
from lockstep.cli.submit.job import Job
from lockstep.cli.submit.ssh_group import HostCommand
from lockstep.errors import ConfigError

_OPTIONS = ("-T", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4")
_HEAD = """\
# Written by `lockstep submit --on ssh`: one command per host, in a terminal of its own; the first is the main one.
# A launcher ends, after a checkpoint, when its command's standard input ends.
"""


def submit(job: Job, args: argparse.Namespace) -> int:
    """Print the commands, or run them and wait for all of them."""
    found = commands(job, args)
    if args.dry_run:
        print(_HEAD + "".join(f"\n{shlex.join(command.words)}\n" for command in found), end="")
        return 0
    if shutil.which("ssh") is None:
        raise ConfigError("there is no ssh here; install it, or add --dry-run to see the commands")
    from lockstep.cli.submit.ssh_group import run

    return run(found, end_s=job.end_s, elastic=job.elastic)


def commands(job: Job, args: argparse.Namespace) -> list[HostCommand]:
    """One command per host, that of the main node first."""
    machines = hosts(args)
    if len(machines) != job.maximum:
        hosts_named = "1 host is" if len(machines) == 1 else f"{len(machines)} hosts are"
        raise ConfigError(f"--nnodes {job.nnodes}, but {hosts_named} named; name as many, or leave --nnodes out")
    # One host meets nobody, and ssh's name of it, or its public address, may not be one that it knows.
    main = machines[0].rpartition("@")[2] if job.maximum > 1 else "localhost"
    endpoint = args.rdzv_endpoint or f"{f'[{main}]' if is_ipv6(main) else main}:{job.port or DEFAULT_PORT}"
    if args.rdzv_endpoint and job.port is not None:
        raise ConfigError(f"--rdzv-endpoint {endpoint} and --port {job.port} both say the port; give one")
    if not re.fullmatch(r"(\[[0-9a-fA-F:.]+(%[\w.-]+)?\]|[^:\s]+):[0-9]{1,5}", endpoint):
        raise ConfigError(f"--rdzv-endpoint {endpoint} is not HOST:PORT, such as 10.0.0.1:{DEFAULT_PORT}")
    what = ["--resume", job.resume, *job.changes] if job.resume else job.train
    if job.run_dir:
        what = [*what, "--run-dir", job.run_dir]
    meet = ["--rdzv-endpoint", endpoint, "--rdzv-id", job.name]
    found: list[HostCommand] = []
    for rank, host in enumerate(machines):
        node_rank = [] if job.elastic else ["--node-rank", str(rank)]
        launcher = [*job.lockstep, "train", *what, *job.node_flags, *node_rank, *meet]
        remote = shlex.join(["exec", "sh", "-c", _remote_script(job, launcher)])
        found.append(HostCommand(host, ["ssh", *_OPTIONS, host, remote]))
    return found


def _remote_script(job: Job, launcher: list[str]) -> str:
    """The launcher and the shell that forwards signals to it, in POSIX sh."""
    directory = shlex.quote(job.chdir or str(Path.cwd()))
    return "; ".join(
        [
            "exec 3<&0 </dev/null",  # only the forwarding shell reads standard input
            f"cd {directory} || exit 2",
            *job.setup,
            f"{shlex.join(launcher)} 3<&- & launcher=$!",
            '{ while read -r name; do kill -s "$name" $launcher; done; kill $launcher; } '
            "<&3 2>/dev/null & forwarder=$!",
            "exec 3<&-",
            "wait $launcher; code=$?",
            "kill $forwarder 2>/dev/null",
            "exit $code",
        ]
    )
