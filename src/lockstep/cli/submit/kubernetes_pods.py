"""The pods of a manifest: one per node, and the script that is their first process.

The script ends with `exec`: the launcher is process 1 of the pod, receives the SIGTERM of an eviction and writes a
checkpoint within the grace period. Pods of a Ray cluster run Ray instead, and drain. All pods share a volume with the
run directory.
"""

import argparse
import re
import shlex
from typing import Any

from lockstep.cli.submit.arguments import DEFAULT_PORT
from lockstep.cli.submit.job import Job
from lockstep.errors import ConfigError

_QUANTITY = r"[0-9]+(\.[0-9]+)?(m|k|[MGTPE]|[KMGTPE]i)?"
_PENDING_S = "3600"  # pods of one job need not start at the same time


def pod(job: Job, args: argparse.Namespace, container_name: str, script: str | None) -> dict[str, Any]:
    """The specification of a pod with one container; `script` None: the command is the operator's."""
    container: dict[str, Any] = {"name": container_name, "image": args.image}
    if script is not None:
        # Kubernetes replaces $(NAME) and $$ in a command, in quotes too; a doubled $ reaches the shell as one.
        container["command"] = ["/bin/sh", "-c", script.replace("$", "$$")]
    if job.chdir:
        container["workingDir"] = job.chdir
    if args.token_secret:
        secret = {"secretKeyRef": {"name": args.token_secret, "key": "token"}}
        container["env"] = [{"name": "LOCKSTEP_TOKEN", "valueFrom": secret}]
    resources = node_resources(job, args)
    if resources:
        container["resources"] = {"requests": dict(resources), "limits": dict(resources)}
    container["volumeMounts"] = [{"name": "runs", "mountPath": args.mount or "/runs"}]
    volumes: list[dict[str, Any]] = [{"name": "runs", "persistentVolumeClaim": {"claimName": args.claim}}]
    if job.gpus:  # nccl needs more shared memory than the container default of 64 MB
        container["volumeMounts"].append({"name": "shm", "mountPath": "/dev/shm"})
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory"}})
    return {"terminationGracePeriodSeconds": job.end_s, "containers": [container], "volumes": volumes}


def ray_pod(job: Job, args: argparse.Namespace, container_name: str) -> dict[str, Any]:
    """The specification of a pod of a Ray cluster: before it ends, Ray drains its node.

    The driver then has the ranks write a checkpoint. SIGTERM does the same only in recent versions of Ray, and only
    where no shell is the first process of the container.
    """
    made = pod(job, args, container_name, None)
    drain = "ray drain-node --reason DRAIN_NODE_REASON_PREEMPTION --reason-message 'the pod ends'"
    drained = "while grep -qsx raylet /proc/[0-9]*/comm; do sleep 1; done"  # Ray ends the raylet when it is idle
    script = f"{drain} --deadline-remaining-seconds {job.end_s} && {drained}"
    made["containers"][0]["lifecycle"] = {"preStop": {"exec": {"command": ["/bin/sh", "-c", script]}}}
    return made


def node_resources(job: Job, args: argparse.Namespace) -> dict[str, str]:
    """What each node asks for, by the names that Kubernetes has for resources."""
    found: dict[str, str] = {}
    pairs: list[str] = args.resource
    for pair in pairs:
        key, _, value = pair.partition("=")
        if not re.fullmatch(r"[a-z][a-zA-Z0-9./-]*", key) or not re.fullmatch(_QUANTITY, value):
            raise ConfigError(f"--resource {pair} is not KEY=QUANTITY, such as cpu=8 or memory=32Gi")
        found[key] = value
    if job.gpus:
        if "nvidia.com/gpu" in found:
            raise ConfigError("--resource nvidia.com/gpu: that follows from --gpus-per-node; use that")
        found["nvidia.com/gpu"] = str(job.gpus)
    return found


def launcher_script(job: Job, args: argparse.Namespace, main: str | None) -> str:
    """The script of a pod; `main` is the first pod's host name, None if the operator sets MASTER_ADDR."""
    lines = [*job.setup, "set -u"]
    if main is None:
        # The operator's RANK counts pods, ours counts processes.
        lines += ["node=$RANK main=$MASTER_ADDR port=$MASTER_PORT", "unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT"]
    else:
        lines += [f"main={main} port={job.port or DEFAULT_PORT}"]
    rank = [] if job.elastic else ["--node-rank", '"$node"' if main is None else '"$JOB_COMPLETION_INDEX"']
    pending = [] if "--join-timeout" in job.flags else ["--join-timeout", _PENDING_S]
    words = [shlex.join([*job.node_flags, *pending]), *rank]
    return "\n".join(
        [
            *lines,
            *new_or_resumed(job, args),
            f'exec {shlex.join(job.lockstep)} train "$@" {" ".join(words)} \\',
            f'  --rdzv-endpoint "$main:$port" --rdzv-id {shlex.quote(job.name)}',
            "",
        ]
    )


def new_or_resumed(job: Job, args: argparse.Namespace) -> list[str]:
    """Lines of a script that set its parameters to the arguments of a new run, or of one that has a checkpoint.

    That one may be of an earlier manifest: its settings change to those of this one, or the launcher refuses, as it
    always does of another task or algorithm.
    """
    changes = shlex.join([*job.identity, *job.changes])
    mount = (args.mount or "/runs").rstrip("/")
    return [
        f"run_dir={shlex.quote(job.run_dir or f'{mount}/{job.name}')}",
        "new=$run_dir n=0  # an earlier attempt without a checkpoint keeps its directory",
        'while [ -e "$new" ]; do n=$((n + 1)); new=$run_dir.$n; done',
        f'set -- {shlex.join(job.train)} --run-dir "$new"',
        'for found in "$run_dir" "$run_dir".[0-9]*; do',
        f'  if [ -e "$found/checkpoints/LATEST" ]; then set -- --resume "$found" {changes}; fi',
        "done",
    ]
