"""The job to submit, checked and independent of the kind of cluster."""

import argparse
import contextlib
import re
import shlex
import shutil
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.cli.request import checked, requested_run, resumption
from lockstep.cli.submit.arguments import JOB_RESTARTS, ONLY_FOR, RAY_PLACEMENT
from lockstep.errors import ConfigError
from lockstep.launch.flags import number, policy_source
from lockstep.launch.node_flags import node_counts
from lockstep.launch.nodes import check_shards

if TYPE_CHECKING:
    from lockstep.run import AnyRun

_LEAST_GRACE_S = 10  # ranks without a checkpoint to write exit within 8 s
_LAUNCHER_EXIT_S = 15  # from SIGKILL of the ranks to the exit of the launchers of all nodes
_LEFT_OUT = ("ranks", "run_dir")  # replaced by --nnodes and --nproc-per-node, and by `Job.run_dir`
_GPUS_OF_SBATCH = {"gres", "gpus", "gpus-per-task", "gpus-per-socket"}
"""Flags of sbatch that ask for GPUs, by kinds, too; `--gpus-per-node` is ours."""
_OF_NEW_RUNS = ("task", "agent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One training on several nodes."""

    name: str
    train: list[str]
    """Arguments of a new run: target and settings."""
    changes: list[str]
    """Arguments for `--resume`: the settings without what only a new run is told."""
    identity: list[str]
    """Task and algorithm, as settings for `--resume`: a run that has others is refused. Empty with `resume`."""
    run_dir: str
    """The run directory; empty: the main node chooses one."""
    resume: str
    """The run directory to resume; empty: a new run."""
    minimum: int
    maximum: int
    nproc: str
    """Ranks of each node, a number or `auto`."""
    gpus: int
    port: int | None
    grace_s: int
    """Between a signal and SIGKILL of the ranks."""
    job_restarts: int
    setup: list[str]
    """Shell commands to run first, in the shell of the launcher; if one fails, the node exits with code 2."""
    lockstep: list[str]
    """The `lockstep` command on the nodes."""
    chdir: str
    flags: list[str]
    """Flags of the launcher: grace period, restarts, timeouts, token."""

    @property
    def elastic(self) -> bool:
        """Whether nodes may come and go."""
        return self.minimum != self.maximum

    @property
    def end_s(self) -> int:
        """Between a signal to the launchers and their own SIGKILL: they end ranks that are late, and report it."""
        return self.grace_s + _LAUNCHER_EXIT_S

    @property
    def nnodes(self) -> str:
        """The value of `--nnodes`."""
        return f"{self.minimum}:{self.maximum}" if self.elastic else str(self.maximum)

    @property
    def node_flags(self) -> list[str]:
        """Flags of every launcher, without the rendezvous."""
        return ["--nnodes", self.nnodes, "--nproc-per-node", self.nproc, *self.flags]


def requested_job(args: argparse.Namespace) -> Job:
    """The job that the arguments describe; raises `ConfigError` if it could not run."""
    _check_flags(args)
    minimum, maximum = _nodes(args)
    gpus = number(args.gpus_per_node, "--gpus-per-node", least=0)
    with _where_it_starts(args):
        new_run = requested_run(args) if args.resume is None else None
        run, num_shards, policy = _checked_run(args, new_run)
        flags = _launcher_flags(args)
    processes = max(1, gpus // run.devices_per_process)
    nproc = args.nproc_per_node or ("auto" if args.on == "ssh" else str(processes))
    if nproc != "auto":
        number(nproc, "--nproc-per-node", "a number or auto")
    _check_world(run, [minimum, maximum], nproc, num_shards)
    by_sbatch = {flag.partition("=")[0] for flag in args.slurm} & _GPUS_OF_SBATCH
    _check_devices(run, nproc, gpus, args.on, asked=bool(gpus or by_sbatch or _asks_for_devices(args)))
    grace_s = number(args.grace_s, "--grace-s", "a number of seconds", least=_LEAST_GRACE_S)
    return Job(
        name=_name(args, run),
        train=_words(args, target=True) + ([] if policy is None else ["--init-from", policy]),
        changes=_words(args, target=False),
        identity=[] if new_run is None else _identity(new_run),
        run_dir=args.run_dir or "",
        resume=args.resume or "",
        minimum=minimum,
        maximum=maximum,
        nproc=nproc,
        gpus=gpus,
        port=_port(args.port),
        grace_s=grace_s,
        job_restarts=number(
            JOB_RESTARTS if args.job_restarts is None else args.job_restarts, "--job-restarts", least=0
        ),
        setup=[f"eval {shlex.quote(_one_line(command, '--setup'))} || exit 2" for command in args.setup],
        lockstep=_lockstep(args),
        chdir=args.chdir or "",
        flags=flags,
    )


def submit_text(text: str, command: list[str], args: argparse.Namespace, where: str) -> int:
    """Print `text` with `--dry-run`, else pass it to the standard input of `command`; returns the exit code.

    `where` names where the command exists, for the error if it does not exist here.
    """
    if args.dry_run:
        print(text, end="")
        return 0
    if shutil.which(command[0]) is None:
        raise ConfigError(f"there is no {command[0]} here; run this where {where}")
    return subprocess.run(command, input=text.encode(), check=False).returncode


def _where_it_starts(args: argparse.Namespace) -> AbstractContextManager[None]:
    """The directory where the job starts and relative paths begin, if this machine has it; else the current one."""
    if args.on in ("slurm", "ssh") and args.chdir and Path(args.chdir).is_dir():
        return contextlib.chdir(args.chdir)
    return contextlib.nullcontext()


def _check_flags(args: argparse.Namespace) -> None:
    ray_too = args.on == "kubernetes" and args.kind == "rayjob"
    for kind, names in ONLY_FOR.items():
        given = [name for name in names if getattr(args, name) and not (ray_too and name in RAY_PLACEMENT)]
        if kind != args.on and given:
            raise ConfigError(f"--{given[0].replace('_', '-')} is for --on {kind}, and this is --on {args.on}")
    if args.job_restarts is not None and args.on in ("ssh", "ray"):
        raise ConfigError(
            f"--job-restarts {args.job_restarts}: nothing starts a job again with --on {args.on}; use --max-restarts"
        )
    if args.ranks is not None:
        raise ConfigError(
            f"--ranks {args.ranks}: say how many machines (--nnodes) and ranks of each (--nproc-per-node)"
        )
    for flag, value in (("--run-dir", args.run_dir), ("--resume", args.resume), ("--chdir", args.chdir)):
        if value is not None:
            _one_line(value, flag)


def _nodes(args: argparse.Namespace) -> tuple[int, int]:
    if args.nnodes is None and args.on == "ssh":
        from lockstep.cli.submit.arguments import hosts

        count = len(hosts(args))
        return count, count
    return node_counts(args.nnodes)


def _checked_run(args: argparse.Namespace, new_run: "AnyRun | None") -> tuple["AnyRun", int | None, str | None]:
    """The run, its shards if it is resumed, and the policy that it begins with."""
    if new_run is None:
        found = resumption(args)
        if found.exact is not None:
            raise ConfigError(
                f"--resume {args.resume} names one checkpoint, and a job that starts again continues from the newest; "
                f"use --resume {shlex.quote(str(found.run_dir))}"
            )
        return checked(args, found.run), found.num_shards, None
    run = checked(args, new_run)
    if args.init_from is None:
        return run, None, None
    if args.on != "kubernetes":  # a path in the containers cannot be checked here
        from lockstep.session.start_policy import check_start_policy

        source = policy_source(args.init_from)
        assert source is not None
        check_start_policy(source, run)
    return run, None, _one_line(args.init_from, "--init-from")


def _identity(run: "AnyRun") -> list[str]:
    """Paths in it are the user's own, not absolute: a container has the code somewhere else."""
    task = [] if run.task is None else ["--set", f"task={run.task}"]
    return [*task, "--set", f"algo={run.algo}"]


def _check_world(run: "AnyRun", nodes: list[int], nproc: str, num_shards: int | None) -> None:
    """Check the counts for the smallest and the largest world."""
    from lockstep.world import World

    shards = run.num_shards or num_shards
    if nodes[0] != nodes[1] and shards is None:
        check_shards(f"--nnodes {nodes[0]}:{nodes[1]}", nodes[1] * (1 if nproc == "auto" else int(nproc)), None)
    for count in dict.fromkeys(nodes):
        size = count * (1 if nproc == "auto" else int(nproc))
        if shards is not None and size > shards:
            raise ConfigError(
                f"--nnodes {count} with --nproc-per-node {nproc} are {size} ranks, more than num_shards={shards}; "
                f"use fewer, or --set num_shards={size} for a new run"
            )
        if nproc != "auto" or shards is not None:
            world = World(size=size).with_shards(shards)
            run.minibatch_rows(world)


def _asks_for_devices(args: argparse.Namespace) -> bool:
    """Whether a Kubernetes node asks for devices of another maker: `--resource amd.com/gpu=8`."""
    return any("/" in pair.partition("=")[0] for pair in args.resource)


def _check_devices(run: "AnyRun", nproc: str, gpus: int, on: str, *, asked: bool) -> None:
    """Raise `ConfigError` if the job has GPUs and the run does not use them, or the reverse.

    `gpus` are those of a node, 0 where `--slurm` asks for GPUs in the cluster's own words.
    """
    if on == "ssh":
        if gpus:
            raise ConfigError(f"--gpus-per-node {gpus}: ssh hosts have the GPUs they have; use --nproc-per-node {gpus}")
        return
    if not asked and (run.device == "cuda" or run.backend == "nccl"):
        wanted = "device=cuda" if run.device == "cuda" else "backend=nccl"
        raise ConfigError(f"{wanted}, but no GPU is asked for; add --gpus-per-node N")
    if gpus and run.device == "cpu":
        raise ConfigError(
            f"--gpus-per-node {gpus}: device=cpu leaves them idle; leave it out, or add --device cuda to use them"
        )
    devices = run.devices_per_process
    if gpus and nproc != "auto" and int(nproc) * devices > gpus:
        if devices > gpus:
            raise ConfigError(f"devices_per_process={devices} is more than --gpus-per-node {gpus}; use at most {gpus}")
        more, takes = ("", "a rank takes one GPU")
        if devices > 1:
            more, takes = f" with devices_per_process={devices}", f"a process takes {devices} GPUs"
        raise ConfigError(
            f"--nproc-per-node {nproc}{more} is more than --gpus-per-node {gpus}; {takes}: "
            f"use --nproc-per-node {gpus // devices}"
        )


def _name(args: argparse.Namespace, run: "AnyRun") -> str:
    """The name of the job, valid as a host name in Kubernetes."""
    if args.name is None:
        task = re.sub(r"[^a-z0-9]+", "-", run.subject.rpartition(":")[2].lower()).strip("-")
        return f"{task if task[:1].isalpha() else 'run-' + task}"[:32].rstrip("-") + time.strftime("-%m%d-%H%M%S")
    if not re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", args.name):
        raise ConfigError(
            f"--name {args.name} must be lower-case letters, digits and hyphens, beginning with a letter, at most 63"
        )
    return args.name


def _words(args: argparse.Namespace, *, target: bool) -> list[str]:
    """The arguments of `lockstep train` that parse to this namespace."""
    from lockstep.cli.flags import add_run_arguments

    flags = argparse.ArgumentParser(add_help=False)
    add_run_arguments(flags)
    words = [args.target] if target and args.target else []
    for action in flags._actions:  # pyright: ignore[reportPrivateUsage]
        value = getattr(args, action.dest)
        if not action.option_strings or action.dest in _LEFT_OUT or value == action.default:
            continue
        if not target and action.dest in _OF_NEW_RUNS:
            continue
        flag = action.option_strings[0]
        if action.nargs == 0:
            words.append(flag)
        else:
            values: list[str] = args.set if action.dest == "set" else [value]
            words += [word for one in values for word in (flag, _one_line(one, flag))]
    return words


def _launcher_flags(args: argparse.Namespace) -> list[str]:
    flags: list[str] = ["--grace-s", args.grace_s]
    if args.max_restarts is not None:
        flags += ["--max-restarts", str(number(args.max_restarts, "--max-restarts", least=0))]
    if args.join_timeout is not None:
        flags += ["--join-timeout", str(number(args.join_timeout, "--join-timeout", "a number of seconds"))]
    if args.token_file is not None:
        if args.on == "slurm" and not Path(args.token_file).is_file():
            raise ConfigError(f"--token-file {args.token_file} does not exist; write the secret of the run into it")
        flags += ["--token-file", _one_line(args.token_file, "--token-file")]
    return flags


def _lockstep(args: argparse.Namespace) -> list[str]:
    """The `lockstep` command on the nodes: by default the absolute path here, as ssh shells may have another PATH."""
    if args.lockstep is not None:
        try:
            words = shlex.split(_one_line(args.lockstep, "--lockstep"))
        except ValueError as error:
            raise ConfigError(f"--lockstep {args.lockstep}: {error}") from None
        if not words:
            raise ConfigError("--lockstep is empty; give a command, such as --lockstep /opt/venv/bin/lockstep")
        return words
    if args.on == "kubernetes":
        return ["lockstep"]
    installed = Path(sys.executable).with_name("lockstep")
    if installed.exists():
        return [str(installed)]
    found = shutil.which("lockstep")
    return [found] if found else [sys.executable, "-m", "lockstep.cli"]


def _port(text: str | None) -> int | None:
    if text is None:
        return None
    port = number(text, "--port")
    if not 1024 <= port <= 65535:
        raise ConfigError(f"--port {port} must be from 1024 to 65535")
    return port


def _one_line(text: str, flag: str) -> str:
    if not text.isprintable():
        raise ConfigError(f"{flag} {text!r} holds a line break or a control character; put it into a config file")
    return text
