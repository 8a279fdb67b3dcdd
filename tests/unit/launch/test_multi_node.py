"""Two launchers of nodes on this machine: they end, fail, stop and start again together. Any script will do."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import made_data
from lockstep.launch import multi_node
from lockstep.launch.rank_environment import free_port

BOUND_S = 90.0  # on a busy machine; nothing here takes longer than seconds by itself

RANK = """
import os, pathlib, signal, sys, time
rank, here = int(os.environ["RANK"]), pathlib.Path(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
start = os.environ["LOCKSTEP_RESTARTS"]
names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"]
names += ["MASTER_ADDR", "MASTER_PORT"]
(here / f"start{start}_rank{rank}").write_text(" ".join(os.environ[name] for name in names))
"""


class Node:
    """One launcher, as a shell would start it."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.output = folder / f"node{len(list(folder.glob('node*')))}.txt"
        with open(self.output, "wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "lockstep.cli", *words],
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=folder,
            )

    @property
    def said(self) -> str:
        return self.output.read_text()

    def wait(self) -> int:
        try:
            return self.process.wait(BOUND_S)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running; it said:\n{self.said}")

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@pytest.fixture
def start(tmp_path):
    """`start(node_rank, body)` starts a node whose ranks run RANK and then `body`."""
    port, nodes = free_port(), []

    def _start(node_rank, body="", *more, nnodes="2", nproc=1, arguments=()):
        script = tmp_path / "script.py"
        if not script.exists():
            script.write_text(RANK + body)
        numbered = [] if node_rank is None else [f"--node_rank={node_rank}"]
        flags = [f"--nnodes={nnodes}", *numbered, f"--nproc_per_node={nproc}", f"--rdzv_endpoint=127.0.0.1:{port}"]
        nodes.append(
            Node(tmp_path, "launch", *flags, "--join-timeout=60", *more, str(script), str(tmp_path), *arguments)
        )
        return nodes[-1]

    yield _start
    for node in nodes:
        node.end()


def until(condition, node):
    deadline = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < deadline, node.said
        assert node.process.poll() is None or condition(), node.said
        time.sleep(0.05)


def test_ranks_are_told_who_they_are(start, tmp_path):
    body = "print('says', rank, flush=True)"
    one, two = start(1, body, nproc=2), start(0, body, nproc=1)
    assert (one.wait(), two.wait()) == (0, 0), one.said + two.said
    told = [(tmp_path / f"start0_rank{rank}").read_text().split() for rank in range(3)]
    assert ["".join(line[:6]) for line in told] == ["030102", "130212", "231212"]
    assert {line[6] for line in told} == {"127.0.0.1"} and len({line[7] for line in told}) == 1
    assert "says 0" in two.said and "says 1" in one.said and "says 2" in one.said
    assert "node 1 of 2: ranks 1-2 of 3" in one.said


def test_numbers_are_assigned_where_none_are_given(start, tmp_path):
    one, two = start(None), start(None)
    assert (one.wait(), two.wait()) == (0, 0), one.said + two.said
    assert sorted(path.name for path in tmp_path.glob("start*")) == ["start0_rank0", "start0_rank1"]


def test_a_failing_rank_ends_all_nodes_with_its_code(start):
    body = "time.sleep(1.0 if rank == 1 else 600.0); sys.exit(7)"
    one, two = start(0, body), start(1, body)
    assert (one.wait(), two.wait()) == (7, 7), one.said + two.said
    assert "rank 1 exited with code 7" in two.said
    assert "rank 1 exited with code 7 (on " in one.said


def test_a_mistake_is_not_tried_again(start, tmp_path):
    body = "time.sleep(600.0 if rank else 1.0); sys.exit(2)"
    one, two = start(0, body, "--max-restarts=3"), start(1, body, "--max-restarts=3")
    assert (one.wait(), two.wait()) == (2, 2), one.said + two.said
    assert not list(tmp_path.glob("start1_*"))


def test_all_start_again_after_a_failure(start, tmp_path):
    body = "time.sleep(1.0)\nif start == '0': os.kill(os.getpid(), signal.SIGKILL) if rank else time.sleep(600.0)"
    one, two = start(0, body, "--max-restarts=1"), start(1, body, "--max-restarts=1")
    assert (one.wait(), two.wait()) == (0, 0), one.said + two.said
    assert "rank 1 was killed by SIGKILL" in one.said and "restart 1 of 1" in one.said
    assert len(list(tmp_path.glob("start1_*"))) == 2


def test_restarts_are_counted(start, tmp_path):
    body = "sys.exit(5 if rank else 0)"
    one, two = start(0, body, "--max-restarts=1"), start(1, body, "--max-restarts=1")
    assert (one.wait(), two.wait()) == (5, 5), one.said + two.said
    assert len(list(tmp_path.glob("start1_*"))) == 2 and not list(tmp_path.glob("start2_*"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_to_one_node_ends_all(start, tmp_path, number):
    one, two = start(0, "time.sleep(600.0)"), start(1, "time.sleep(600.0)")
    until(lambda: len(list(tmp_path.glob("start0_*"))) == 2, one)
    two.process.send_signal(number)
    assert (one.wait(), two.wait()) == (128 + number, 128 + number), one.said + two.said
    assert signal.Signals(number).name in one.said and signal.Signals(number).name in two.said


def test_a_signal_while_waiting_for_the_others_ends_the_wait(start):
    one = start(0)
    until(lambda: "waiting" in one.said, one)
    one.process.send_signal(signal.SIGINT)
    assert one.wait() == 130, one.said


# A forked rank writes its file before its launcher has its number, and its environment does not name the launcher.
@pytest.mark.real_start
def test_the_loss_of_the_main_node_ends_the_others(start, tmp_path):
    one, two = start(0, "time.sleep(600.0)"), start(1, "time.sleep(600.0)")
    until(lambda: len(list(tmp_path.glob("start0_*"))) == 2, one)
    one.process.kill()
    assert two.wait() == 1
    assert "main node" in two.said


@pytest.mark.real_start
@pytest.mark.parametrize("nnodes", ["2", "1:2"])
def test_the_loss_of_a_node_whose_ranks_nobody_waits_for_ends_the_others(start, tmp_path, nnodes):
    """Where nodes may leave, they start again without it."""
    elastic, body = nnodes == "1:2", "time.sleep(600.0 if start == '0' else 0.0)"
    one, two = start(0, body, nnodes=nnodes), start(1, body, nnodes=nnodes)
    until(lambda: len(list(tmp_path.glob("start0_*"))) == 2, one)
    two.process.kill()
    killed = time.monotonic()
    assert one.wait() == (0 if elastic else 1), one.said
    assert time.monotonic() - killed < 60.0
    told = "lockstep: node 1 (127.0.0.1) is lost: its launcher was killed, or its network is cut"
    assert told + ("; restart 1 of 3" if elastic else "; the other ranks were stopped") in one.said


@pytest.mark.real_start
def test_a_lost_node_may_come_back(start, tmp_path):
    body = "time.sleep(600.0 if start == '0' else 0.0)"
    one, two = start(0, body, "--max-restarts=1"), start(1, body, "--max-restarts=1")
    until(lambda: len(list(tmp_path.glob("start0_*"))) == 2, one)
    two.process.kill()
    until(lambda: "node 1 (127.0.0.1) is lost" in one.said and "restart 1 of 1" in one.said, one)
    again = start(1, body, "--max-restarts=1")
    assert (one.wait(), again.wait()) == (0, 0), one.said + again.said
    assert len(list(tmp_path.glob("start1_*"))) == 2


def test_a_node_whose_ranks_cannot_start_tells_the_others(start, tmp_path):
    """They waited for its ranks, as long as their scripts did."""
    (tmp_path / "out" / "logs" / "rank_1.log").mkdir(parents=True)
    one, two = start(0, "time.sleep(600.0)"), start(1, "", f"--log-dir={tmp_path}/out")
    assert (one.wait(), two.wait()) == (1, 1), one.said + two.said
    told = f"{tmp_path}/out/logs/rank_1.log cannot be written (Is a directory)"
    assert told in one.said and f"lockstep: error: {told}" in two.said


def test_arguments_that_differ_are_named(start):
    one, two = start(0), start(1, arguments=["--lr", "0.1"])
    assert (one.wait(), two.wait()) == (2, 2), one.said + two.said
    assert "differs from node 0" in one.said and "in argument 2 (--lr instead of none) and argument 3 (0.1" in one.said


def test_nodes_come_and_go(start, tmp_path):
    """Two nodes, a third joins: all start again; it leaves: the two go on."""
    body = "\nwhile not (here / 'finish').exists(): time.sleep(0.05)"
    one, two = start(None, body, nnodes="1:3"), start(None, body, nnodes="1:3")
    until(lambda: len(list(tmp_path.glob("start*"))) >= 2 and "of 2" in one.said, one)
    before = {path.name for path in tmp_path.glob("start*")}
    three = start(None, body, nnodes="1:3")
    until(lambda: "of 3: rank" in one.said and "of 3: rank" in two.said and "of 3: rank" in three.said, one)
    grown = {path.name for path in tmp_path.glob("start*")} - before
    until(lambda: len({path.name for path in tmp_path.glob("start*")} - before) == 3, one)
    three.process.send_signal(signal.SIGTERM)
    assert three.wait() == 143, three.said
    until(lambda: len({path.name for path in tmp_path.glob("start*")} - before - grown) >= 2, one)
    until(lambda: one.said.count("of 2: rank") >= 2 and two.said.count("of 2: rank") >= 2, one)
    (tmp_path / "finish").touch()
    assert (one.wait(), two.wait()) == (0, 0), one.said + two.said


def test_a_signal_to_the_ranks_of_nodes_that_may_leave_ends_all(start, tmp_path):
    body = "time.sleep(1.0 if rank else 600.0); sys.exit(143 if start == '0' else 9)"
    one, two = start(0, body, nnodes="1:2"), start(1, body, nnodes="1:2")
    assert (one.wait(), two.wait()) == (143, 143), one.said + two.said
    assert "interrupted by SIGTERM" in one.said and "interrupted by SIGTERM" in two.said
    assert not list(tmp_path.glob("start1_*"))


def test_a_node_that_leaves_may_say_so_after_its_signal_reached_ranks_of_others(start, tmp_path):
    body = "\nwhile not (here / 'agreed').exists() or rank: time.sleep(0.05)\nsys.exit(143)"
    stays, leaves = start(0, body, nnodes="1:2"), start(1, body, nnodes="1:2")
    until(lambda: len(list(tmp_path.glob("start0_*"))) == 2, stays)
    (tmp_path / "agreed").touch()
    time.sleep(1.0)
    leaves.process.send_signal(signal.SIGTERM)
    assert leaves.wait() == 143, leaves.said
    until(lambda: "a node leaves" in stays.said and "all ranks start again" in stays.said, stays)


SLOW = """
from lockstep.launch.restarts import StartRecord, TrainedRun

def stop(*_):
    (here / "asked").touch()
    time.sleep(2.0)
    sys.exit(143)

signal.signal(signal.SIGTERM, stop)
if rank == 0:  # as our own training does
    run_dir = here / "run"
    run_dir.mkdir()
    (run_dir / "run.yaml").write_text("task: CartPole-v1")
    (run_dir / "summary.json").write_text('{{"status": "failed", "error": "rank 1 has ended", "env_steps": 512}}')
    StartRecord(pathlib.Path(os.environ["LOCKSTEP_START_RECORD"])).write(TrainedRun(run_dir=str(run_dir), starts=1))
if rank == {failing}:
    while len(list(here.glob("start0_*"))) < 2: time.sleep(0.02)
    sys.exit(3)
time.sleep(600.0)
"""


@pytest.mark.parametrize("interrupted", [0, 1])
@pytest.mark.parametrize("when", ["stopping", "waiting"])
def test_a_signal_before_a_restart_ends_all_nodes(start, tmp_path, interrupted, when):
    """While its ranks are stopped, or while it waits for the other node to stop its own."""
    slow = interrupted if when == "stopping" else 1 - interrupted
    body = SLOW.format(failing=1 - slow)
    nodes = [start(rank, body, "--max-restarts=2") for rank in range(2)]
    until(lambda: (tmp_path / "asked").exists(), nodes[0])
    if when == "waiting":
        until(lambda: "restart 1 of 2" in nodes[interrupted].said, nodes[0])
    nodes[interrupted].process.send_signal(signal.SIGINT)
    signalled = time.monotonic()
    assert [node.wait() for node in nodes] == [130, 130], nodes[0].said + nodes[1].said
    assert time.monotonic() - signalled < 20.0
    for node in nodes:
        assert f"rank {1 - slow} exited with code 3" in node.said
        assert "interrupted by SIGINT (signal 2) before restart 1 of 2" in node.said
    assert not list(tmp_path.glob("start1_*"))
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary == summary | {"status": "interrupted", "world_size": 2, "restarts": 1, "env_steps": 512}
    assert "interrupted by SIGINT (signal 2) before restart 1 of 2" in summary["error"]
    failure = json.loads((tmp_path / "run" / "logs" / "failure.json").read_text())
    assert (failure["rank"], failure["code"]) == (1 - slow, 3) and "exited with code 3" in failure["message"]


def test_a_node_that_leaves_while_nodes_meet_is_not_waited_for(start):
    """The other one began with it, and ended after a minute without it, whatever `--max-restarts`."""
    stays, leaves = start(0, nnodes="1:3"), start(1, nnodes="1:3")
    time.sleep(7.0)  # both meet: torch is imported, and there are 10 seconds for a third one
    leaves.process.send_signal(signal.SIGTERM)
    assert leaves.wait() == 143, leaves.said
    left = time.monotonic()
    assert stays.wait() == 0, stays.said
    assert time.monotonic() - left < 40.0, stays.said


FAILS_WHILE_STOPPING = """
import json
from lockstep.launch.restarts import StartRecord, TrainedRun

def stop(*_):
    if rank == 0:
        told = dict(rank=0, code=1, message="policy.safetensors: No space left", phase=None)
        (run_dir / "logs" / "failure.json").write_text(json.dumps(told))
    sys.exit(1 if rank == 0 else 143)

run_dir = here / "run"
if rank == 0:
    (run_dir / "logs").mkdir(parents=True)
    (run_dir / "run.yaml").write_text("task: CartPole-v1")
    StartRecord(pathlib.Path(os.environ["LOCKSTEP_START_RECORD"])).write(TrainedRun(run_dir=str(run_dir), starts=1))
signal.signal(signal.SIGTERM, stop)
(here / f"ready_{rank}").touch()
time.sleep(600.0)
"""


def test_a_rank_that_fails_while_it_stops_is_no_clean_interruption(start, tmp_path):
    """There may be no checkpoint: whoever requeues the job by its exit code has to know."""
    nodes = [start(rank, FAILS_WHILE_STOPPING) for rank in range(2)]
    until(lambda: len(list(tmp_path.glob("ready_*"))) == 2, nodes[0])
    nodes[0].process.send_signal(signal.SIGTERM)
    assert [node.wait() for node in nodes] == [1, 143], nodes[0].said + nodes[1].said
    assert "rank 0: policy.safetensors: No space left (after SIGTERM (signal 15))" in nodes[0].said


@pytest.mark.parametrize("before", [None, "", "INFO"])
def test_ranks_inherit_the_log_level_that_the_user_set(before, monkeypatch):
    name = "TORCH_CPP_LOG_LEVEL"
    if before is None:
        monkeypatch.delenv(name, raising=False)
    else:
        monkeypatch.setenv(name, before)
    with multi_node._quiet_torch():
        assert os.environ[name] == (before or "ERROR")
    assert os.environ.get(name) == before


def test_nodes_learn_from_prepared_data_and_continue(tmp_path):
    """Each rank runs the command that was typed, `lockstep offline train`."""
    made_data.discrete(tmp_path / "data")

    def train(*words):
        flags = ["--nnodes=2", "--nproc-per-node=1", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--join-timeout=60"]
        nodes = [Node(tmp_path, "offline", "train", *words, *flags, f"--node-rank={number}") for number in (0, 1)]
        try:
            assert [node.wait() for node in nodes] == [0, 0], [node.said for node in nodes]
        finally:
            for node in nodes:
                node.end()
        return json.loads((tmp_path / "run" / "summary.json").read_text())

    summary = train("data", "--run-dir=run", "--device=cpu", "--set", "epochs=1", "--set", "network.hidden=[8]")
    assert (summary["status"], summary["world_size"], summary["env_steps"]) == ("finished", 2, 200)
    summary = train("--resume=run", "--set", "epochs=2")
    assert (summary["status"], summary["env_steps"]) == ("finished", 400)
