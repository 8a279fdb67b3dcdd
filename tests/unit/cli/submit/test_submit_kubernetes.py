"""Manifests: the fields that the cluster's own checks ask for, and what the pods' script does."""

import json
import os
import re
import subprocess

import pytest
import yaml
from submitting import program, refusal, text_of

from lockstep.cli import main as cli

pytestmark = pytest.mark.usefixtures("here")
GIVEN = ("cartpole", "--on", "kubernetes", "--image", "a/b:1", "--claim", "runs", "--nnodes", "4", "--name", "cp")
LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
# What of a pod, of a Job and of their parents the API servers know, as far as we use it; `!` must be there.
CONTAINER = {"name!": str, "image!": str, "command!": list, "env": list, "resources": dict, "workingDir": str}
CONTAINER |= {"volumeMounts": list, "ports": list}
POD = {"restartPolicy": str, "terminationGracePeriodSeconds!": int, "containers!": list, "volumes": list}
JOB = {"parallelism!": int, "completions!": int, "completionMode!": str, "backoffLimit!": int}
JOB |= {"podFailurePolicy": dict, "template!": dict}
JOBSET = {"network": dict, "failurePolicy!": dict, "replicatedJobs!": list}
PYTORCHJOB = {"runPolicy": dict, "pytorchReplicaSpecs!": dict}


def manifest(capsys, *words):
    return yaml.safe_load(text_of(capsys, *GIVEN, *words))


def follows(value, schema):
    names = {name.rstrip("!"): kind for name, kind in schema.items()}
    assert set(value) <= set(names), f"unknown: {set(value) - set(names)}"
    assert {name[:-1] for name in schema if name.endswith("!")} <= set(value)
    for name, item in value.items():
        assert isinstance(item, names[name]), name


