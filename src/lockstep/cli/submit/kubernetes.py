"""Write a manifest for Kubernetes: a JobSet, or a PyTorchJob of the Kubeflow training operator.

There is one pod per node. Its first process is our launcher (`exec`), which receives the SIGTERM of an eviction and
writes a checkpoint within the grace period. All pods share a volume with the run directory.
"""

import argparse
import re
import shlex
from pathlib import PurePosixPath
from typing import Any

from lockstep.cli.submit.arguments import DEFAULT_PORT
from lockstep.cli.submit.job import Job, submit_text
from lockstep.config import settings
from lockstep.errors import ConfigError

_MAX_LABEL = 63  # characters of a label in a host name
_PENDING_S = "3600"  # pods of one job need not start at the same time
_ATTEMPT = "JOBSET_RESTART_ATTEMPT"


def submit(job: Job, args: argparse.Namespace) -> int:
    """Print the manifest, or pass it to `kubectl`."""
    text = f"# Written by `lockstep submit --on kubernetes`.\n{settings.to_yaml(manifest(job, args))}"
    where = "the cluster is reached from, or add --dry-run to see the manifest"
    return submit_text(text, ["kubectl", "apply", "-f", "-"], args, where)


def manifest(job: Job, args: argparse.Namespace) -> dict[str, Any]:
    """The complete manifest, as plain values."""
    _check(job, args)
    result = _pytorchjob(job, args) if args.kind == "pytorchjob" else _jobset(job, args)
    if args.namespace:
        result["metadata"]["namespace"] = args.namespace
    return result


def _check(job: Job, args: argparse.Namespace) -> None:
    mount = PurePosixPath(args.mount or "/runs")
    if not args.image:
        raise ConfigError("name the container image that has Lockstep in it: --image registry/name:tag")
    if not args.claim:
        raise ConfigError("checkpoints need a volume that all pods see: --claim NAME of a PersistentVolumeClaim")
    for flag, value in (
        ("--claim", args.claim),
        ("--namespace", args.namespace),
        ("--token-secret", args.token_secret),
    ):
        if value is not None and not re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", value):
            raise ConfigError(f"{flag} {value} is not a Kubernetes name: lower-case letters, digits and hyphens")
    if not mount.is_absolute() or ".." in mount.parts:
        raise ConfigError(f"--mount {mount} must be an absolute path, such as /runs")
    if job.resume:
        raise ConfigError(
            f"--resume {job.resume}: a job goes on by itself where its run directory holds a checkpoint; "
            "submit it again with the same --run-dir"
        )
    if job.run_dir and mount not in PurePosixPath(job.run_dir).parents:
        raise ConfigError(f"--run-dir {job.run_dir} is not on the claim; use a place such as {mount / job.name}")
    last_pod = f"{job.name}-node-0-{job.maximum - 1}-abcde"  # as JobSet names it
    if len(last_pod) > _MAX_LABEL:
        raise ConfigError(f"--name {job.name} is too long for names of pods by {len(last_pod) - _MAX_LABEL} letters")
    if args.kind == "pytorchjob" and job.elastic:
        raise ConfigError(f"--nnodes {job.nnodes}: a PyTorchJob has a fixed number of nodes here; use --kind jobset")


def _jobset(job: Job, args: argparse.Namespace) -> dict[str, Any]:
    main = f"{job.name}-node-0-0.{job.name}"  # resolved by the headless service of the JobSet
    pod = _pod(job, args, "lockstep", _script(job, args, main))
    attempt = {"fieldRef": {"fieldPath": "metadata.annotations['jobset.sigs.k8s.io/restart-attempt']"}}
    pod["containers"][0]["env"].append({"name": _ATTEMPT, "valueFrom": attempt})
    spec = {
        "parallelism": job.maximum,
        "completions": job.maximum,
        "completionMode": "Indexed",
        # An elastic job restarts a lost node alone; otherwise all nodes restart together.
        "backoffLimit": job.job_restarts * job.maximum if job.elastic else 0,
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "FailJob",
                    "onExitCodes": {
                        "containerName": "lockstep",
                        "operator": "In",
                        "values": [ConfigError.exit_code],
                    },
                }
            ]
        },
        "template": {"spec": pod},
    }
    mistake = {"name": "mistake", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": job.name},
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": {"maxRestarts": job.job_restarts, "rules": [mistake]},
            "replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": spec}}],
        },
    }


