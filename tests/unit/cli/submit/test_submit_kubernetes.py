"""Manifests: the published schemas of their objects, and what the pods' script does."""

import json
import os
import re
import shlex
import subprocess

import pytest
import yaml
from jsonschema import Draft202012Validator
from submitting import as_started, pods_of, program, published_schemas, refusal, text_of

from lockstep import recipes, train
from lockstep.cli import main as cli
from lockstep.run import override

pytestmark = pytest.mark.usefixtures("here")
CARTPOLE = ["--set", "task=CartPole-v1", "--set", "algo=ppo"]
GIVEN = ("cartpole", "--on", "kubernetes", "--image", "a/b:1", "--claim", "runs", "--nnodes", "4", "--name", "cp")
KINDS = {
    "job": ["Service", "Job"],
    "jobset": ["JobSet"],
    "trainjob": ["TrainingRuntime", "TrainJob"],
    "rayjob": ["RayJob"],
    "pytorchjob": ["PyTorchJob"],
}
FREE_NAMES = {
    "cpu",
    "nvidia.com/gpu",
    "num-cpus",
    "batch.kubernetes.io/job-name",
    "trainer.kubeflow.org/trainjob-ancestor-step",
    "Master",
    "Worker",
}
LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


def manifests(capsys, *words):
    return list(yaml.safe_load_all(text_of(capsys, *GIVEN, *words)))


def manifest(capsys, *words):
    """The object that has the pods."""
    return next(made for made in manifests(capsys, *words) if list(pods_of(made)))


def containers(made):
    for pod in pods_of(made):
        (container,) = pod["containers"]
        yield container


@pytest.fixture(scope="module")
def schema_of():
    """`schema_of("JobSet")`: a validator of the published schema."""
    names, definitions = published_schemas()

    def validator(kind):
        return Draft202012Validator({"$ref": f"#/$defs/{names[kind]}", "$defs": definitions})

    return validator


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "words",
    [[], ["--device", "cuda", "--gpus-per-node", "2", "--resource", "cpu=2", "--chdir", "/app"]],
    ids=["plain", "all settings"],
)
def test_manifests_follow_the_published_schemas(capsys, schema_of, kind, words):
    secret = [] if kind == "rayjob" or not words else ["--token-secret", "s"]
    made = manifests(capsys, "--kind", kind, "--namespace", "team", *words, *secret)
    assert [item["kind"] for item in made] == KINDS[kind]
    for item in made:
        assert [error.message for error in schema_of(item["kind"]).iter_errors(item)] == []
        assert (item["metadata"]["name"], item["metadata"]["namespace"]) == ("cp", "team")
        for pod in pods_of(item):
            assert pod["terminationGracePeriodSeconds"] == 135
            (container,) = pod["containers"]
            assert {mount["name"] for mount in container["volumeMounts"]} == {
                volume["name"] for volume in pod["volumes"]
            }
            if "command" in container:
                assert "--grace-s 120" in container["command"][2], "the launcher kills ranks before the pod is killed"
                _, flag, script = as_started(container["command"], {})
                assert subprocess.run(["sh", "-n", flag, script]).returncode == 0