def pods_of(made):
    """Every pod, checked on the way to it."""
    assert LABEL.fullmatch(made["metadata"]["name"])
    if made["kind"] == "JobSet":
        assert made["apiVersion"] == "jobset.x-k8s.io/v1alpha2"
        follows(made["spec"], JOBSET)
        for replicated in made["spec"]["replicatedJobs"]:
            follows(replicated, {"name!": str, "replicas!": int, "template!": dict})
            follows(replicated["template"]["spec"], JOB)
            yield replicated["template"]["spec"]["template"]["spec"]
    else:
        assert (made["apiVersion"], made["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
        follows(made["spec"], PYTORCHJOB)
        for replica in made["spec"]["pytorchReplicaSpecs"].values():
            follows(replica, {"replicas!": int, "restartPolicy!": str, "template!": dict})
            yield replica["template"]["spec"]


def containers(made):
    for pod in pods_of(made):
        follows(pod, POD)
        (container,) = pod["containers"]
        follows(container, CONTAINER)
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
        yield container


@pytest.mark.parametrize("kind", ["jobset", "pytorchjob"])
@pytest.mark.parametrize("words", [[], ["--gpus-per-node", "2"], ["--resource", "cpu=2", "--token-secret", "s"]])
def test_manifests_have_the_fields_that_are_asked_for(capsys, kind, words):
    made = manifest(capsys, "--kind", kind, *words)
    found = list(containers(made))
    assert len(found) == (1 if kind == "jobset" else 2)
    for container in found:
        assert subprocess.run(["sh", "-n", "-c", container["command"][2]]).returncode == 0


def test_a_jobset_has_a_pod_per_node(capsys):
    (replicated,) = manifest(capsys)["spec"]["replicatedJobs"]
    spec = replicated["template"]["spec"]
    assert (spec["parallelism"], spec["completions"], spec["completionMode"]) == (4, 4, "Indexed")
    assert spec["backoffLimit"] == 0, "one lost pod ends the Job, and the set begins again together"


def test_config_error_is_not_retried(capsys):
    made = manifest(capsys)
    (rule,) = made["spec"]["replicatedJobs"][0]["template"]["spec"]["podFailurePolicy"]["rules"]
    assert (rule["action"], rule["onExitCodes"]["values"]) == ("FailJob", [2])
    assert rule["onExitCodes"]["containerName"] == "lockstep"
    assert made["spec"]["failurePolicy"]["rules"][0]["action"] == "FailJobSet"
    assert made["spec"]["failurePolicy"]["maxRestarts"] == 10


def test_pods_that_come_and_go(capsys):
    made = manifest(capsys, "--nnodes", "2:4", "--set", "num_shards=4")
    (container,) = containers(made)
    assert "--nnodes 2:4" in container["command"][2] and "--node-rank" not in container["command"][2]
    assert made["spec"]["replicatedJobs"][0]["template"]["spec"]["backoffLimit"] == 40


def test_gpus_and_other_resources(capsys):
    (container,) = containers(manifest(capsys, "--gpus-per-node", "4", "--resource", "memory=8Gi", "--nnodes", "2"))
    assert (
        container["resources"]["limits"]
        == {"memory": "8Gi", "nvidia.com/gpu": "4"}
        == container["resources"]["requests"]
    )
    assert "/dev/shm" in [mount["mountPath"] for mount in container["volumeMounts"]]
    assert "--nproc-per-node 4" in container["command"][2]


def test_a_pytorchjob_has_the_names_that_the_operator_looks_for(capsys):
    made = manifest(capsys, "--kind", "pytorchjob", "--port", "4000")
    replicas = made["spec"]["pytorchReplicaSpecs"]
    assert (replicas["Master"]["replicas"], replicas["Worker"]["replicas"]) == (1, 3)
    for container in containers(made):
        assert container["name"] == "pytorch"
        assert container["ports"] == [{"name": "pytorchjob-port", "containerPort": 4000}]
    assert list(manifest(capsys, "--kind", "pytorchjob", "--nnodes", "1")["spec"]["pytorchReplicaSpecs"]) == ["Master"]


LOCKSTEP = 'import json, os, sys; print(json.dumps([sys.argv[1:], os.getppid(), "RANK" in os.environ]))'


def pod(capsys, folder, words=(), **environment):
    """Run a pod's script; what the launcher was called with."""
    made = manifest(capsys, "--mount", str(folder), *words)
    container = list(containers(made))[-1]
    done = subprocess.run(
        container["command"],
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


@pytest.fixture
def image(programs):
    program(programs, "lockstep", LOCKSTEP)
    return programs


def test_launcher_replaces_the_shell(capsys, here, image):
    """Signals to process 1 are for it."""
    words, parent, _ = pod(capsys, here, JOB_COMPLETION_INDEX="2")
    assert parent == os.getpid()
    assert words[:4] == ["train", "cartpole", "--run-dir", f"{here}/cp"]
    assert words[words.index("--node-rank") + 1] == "2"
    assert words[words.index("--rdzv-endpoint") + 1] == "cp-node-0-0.cp:29500"
    assert int(words[words.index("--join-timeout") + 1]) >= 600, "pods need not be scheduled together"


def test_pods_of_an_operator_are_no_ranks(capsys, here, image):
    operator = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "cp-master-0", "MASTER_PORT": "29500"}
    words, _, is_rank = pod(capsys, here, ["--kind", "pytorchjob"], **operator)
    assert not is_rank
    assert words[words.index("--node-rank") + 1] == "1"
    assert words[words.index("--rdzv-endpoint") + 1] == "cp-master-0:29500"


def test_a_later_attempt_goes_on_from_a_checkpoint(capsys, here, image):
    def what(attempt):
        words, _, _ = pod(capsys, here, JOB_COMPLETION_INDEX="0", JOBSET_RESTART_ATTEMPT=attempt)
        return words[1 : words.index("--nnodes")]

    (here / "cp").mkdir()
    (here / "cp/run.yaml").touch()
    assert what("1") == ["cartpole", "--run-dir", f"{here}/cp.1"], "what failed before its first checkpoint stays"
    (here / "cp.1/checkpoints").mkdir(parents=True)
    (here / "cp.1/checkpoints/LATEST").touch()
    assert what("2") == ["--resume", f"{here}/cp.1"]
    assert what("0") == ["--resume", f"{here}/cp.1"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--image", ""], "--image registry/name:tag"),
        (["--claim", ""], "--claim NAME"),
        (["--claim", "Runs_1"], "not a Kubernetes name"),
        (["--namespace", "A"], "not a Kubernetes name"),
        (["--mount", "runs"], "absolute"),
        (["--run-dir", "runs/x"], "not on the claim"),
        (["--run-dir", "/runs"], "not on the claim"),
        (["--resource", "cpu"], "KEY=QUANTITY"),
        (["--resource", "nvidia.com/gpu=2", "--gpus-per-node", "2", "--nnodes", "2"], "--gpus-per-node"),
        (["--name", "x" * 50], "too long"),
        (["--kind", "pytorchjob", "--nnodes", "1:2", "--set", "num_shards=4"], "--kind jobset"),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, list) else "",
)
def test_invalid_arguments_are_refused(capsys, words, says):
    assert says in refusal(capsys, *GIVEN, *words)


def test_kubectl_gets_what_the_dry_run_prints(capfd, here, programs):
    program(
        programs,
        "kubectl",
        'import sys, pathlib; pathlib.Path("got").write_text(" ".join(sys.argv[1:]) + chr(10) + sys.stdin.read())',
    )
    assert cli.main(["submit", *GIVEN]) == 0
    words, _, got = (here / "got").read_text().partition("\n")
    assert words == "apply -f -"
    assert got == text_of(capfd, *GIVEN)


def test_without_kubectl(capsys, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert "--dry-run" in refusal(capsys, *GIVEN, dry_run=False)


def test_a_namespace(capsys):
    assert manifest(capsys, "--namespace", "team")["metadata"]["namespace"] == "team"
