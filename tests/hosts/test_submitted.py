"""What `lockstep submit` writes for ssh and Kubernetes, run on two hosts: same bits, and nothing is lost on the way."""

import os
import signal
import time
from pathlib import Path

import pytest
import yaml
from network import wait_for
from small_runs import Paced, ended_well, only_run, same_bits, small, steps, training

SSH = ["lockstep", "submit", "--on", "ssh", "--hosts", "alpha,beta", "--nproc-per-node", "2"]
KUBERNETES = ["lockstep", "submit", "--on", "kubernetes", "--nnodes", "2", "--nproc-per-node", "2", "--name", "cp"]
KUBERNETES += ["--image", "none", "--claim", "none", "--dry-run", "--mount"]


@pytest.mark.hosts
def test_launchers_started_through_ssh_train_together(network, one_host):
    hosts = network(2)
    hosts.serve_shells()
    ended_well(hosts.hosts[0].start([*SSH, "cartpole", *small()]))
    same_bits(one_host("cartpole"), only_run(hosts), ranks=4, hosts=2)


@pytest.mark.hosts
@pytest.mark.parametrize(("number", "code"), [(signal.SIGUSR1, 138), (signal.SIGKILL, 137)], ids=["USR1", "KILL"])
def test_what_is_interrupted_through_ssh_can_go_on(network, number, code):
    """Also when the command here is killed: the launchers hear that nobody listens any more."""
    hosts = network(2)
    hosts.serve_shells()
    paced = Paced(hosts.shared, updates=40)
    first = hosts.hosts[0].start([*SSH, "--run-dir", "runs/one", *paced.arguments])
    training(hosts.shared / "runs/one", first)
    first.signal(number)
    assert first.wait() == code
    for host in hosts.hosts:
        wait_for(lambda host=host: "lockstep.train" not in " ".join(host.processes()))
    before = steps(hosts.shared / "runs/one")
    assert (hosts.shared / f"runs/one/checkpoints/step_{before}").is_dir(), "they left without a checkpoint"
    paced.let_go()
    ended_well(hosts.hosts[0].start([*SSH, "--resume", "runs/one"]))
    same_bits(paced.alone(), hosts.shared / "runs/one", ranks=4, hosts=2)


@pytest.mark.hosts
@pytest.mark.parametrize(("kind", "main"), [("jobset", "cp-node-0-0.cp"), ("job", "cp-0.cp")])
def test_preempted_pods_write_a_checkpoint_in_time_and_resume_later(network, kind, main):
    """Each script is process 1 of its pod. Of a Job one pod is preempted, of a JobSet all are."""
    hosts = network(2)
    paced = Paced(hosts.shared, updates=40)
    printed = hosts.hosts[0].run([*KUBERNETES, str(hosts.shared), "--kind", kind, *paced.arguments])
    (spec,) = (pod for made in yaml.safe_load_all(printed) for pod in pods_of(made))
    for host in hosts.hosts:
        with (host.folder / "hosts").open("a") as names:  # what the headless service resolves
            names.write(f"10.77.0.1 {main}\n")
    pods = [start_pod(host, spec, index) for index, host in enumerate(hosts.hosts)]
    run_dir = hosts.shared / "cp"
    training(run_dir, pods[0])
    terminated = time.monotonic()
    for running in pods[1:] if kind == "job" else pods:
        os.kill(process_1(running), signal.SIGTERM)
    assert [running.wait() for running in pods] == [143, 143], "\n".join(running.said for running in pods)
    assert time.monotonic() - terminated < spec["terminationGracePeriodSeconds"]
    before = steps(run_dir)
    assert (run_dir / f"checkpoints/step_{before}").is_dir(), "they ended without a checkpoint"
    paced.let_go()
    ended_well(*[start_pod(host, spec, index) for index, host in enumerate(hosts.hosts)])
    assert 0 < before < steps(run_dir)
    same_bits(paced.alone(), run_dir, ranks=4, hosts=2)


def pods_of(made):
    """The pods of a Job or a JobSet."""
    if made["kind"] == "Job":
        yield made["spec"]["template"]["spec"]
    for replicated in made["spec"].get("replicatedJobs", []):
        yield replicated["template"]["spec"]["template"]["spec"]


def start_pod(host, spec, index):
    (container,) = spec["containers"]
    command = [word.replace("$$", "$") for word in container["command"]]  # as Kubernetes does
    isolated = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *command]
    return host.start(isolated, {"JOB_COMPLETION_INDEX": str(index)})


def process_1(command):
    children = Path(f"/proc/{command.pid()}/task/{command.pid()}/children")
    return int(children.read_text().split()[0])