def test_schemas_refuse_unknown_and_missing_fields(capsys, schema_of):
    made = manifest(capsys)
    spec = made["spec"]["replicatedJobs"][0]["template"]["spec"]
    spec["template"]["spec"]["terminationGracePeriod"] = 120
    del spec["podFailurePolicy"]["rules"][0]["action"]
    messages = sorted(error.message for error in schema_of("JobSet").iter_errors(made))
    assert [message.split(" (")[0] for message in messages] == [
        "'action' is a required property", "Additional properties are not allowed"
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_schemas_refuse_each_field_with_another_name_or_type(capsys, schema_of, kind):
    words = [
        "--gpus-per-node",
        "2",
        "--device",
        "cuda",
        "--resource",
        "cpu=2",
        "--chdir",
        "/app",
        "--namespace",
        "team",
    ]
    for made in manifests(capsys, "--kind", kind, *words):
        schema = schema_of(made["kind"])
        accepted = {name for name in broken_fields(made) if schema.is_valid(made)}
        assert accepted <= FREE_NAMES, "keys of maps whose names Kubernetes leaves open; other tests compare them"


def broken_fields(node):
    """The names of all fields at and below `node`, each broken in place twice while it is yielded."""
    for child in node if isinstance(node, list) else list(node.values()):
        if isinstance(child, dict | list):
            yield from broken_fields(child)
    if isinstance(node, dict):
        whole = dict(node)
        for name, value in whole.items():
            for other in ({name + "X": value}, {name: "text" if isinstance(value, dict) else {"a": [1]}}):
                node.clear()
                node.update({key: whole[key] for key in whole if key != name} | other)
                yield name
        node.clear()
        node.update(whole)


def test_pods_of_a_job_resolve_the_first_one_through_a_headless_service(capsys):
    service, job = manifests(capsys, "--kind", "job")
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"], "pods meet before they are ready"
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
    pod = job["spec"]["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"]
    assert "main=cp-0.cp port=" in pod["containers"][0]["command"][2]


def test_preempted_pods_of_a_job_do_not_count_as_failures(capsys):
    job = manifest(capsys, "--kind", "job", "--job-restarts", "3")
    fatal, preempted = job["spec"]["podFailurePolicy"]["rules"]
    assert (fatal["action"], fatal["onExitCodes"]["values"]) == ("FailJob", [2])
    assert preempted["action"] == "Ignore"
    assert preempted["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert job["spec"]["backoffLimit"] == 3 * 4, "a failure ends all four pods"


def test_a_trainjob_refers_to_its_own_runtime(capsys):
    runtime, job = manifests(capsys, "--kind", "trainjob")
    reference = job["spec"]["runtimeRef"]
    assert reference["apiGroup"] == runtime["apiVersion"].partition("/")[0]
    assert (reference["kind"], reference["name"]) == (runtime["kind"], runtime["metadata"]["name"])
    assert job["spec"]["trainer"]["numNodes"] == runtime["spec"]["mlPolicy"]["numNodes"] == 4
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert replicated["template"]["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    (container,) = containers(runtime)
    assert container["name"] == "node"
    rules = replicated["template"]["spec"]["podFailurePolicy"]["rules"]
    assert rules[0]["onExitCodes"]["containerName"] == "node"
    assert "main=cp-node-0-0.cp port=" in container["command"][2]


def test_a_rayjob_has_a_worker_per_node_and_its_ranks_there(capsys):
    made = manifest(capsys, "--kind", "rayjob", "--nproc-per-node", "2", "--cpus-per-rank", "3")
    spec = made["spec"]
    cluster = spec["rayClusterSpec"]
    (group,) = cluster["workerGroupSpecs"]
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (4, 4, 4)
    assert cluster["headGroupSpec"]["rayStartParams"] == {"num-cpus": "0"}
    assert group["rayStartParams"] == {"num-cpus": "6"}
    assert yaml.safe_load(spec["runtimeEnvYAML"])["env_vars"]["RAY_JOB_STOP_WAIT_TIME_S"] == "135"
    assert spec["backoffLimit"] == 10
    for container in containers(made):
        hook = container["lifecycle"]["preStop"]["exec"]["command"][2]
        assert hook.startswith("ray drain-node ")
        assert "--deadline-remaining-seconds 135 " in hook, "the grace period of the pod"


def test_resources_of_a_rayjob_are_those_of_its_workers(capsys):
    words = ["--kind", "rayjob", "--nnodes", "2", "--device", "cuda", "--gpus-per-node", "2", "--resource", "cpu=8"]
    made = manifest(capsys, *words)
    head, worker = containers(made)
    assert "resources" not in head
    assert worker["resources"]["limits"] == {"cpu": "8", "nvidia.com/gpu": "2"}
    assert made["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["rayStartParams"] == {}
    assert "--gpus-per-rank 1" in made["spec"]["entrypoint"]


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


def test_devices_of_other_makers_are_gpus(capsys):
    (container,) = containers(manifest(capsys, "--device", "cuda", "--resource", "amd.com/gpu=8", "--nnodes", "2"))
    assert container["resources"]["limits"] == {"amd.com/gpu": "8"}


def test_gpus_and_other_resources(capsys):
    (container,) = containers(
        manifest(capsys, "--device", "cuda", "--gpus-per-node", "4", "--resource", "memory=8Gi", "--nnodes", "2")
    )
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
        as_started(container["command"], environment),
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


@pytest.mark.parametrize("kind", ["jobset", "job", "trainjob", "pytorchjob"])
def test_dollar_signs_reach_the_shell_as_they_were_typed(capsys, here, image, kind):
    """Kubernetes replaces some in the command of a container, also where a shell would not."""
    operator = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "cp-master-0", "MASTER_PORT": "29500"}
    typed = ["--kind", kind, "--lockstep", "lockstep '$(LOCKSTEP_TOKEN)' '$$' $", "--setup", "[ $$ -gt 0 ]"]
    words, _, _ = pod(capsys, here, typed, LOCKSTEP_TOKEN="secret", JOB_COMPLETION_INDEX="0", **operator)
    assert words[:4] == ["$(LOCKSTEP_TOKEN)", "$$", "$", "train"]


def test_pods_of_an_operator_are_no_ranks(capsys, here, image):
    operator = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "cp-master-0", "MASTER_PORT": "29500"}
    words, _, is_rank = pod(capsys, here, ["--kind", "pytorchjob"], **operator)
    assert not is_rank
    assert words[words.index("--node-rank") + 1] == "1"
    assert words[words.index("--rdzv-endpoint") + 1] == "cp-master-0:29500"


def test_a_later_attempt_goes_on_from_a_checkpoint(capsys, here, image):
    def what():
        words, _, _ = pod(capsys, here, JOB_COMPLETION_INDEX="0")
        return words[1 : words.index("--nnodes")]

    (here / "cp").mkdir()
    (here / "cp/run.yaml").touch()
    assert what() == ["cartpole", "--run-dir", f"{here}/cp.1"], "what failed before its first checkpoint stays"
    (here / "cp.1/checkpoints").mkdir(parents=True)
    assert what() == ["cartpole", "--run-dir", f"{here}/cp.2"]
    (here / "cp.1/checkpoints/LATEST").touch()
    assert what() == ["--resume", f"{here}/cp.1", *CARTPOLE]


def test_a_run_of_an_earlier_manifest_goes_on_with_the_settings_of_this_one(capsys, here, image):
    """Those of its first start are the same as before; what only a new run is told is left out."""
    (here / "cp/checkpoints").mkdir(parents=True)
    (here / "cp/checkpoints/LATEST").touch()
    given = [
        "--task",
        "CartPole-v1",
        "--seed",
        "3",
        "--set",
        "total_steps=9000",
        "--set",
        "env.kwargs={sutton_barto_reward: true}",
    ]
    words, _, _ = pod(capsys, here, given, JOB_COMPLETION_INDEX="0")
    resumed = words[1 : words.index("--nnodes")]
    assert resumed[:2] == ["--resume", f"{here}/cp"]
    assert sorted(resumed[2:]) == sorted(CARTPOLE + given[2:])


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("cartpole", "nothing is left to do"),
        ("Acrobot-v1", "task=Acrobot-v1 differs from the CartPole-v1 that the checkpoint was made with"),
        ("cartpole_dqn", "algo=dqn, but this run trains with ppo"),
    ],
)
def test_a_run_of_another_task_or_algorithm_is_not_gone_on_with(capsys, here, target, says):
    few = {"total_steps": 32, "num_envs": 4, "num_shards": 4, "algorithm.num_steps": 8, "algorithm.num_minibatches": 1}
    train(override(recipes.load("cartpole"), {**few, "evaluate_every": None, "evaluate_episodes": 1}), run_dir="cp")
    text = text_of(capsys, target, *GIVEN[1:], "--set", "total_steps=32")
    resumed = re.search(r'set -- --resume "\$\$found" (.*); fi', text)
    assert resumed
    cli.main(["train", "--resume", "cp", *shlex.split(resumed[1])])
    assert says in "".join(capsys.readouterr())