def _pytorchjob(job: Job, args: argparse.Namespace) -> dict[str, Any]:
    port = job.port or DEFAULT_PORT

    def replicas(count: int) -> dict[str, Any]:
        pod = _pod(job, args, "pytorch", _script(job, args, None))  # the operator requires these two names
        pod["containers"][0]["ports"] = [{"name": "pytorchjob-port", "containerPort": port}]
        del pod["restartPolicy"]  # set by the operator
        return {"replicas": count, "restartPolicy": "OnFailure", "template": {"spec": pod}}

    workers = {"Worker": replicas(job.maximum - 1)} if job.maximum > 1 else {}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": job.name},
        "spec": {
            "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": job.job_restarts},
            "pytorchReplicaSpecs": {"Master": replicas(1), **workers},
        },
    }


def _pod(job: Job, args: argparse.Namespace, name: str, script: str) -> dict[str, Any]:
    container: dict[str, Any] = {"name": name, "image": args.image, "command": ["/bin/sh", "-c", script], "env": []}
    if job.chdir:
        container["workingDir"] = job.chdir
    if args.token_secret:
        secret = {"secretKeyRef": {"name": args.token_secret, "key": "token"}}
        container["env"].append({"name": "LOCKSTEP_TOKEN", "valueFrom": secret})
    resources = _resources(job, args)
    if resources:
        container["resources"] = {"requests": dict(resources), "limits": dict(resources)}
    container["volumeMounts"] = [{"name": "runs", "mountPath": args.mount or "/runs"}]
    volumes: list[dict[str, Any]] = [{"name": "runs", "persistentVolumeClaim": {"claimName": args.claim}}]
    if job.gpus:  # nccl needs more shared memory than the container default of 64 MB
        container["volumeMounts"].append({"name": "shm", "mountPath": "/dev/shm"})
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory"}})
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": job.grace_s,
        "containers": [container],
        "volumes": volumes,
    }


def _resources(job: Job, args: argparse.Namespace) -> dict[str, str]:
    found: dict[str, str] = {}
    pairs: list[str] = args.resource
    for pair in pairs:
        key, _, value = pair.partition("=")
        if not re.fullmatch(r"[a-z][a-zA-Z0-9./-]*", key) or not re.fullmatch(r"[0-9.]+[a-zA-Z]{0,2}", value):
            raise ConfigError(f"--resource {pair} is not KEY=QUANTITY, such as cpu=8 or memory=32Gi")
        found[key] = value
    if job.gpus:
        if "nvidia.com/gpu" in found:
            raise ConfigError("--resource nvidia.com/gpu: that follows from --gpus-per-node; use that")
        found["nvidia.com/gpu"] = str(job.gpus)
    return found


def _script(job: Job, args: argparse.Namespace, main: str | None) -> str:
    """The script of a pod; `main` is the first pod's host name, None if the operator sets MASTER_ADDR."""
    mount = (args.mount or "/runs").rstrip("/")
    run_dir = shlex.quote(job.run_dir or f"{mount}/{job.name}")
    lines = [*job.setup, "set -u"]
    if main is None:
        # The operator's RANK counts pods, ours counts processes.
        lines += ["node=$RANK main=$MASTER_ADDR port=$MASTER_PORT", "unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT"]
        lines += [f"run_dir={run_dir} new={run_dir}"]
    else:
        lines += [
            f"main={main} port={job.port or DEFAULT_PORT}",
            f"run_dir={run_dir} new={run_dir}",
            f'if [ "${{{_ATTEMPT}:-0}}" != 0 ]; then new=$run_dir.${_ATTEMPT}; fi',
        ]
    rank = [] if job.elastic else ["--node-rank", '"$node"' if main is None else '"$JOB_COMPLETION_INDEX"']
    pending = [] if "--join-timeout" in job.flags else ["--join-timeout", _PENDING_S]
    words = [shlex.join([*job.node_flags, *pending]), *rank]
    return "\n".join(
        [
            *lines,
            f'set -- {shlex.join(job.train)} --run-dir "$new"',
            'for found in "$run_dir" "$run_dir".[0-9]*; do  # an earlier attempt that came as far as a checkpoint',
            '  if [ -e "$found/checkpoints/LATEST" ]; then set -- --resume "$found"; fi',
            "done",
            f'exec {shlex.join(job.lockstep)} train "$@" {" ".join(words)} \\',
            f'  --rdzv-endpoint "$main:$port" --rdzv-id {shlex.quote(job.name)}',
            "",
        ]
    )
