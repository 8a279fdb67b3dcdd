"""Manifests are admitted and stored whole by Kubernetes' own API server, where there is one."""

import json

import pytest
import yaml
from control_plane import PROGRAMS, ControlPlane, found
from submitting import pods_of, text_of

from lockstep.cli import main as cli

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("here")]
GIVEN = ("cartpole", "--on", "kubernetes", "--image", "a/b:1", "--claim", "runs", "--nnodes", "4", "--name", "cp")
MORE = ("--device", "cuda", "--gpus-per-node", "1", "--resource", "memory=8Gi", "--chdir", "/app")
KINDS = ("job", "jobset", "trainjob", "rayjob", "pytorchjob")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    missing = [program for program in PROGRAMS if found(program) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)} on PATH or in KUBEBUILDER_ASSETS")
    plane = ControlPlane(tmp_path_factory.mktemp("control_plane"))
    try:
        plane.add_operators()
        yield plane
    finally:
        plane.close()


def contains(stored, given) -> bool:
    """Whether all that was given is there; the server adds defaults."""
    if isinstance(given, dict):
        return isinstance(stored, dict) and all(key in stored and contains(stored[key], given[key]) for key in given)
    if isinstance(given, list):
        return len(stored) == len(given) and all(map(contains, stored, given))
    return stored == given


def has_failure_policies(cluster) -> bool:
    """Whether the server's own Jobs have them."""
    published = json.loads(cluster.kubectl("get", "--raw", "/openapi/v2").stdout)
    return "podFailurePolicy" in published["definitions"]["io.k8s.api.batch.v1.JobSpec"]["properties"]


@pytest.mark.parametrize("kind", KINDS)
def test_submitted_objects_are_stored_whole(cluster, capsys, monkeypatch, kind):
    if kind == "job" and not has_failure_policies(cluster):
        pytest.skip("this API server is older than the failure policies of Jobs (Kubernetes 1.26)")
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    words = [*GIVEN, "--kind", kind, *MORE]
    assert cli.main(["submit", *words]) == 0
    capsys.readouterr()
    for given in yaml.safe_load_all(text_of(capsys, *words)):
        group, slash, _ = given["apiVersion"].partition("/")
        name = f"{given['kind']}.{group}" if slash and "." in group else given["kind"]
        assert contains(cluster.read("get", name.lower(), "cp"), given)


@pytest.mark.parametrize("kind", KINDS)
def test_pods_and_services_are_admitted(cluster, capsys, kind):
    for made in yaml.safe_load_all(text_of(capsys, *GIVEN, "--kind", kind, *MORE)):
        pods = [{"apiVersion": "v1", "kind": "Pod", "spec": pod} for pod in pods_of(made)]
        for given in [made] if made["kind"] == "Service" else pods:
            given["metadata"] = {"name": "new"}
            done = cluster.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", text=json.dumps(given))
            assert done.returncode == 0, done.stderr
            assert contains(json.loads(done.stdout), given)


def test_an_invalid_pod_is_not_admitted(cluster, capsys):
    (made,) = yaml.safe_load_all(text_of(capsys, *GIVEN))
    (spec,) = pods_of(made)
    spec["containers"][0]["volumeMounts"][0]["name"] = "other"
    given = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    done = cluster.kubectl("create", "--dry-run=server", "-f", "-", text=json.dumps(given))
    assert done.returncode != 0
    assert 'volumeMounts[0].name: Not found: "other"' in done.stderr
