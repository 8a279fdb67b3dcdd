"""The objects of a manifest, by `--kind`.

Job is Kubernetes' own; JobSet, TrainJob (Kubeflow Trainer), RayJob (KubeRay) and PyTorchJob (Kubeflow training
operator) need their operator in the cluster.
"""

import argparse
from typing import Any

from lockstep.cli.submit import ray
from lockstep.cli.submit.arguments import DEFAULT_PORT
from lockstep.cli.submit.job import Job
from lockstep.cli.submit.kubernetes_pods import launcher_script, new_or_resumed, node_resources, pod, ray_pod
from lockstep.config import settings
from lockstep.errors import ConfigError

_Object = dict[str, Any]


def indexed_job(job: Job, args: argparse.Namespace) -> list[_Object]:
    """An Indexed Job, and the headless service that gives its pods host names.

    Pods are restarted one by one. A failure ends all of them, so that each restart costs as many pods as there are
    nodes.
    """
    spec = _indexed(job, args, "lockstep", main=f"{job.name}-0.{job.name}", backoff=job.job_restarts * job.maximum)
    spec["podFailurePolicy"]["rules"].append(
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    )
    spec["template"]["spec"]["subdomain"] = job.name
    service = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {"batch.kubernetes.io/job-name": job.name},
    }
    return [_object("v1", "Service", job, service), _object("batch/v1", "Job", job, spec)]


def jobset(job: Job, args: argparse.Namespace) -> list[_Object]:
    """A JobSet of one Indexed Job, which is restarted as a whole."""
    return [_object("jobset.x-k8s.io/v1alpha2", "JobSet", job, _jobset_spec(job, args, "lockstep"))]


def trainjob(job: Job, args: argparse.Namespace) -> list[_Object]:
    """A TrainJob, and a TrainingRuntime for it alone: the JobSet that the Trainer makes."""
    api = "trainer.kubeflow.org/v1alpha1"
    template = _jobset_spec(job, args, "node")  # the Trainer finds its container by this name, and its job by the label
    label = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    template["replicatedJobs"][0]["template"] = {
        "metadata": {"labels": label},
        **template["replicatedJobs"][0]["template"],
    }
    runtime = {"mlPolicy": {"numNodes": job.maximum}, "template": {"spec": template}}
    reference = {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": job.name}
    spec = {"runtimeRef": reference, "trainer": {"numNodes": job.maximum}}
    return [_object(api, "TrainingRuntime", job, runtime), _object(api, "TrainJob", job, spec)]


def rayjob(job: Job, args: argparse.Namespace) -> list[_Object]:
    """A RayJob: a Ray cluster with one worker pod per node, and a job on it that runs `lockstep train --on ray`."""
    if args.token_secret:
        raise ConfigError("--token-secret is for launchers that meet at an address, and Ray connects its nodes")
    flags = ray.driver_flags(job, args)
    head = ray_pod(job, args, "ray-head")
    head["containers"][0].pop("resources", None)  # those of a node; ranks run on the workers
    cpus = {} if "cpu" in node_resources(job, args) else {"num-cpus": _worker_cpus(job, args)}
    workers = {
        "groupName": "node",
        "replicas": job.maximum,
        "minReplicas": job.minimum,
        "maxReplicas": job.maximum,
        "rayStartParams": cpus,
        "template": {"spec": ray_pod(job, args, "ray-worker")},
    }
    entrypoint = [*ray.preamble(job, args), "set -u", *new_or_resumed(job, args), ray.train_command(job, '"$@"', flags)]
    spec = {
        # The operator posts the entrypoint as it is. By default it becomes a part of another shell command, unquoted.
        "submissionMode": "HTTPMode",
        "entrypoint": "\n".join([*entrypoint, ""]),
        "runtimeEnvYAML": settings.to_yaml(ray.runtime_env(job, args)),
        "backoffLimit": job.job_restarts,
        "shutdownAfterJobFinishes": True,
        "rayClusterSpec": {
            "headGroupSpec": {"rayStartParams": {"num-cpus": "0"}, "template": {"spec": head}},
            "workerGroupSpecs": [workers],
        },
    }
    return [_object("ray.io/v1", "RayJob", job, spec)]


def pytorchjob(job: Job, args: argparse.Namespace) -> list[_Object]:
    """A PyTorchJob, whose operator numbers the pods and restarts containers in place."""
    if job.elastic:
        raise ConfigError(f"--nnodes {job.nnodes}: a PyTorchJob has a fixed number of nodes here; use --kind jobset")
    port = job.port or DEFAULT_PORT

    def replicas(count: int) -> _Object:
        spec = pod(job, args, "pytorch", launcher_script(job, args, None))  # the operator requires these two names
        spec["containers"][0]["ports"] = [{"name": "pytorchjob-port", "containerPort": port}]
        return {"replicas": count, "restartPolicy": "OnFailure", "template": {"spec": spec}}

    workers = {"Worker": replicas(job.maximum - 1)} if job.maximum > 1 else {}
    spec = {
        "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": job.job_restarts},
        "pytorchReplicaSpecs": {"Master": replicas(1), **workers},
    }
    return [_object("kubeflow.org/v1", "PyTorchJob", job, spec)]


def _object(api: str, kind: str, job: Job, spec: _Object) -> _Object:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": job.name}, "spec": spec}


def _jobset_spec(job: Job, args: argparse.Namespace, container: str) -> _Object:
    # An elastic job restarts a lost node alone; otherwise all nodes restart together.
    backoff = job.job_restarts * job.maximum if job.elastic else 0
    main = f"{job.name}-node-0-0.{job.name}"  # resolved by the headless service of the JobSet
    spec = _indexed(job, args, container, main=main, backoff=backoff)
    mistake = {"name": "mistake", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
    return {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "failurePolicy": {"maxRestarts": job.job_restarts, "rules": [mistake]},
        "replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": spec}}],
    }


def _indexed(job: Job, args: argparse.Namespace, container: str, *, main: str, backoff: int) -> _Object:
    """The specification of an Indexed Job with a pod per node, whose completion index is the node's rank."""
    usage_error = {"containerName": container, "operator": "In", "values": [ConfigError.exit_code]}
    script = launcher_script(job, args, main)
    return {
        "parallelism": job.maximum,
        "completions": job.maximum,
        "completionMode": "Indexed",
        "backoffLimit": backoff,
        "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": usage_error}]},
        "template": {"spec": {"restartPolicy": "Never", **pod(job, args, container, script)}},
    }


def _worker_cpus(job: Job, args: argparse.Namespace) -> str:
    """The CPUs of a Ray node that asks Kubernetes for none: as many as its ranks need."""
    return str(int(job.nproc) * int(args.cpus_per_rank or 1))
