"""Write a manifest for Kubernetes: a Job, a JobSet, a TrainJob, a RayJob or a PyTorchJob."""

import argparse
import re
from pathlib import PurePosixPath
from typing import Any

from lockstep.cli.submit import kubernetes_kinds as kinds
from lockstep.cli.submit.job import Job, submit_text
from lockstep.config import settings
from lockstep.errors import ConfigError

_MAX_LABEL = 63  # characters of a label in a host name
_MAX_RAYJOB = 47  # KubeRay appends to it for the names of its cluster, services and pods
_KINDS = {
    "job": kinds.indexed_job,
    "jobset": kinds.jobset,
    "trainjob": kinds.trainjob,
    "rayjob": kinds.rayjob,
    "pytorchjob": kinds.pytorchjob,
}


def submit(job: Job, args: argparse.Namespace) -> int:
    """Print the manifest, or pass it to `kubectl`."""
    documents = "---\n".join(map(settings.to_yaml, manifests(job, args)))
    text = f"# Written by `lockstep submit --on kubernetes`.\n{documents}"
    where = "the cluster is reached from, or add --dry-run to see the manifest"
    return submit_text(text, ["kubectl", "apply", "-f", "-"], args, where)


def manifests(job: Job, args: argparse.Namespace) -> list[dict[str, Any]]:
    """The objects to create, as plain values."""
    kind = args.kind or "jobset"
    _check(job, args, kind)
    objects = _KINDS[kind](job, args)
    if args.namespace:
        for item in objects:
            item["metadata"]["namespace"] = args.namespace
    return objects


def _check(job: Job, args: argparse.Namespace, kind: str) -> None:
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
            f"--resume {job.resume}: a job continues by itself where its run directory holds a checkpoint; "
            "submit it again with the same --run-dir"
        )
    if job.run_dir and mount not in PurePosixPath(job.run_dir).parents:
        raise ConfigError(f"--run-dir {job.run_dir} is not on the claim; use a place such as {mount / job.name}")
    excess = len(job.name) - _longest_name(kind, job.maximum)
    if excess > 0:
        raise ConfigError(f"--name {job.name} is too long for names of pods by {excess} letters")


def _longest_name(kind: str, nodes: int) -> int:
    """How long the name of a job may be, so that the names of its pods are valid host names."""
    if kind == "rayjob":
        return _MAX_RAYJOB
    suffix = f"-{nodes - 1}-abcde" if kind == "job" else f"-node-0-{nodes - 1}-abcde"  # as the controllers name pods
    return _MAX_LABEL - len(suffix)