def test_the_entrypoint_of_a_rayjob_starts_or_resumes_the_run(capsys, here, image):
    def driver():
        spec = manifest(capsys, "--kind", "rayjob", "--mount", str(here), "--strategy", "SPREAD")["spec"]
        words = ["sh", "-c", spec["entrypoint"]]
        done = subprocess.run(words, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)

    words, parent, _ = driver()
    assert parent == os.getpid(), "`ray job stop` signals the shell that the driver replaces"
    flags = "--on ray --address auto --nnodes 4 --nproc-per-node 1 --gpus-per-rank 0 --strategy SPREAD --grace-s 120"
    assert words == ["train", "cartpole", "--run-dir", f"{here}/cp", *flags.split()]
    (here / "cp/checkpoints").mkdir(parents=True)
    (here / "cp/checkpoints/LATEST").touch()
    assert driver()[0] == ["train", "--resume", f"{here}/cp", *CARTPOLE, *flags.split()]


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
        (["--resource", "memory=8GB"], "KEY=QUANTITY"),
        (["--resource", "nvidia.com/gpu=2", "--gpus-per-node", "2", "--nnodes", "2"], "--gpus-per-node"),
        (["--name", "x" * 50], "too long"),
        (["--kind", "pytorchjob", "--nnodes", "1:2", "--set", "num_shards=4"], "--kind jobset"),
        (["--kind", "rayjob", "--token-secret", "s"], "--token-secret"),
        (["--kind", "rayjob", "--nproc-per-node", "auto"], "give a number"),
        (["--kind", "rayjob", "--cpus-per-rank", "0.5"], "--cpus-per-rank 0.5"),
        (["--kind", "rayjob", "--strategy", "NEAR"], "--strategy NEAR must be one of"),
        (["--kind", "rayjob", "--resources-per-rank", "disk"], "NAME=AMOUNT"),
        (["--kind", "rayjob", "--name", "x" * 48], "too long"),
        (["--kind", "job", "--strategy", "PACK"], "--strategy is for --on ray"),
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
