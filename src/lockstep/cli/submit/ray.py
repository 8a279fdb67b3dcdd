"""Submit a Ray job, whose entrypoint is `lockstep train --on ray`.

The driver runs on the head of the cluster, and Ray places the ranks.
"""

import argparse
import json
import shlex
from typing import Any

from lockstep.cli.submit.job import Job
from lockstep.engines.ray.arguments import checked_strategy, resources_of, runtime_env_of
from lockstep.errors import ConfigError
from lockstep.launch.flags import number

_THREADS = "OMP_NUM_THREADS"
_STOP_WAIT = "RAY_JOB_STOP_WAIT_TIME_S"  # between SIGTERM and SIGKILL of `ray job stop`; Ray's default is 3


def submit(job: Job, args: argparse.Namespace) -> int:
    """Print the equivalent `ray job submit` command, to be pasted into a shell, or submit the job."""
    address = _address(args)
    entrypoint, environment = _entrypoint(job, args), runtime_env(job, args)
    if args.dry_run:
        given = {"--address": address, "--submission-id": job.name, "--runtime-env-json": json.dumps(environment)}
        words = [word for pair in given.items() for word in pair]
        # Ray joins the words after `--` into a shell command: one word of many would be the name of a program.
        print(shlex.join(["ray", "job", "submit", "--no-wait", *words, "--", "sh", "-c", entrypoint]))
        return 0
    from lockstep.engines.ray.cluster import submit_job

    submit_job(address, job.name, entrypoint, environment)
    flag = shlex.join(["--address", address])
    print(f"submitted {job.name}")
    print(f"follow it with: ray job logs --follow {flag} {job.name}")
    print(f"end it, with a checkpoint, by: ray job stop {flag} {job.name}")
    return 0


def _address(args: argparse.Namespace) -> str:
    if not args.address:
        raise ConfigError("name the head of the cluster, where its dashboard listens: --address http://HEAD:8265")
    if not args.address.startswith(("http://", "https://")):
        raise ConfigError(
            f"--address {args.address} is not that of a dashboard, which accepts jobs; give http://HEAD:8265"
        )
    return args.address


def driver_flags(job: Job, args: argparse.Namespace) -> list[str]:
    """The flags of `lockstep train` on the cluster: the ranks, and what each needs."""
    if job.nproc == "auto":
        raise ConfigError("--nproc-per-node auto is not known before Ray has chosen the nodes; give a number")
    if job.port is not None or "--token-file" in job.flags:
        flag = "--token-file" if job.port is None else "--port"
        raise ConfigError(f"{flag} is for launchers that meet at an address, and Ray connects its nodes; leave it out")
    gpus, left = divmod(job.gpus, int(job.nproc))
    if left:
        raise ConfigError(
            f"--gpus-per-node {job.gpus} do not divide among --nproc-per-node {job.nproc}; a rank takes whole GPUs"
        )
    flags = ["--on", "ray", "--address", "auto", "--nnodes", job.nnodes, "--nproc-per-node", job.nproc]
    flags += ["--gpus-per-rank", str(gpus)]
    if args.strategy:
        flags += ["--strategy", checked_strategy(args.strategy)]
    if args.cpus_per_rank:
        flags += ["--cpus-per-rank", str(number(args.cpus_per_rank, "--cpus-per-rank"))]
    resources_of(args.resources_per_rank)  # refuses what is no resource
    for pair in args.resources_per_rank:
        flags += ["--resources-per-rank", pair]
    return [*flags, *job.flags]


def preamble(job: Job, args: argparse.Namespace) -> list[str]:
    """Shell commands before the training."""
    # Ray sets OMP_NUM_THREADS=1 for entrypoints, which would look like the user's choice for the ranks.
    threads = [] if _THREADS in runtime_env(job, args)["env_vars"] else [f"unset {_THREADS}"]
    directory = [f"cd {shlex.quote(job.chdir)} || exit 2"] if job.chdir else []
    return [*directory, *threads, *job.setup]


def train_command(job: Job, what: str, flags: list[str]) -> str:
    """The training; `what` is shell text. `exec` replaces the shell, which a signal would otherwise end first."""
    return f"exec {shlex.join(job.lockstep)} train {what} {shlex.join(flags)}"


def _entrypoint(job: Job, args: argparse.Namespace) -> str:
    """The shell command of the job."""
    what = ["--resume", job.resume, *job.changes] if job.resume else job.train
    run_dir = [] if job.resume else ["--run-dir", job.run_dir or f"runs/{job.name}"]
    train = train_command(job, shlex.join([*what, *run_dir]), driver_flags(job, args))
    return "; ".join([*preamble(job, args), train])


def runtime_env(job: Job, args: argparse.Namespace) -> dict[str, Any]:
    """The user's runtime environment, and the time that a stopped job has for a checkpoint."""
    found = runtime_env_of(args.runtime_env) or {}
    variables = {_STOP_WAIT: str(job.end_s), "RAY_USAGE_STATS_ENABLED": "0", **found.get("env_vars", {})}
    return {**found, "env_vars": variables}
