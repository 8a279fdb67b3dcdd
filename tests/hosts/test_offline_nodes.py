"""Learning from logs on two hosts that hold different files under one path, by the classic door and `--node_index`."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from network import wait_for
from safetensors.numpy import load_file
from small_runs import ended_well, refused, summary

from lockstep.data.prepare import PrepareOptions, prepare_dataset

sys.path.append(str(Path(__file__).parents[1] / "unit" / "cli" / "workflow_files"))
from workflow_logs import rows, write

DOOR = "python -m lockstep.workflows.dqn -p dqn.json --node_index={}"
SLOW = ("--set", "epochs=100000", "--set", "log_every=400")
EPISODES = 40
OURS = ("logged", "outputs", "cache")  # what each host has of its own, under a path that both have


class Two:
    """Two hosts, a workflow file that both see, and folders under one path of which each sees its own."""

    def __init__(self, network, *, shared_cache=False, **changes):
        self.network = network
        self.shared, self.hosts = network.shared, network.hosts
        for host in self.hosts:
            for name in OURS:
                (host.folder / name).mkdir()
                (self.shared / name).mkdir(exist_ok=True)
                if name != "cache" or not shared_cache:
                    host.run(["mount", "--bind", str(host.folder / name), str(self.shared / name)])
        (self.shared / "dqn.json").write_text(json.dumps(self.file() | changes))

    def file(self):
        return {
            "training_data_path": "logged/log.jsonl",
            "state_norm_data_path": "logged/state_features_norm.json",
            "model_output_path": "outputs/",
            "use_gpu": False,
            "num_nodes": 2,
            "init_method": f"file://{self.shared}/dqn.lock",
            "norm_params": {"output_dir": "logged/", "cols_to_norm": ["state_features"]},
            "actions": ["0", "1"],
            "epochs": 3,
            "rl": {"gamma": 0.9, "target_update_rate": 0.2, "temperature": 0.35, "softmax_policy": False},
            "rainbow": {"double_q_learning": True, "dueling_architecture": False},
            "training": {
                "layers": [-1, 16, -1],
                "activations": ["relu", "linear"],
                "minibatch_size": 32,
                "l2_decay": 0,
            },
        }

    def hold(self, *parts, shuffled=(None, None)):
        """Write the log of each host."""
        for host, made, seed in zip(self.hosts, parts, shuffled, strict=True):
            write(host.folder / "logged" / "log.jsonl", made, seed)

    def start(self, node, *more):
        environment = {"LOCKSTEP_CACHE": str(self.shared / "cache")}
        return self.hosts[node].start([*DOOR.format(node).split(), *more], environment)

    def both(self, *more):
        return [self.start(node, *more) for node in (1, 0)][::-1]

    def run_dir(self):
        """The one that ended, of the runs in the shared folder."""
        (found,) = (run for run in (self.shared / "runs").iterdir() if (run / "summary.json").exists())
        return found

    def data(self, node):
        """The description of what a host prepared."""
        (found,) = (self.hosts[node].folder / "cache").glob("log-*/dataset.json")
        return json.loads(found.read_text()), json.loads((found.parent / "state_features.json").read_text())


def policy(run_dir):
    return load_file(run_dir / "policy.safetensors")


def same_policy(one, other):
    mine, theirs = policy(one), policy(other)
    assert mine.keys() == theirs.keys()
    assert [name for name in theirs if not np.array_equal(mine[name], theirs[name])] == []


def alone(two, made, *more):
    """The run of one host."""
    folder = two.network.folder / "alone"
    write(folder / "logged" / "log.jsonl", made)
    file = two.file() | {"num_nodes": 1, "model_output_path": str(folder / "outputs")}
    (folder / "dqn.json").write_text(json.dumps(file))
    words = [
        "sh",
        "-c",
        f"cd {folder} && exec lockstep offline train dqn.json --ranks 1 --run-dir run {' '.join(more)}",
    ]
    two.hosts[0].run(words, {"LOCKSTEP_CACHE": str(folder / "cache")})
    return folder / "run"


@pytest.mark.hosts
def test_each_host_learns_from_its_own_part(network, tmp_path):
    two = Two(network(2))
    parts = rows(range(25)), rows(range(25, EPISODES), scale=4.0)
    two.hold(*parts)
    (two.shared / "dqn.lock").touch()  # made beforehand, as the classic pipeline wanted it
    commands = two.both()
    ended_well(*commands)
    told = summary(two.run_dir())
    assert (told["status"], told["world_size"], len({rank["host"] for rank in told["ranks"]})) == ("finished", 2, 2)
    assert told["env_steps"] == 3 * EPISODES * 10, "every row of both parts once per epoch, and no padding is counted"
    assert len({rank["params_fingerprint"] for rank in told["ranks"]}) == 1
    (alpha, norm_alpha), (beta, norm_beta) = two.data(0), two.data(1)
    assert (alpha["info"]["num_rows"], beta["info"]["num_rows"]) == (250, 150)
    assert norm_alpha == norm_beta
    one = write(tmp_path / "log.jsonl", parts[0] + parts[1])
    whole = prepare_dataset([one], tmp_path / "data", PrepareOptions(actions=("0", "1")), show=lambda _: None)
    assert json.loads((whole / "state_features.json").read_text()) == norm_alpha, "as if one host had had all rows"
    assert list((two.hosts[0].folder / "outputs").iterdir()), "node 0 writes the model"
    assert not list((two.hosts[1].folder / "outputs").iterdir()), "the other writes nothing there"
    assert [path.name for path in (two.hosts[1].folder / "logged").iterdir()] == ["log.jsonl"]
    assert not (two.shared / "dqn.lock").exists()
    assert "every node holds its own part of the data" in commands[0].said
    assert "Warning" not in "".join(command.said for command in commands)


@pytest.mark.hosts
def test_copies_in_another_order_are_the_same_data_and_give_the_bits_of_one_host(network):
    two = Two(network(2))
    made = rows(range(EPISODES))
    two.hold(made, made, shuffled=(1, 2))
    pinned = ("--set", "num_shards=2")
    ended_well(*two.both(*pinned, "--set", "data_layout=shuffled_copies"))
    one = alone(two, made, *pinned)
    assert summary(two.run_dir())["env_steps"] == 3 * EPISODES * 10
    assert summary(two.run_dir())["params_fingerprint"] == summary(one)["params_fingerprint"]
    same_policy(two.run_dir(), one)


@pytest.mark.hosts
def test_data_that_overlaps_in_part_is_refused_on_both(network):
    two = Two(network(2))
    two.hold(rows(range(25)), rows(range(20, EPISODES)))
    refused(*two.both(), each=["overlap|in common|both", "overlap|in common|both"])
    assert not [file for host in two.hosts for file in (host.folder / "outputs").iterdir()]


@pytest.mark.hosts
def test_data_that_is_missing_on_one_host_is_an_error_on_both(network):
    two = Two(network(2))
    write(two.hosts[0].folder / "logged" / "log.jsonl", rows(range(25)))
    refused(*two.both(), each=[r"node 1 \(beta\): training_data_path: logged/log.jsonl does not exist"] * 2)


@pytest.mark.hosts
def test_one_cache_for_two_different_logs_is_refused(network):
    two = Two(network(2), shared_cache=True)
    two.hold(rows(range(25)), rows(range(25, EPISODES)))
    refused(*two.both(), each=["nodes 0 and 1 hold different logs.*set LOCKSTEP_CACHE"] * 2)


@pytest.mark.hosts
def test_a_layout_that_is_asked_for_is_insisted_on(network):
    two = Two(network(2))
    two.hold(rows(range(25)), rows(range(25, EPISODES)))
    refused(*two.both("--set", "data_layout=same"), each=["data_layout=same"] * 2)


@pytest.mark.hosts
def test_a_stale_rendezvous_file_neither_hangs_nor_corrupts(network):
    two = Two(network(2))
    two.hold(rows(range(25)), rows(range(25, EPISODES)))
    killed, lock = two.start(0), two.shared / "dqn.lock"
    wait_for(lambda: lock.exists() and lock.read_bytes() != b"")
    pid = killed.pid()
    killed.signal(9)
    wait_for(lambda: not killed.running)
    assert lock.exists(), f"process {pid} left it"
    other = two.start(1)
    ended_well(two.start(0), other)
    assert not lock.exists(), "the file of a run that is over is left"
    assert summary(two.run_dir())["world_size"] == 2


@pytest.mark.hosts
def test_a_host_that_vanishes_ends_the_other_in_time_and_leaves_no_model(network):
    two = Two(network(2))
    two.hold(rows(range(25)), rows(range(25, EPISODES)))
    alpha, beta = two.both(*SLOW, "--set", "timeout_s=15", "--run-dir", "run")
    metrics = two.shared / "run" / "metrics.jsonl"
    wait_for(lambda: (metrics.exists() and metrics.stat().st_size > 0) or not alpha.running, lambda: alpha.said)
    assert alpha.running, alpha.said
    two.hosts[1].vanish()
    assert alpha.wait() == 1, alpha.said
    assert not beta.running
    assert summary(two.shared / "run")["status"] == "failed"
    assert not list((two.hosts[0].folder / "outputs").iterdir()), "nothing half-written"
