"""The preflight among real processes: whoever differs is named on every rank, before anything is written."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import flights
import pytest
from running import job, small, train_all

from lockstep import spawn
from lockstep.launch.rank_environment import free_port

BOUND_S = 90
SAME = ("version", "config", "code", "source")


@pytest.fixture(scope="module")
def one_host():
    return spawn(flights.flights, 3, (flights.ports("nothing", *SAME, "clock"), (3,), True), timeout_s=240)


@pytest.fixture(scope="module")
def two_hosts():
    return spawn(
        flights.flights, 2, (flights.ports("nothing", "config", "clock", "device"), (1, 1), True), timeout_s=240
    )


def test_one_host_pays_one_small_message(one_host):
    for rank in one_host:
        assert rank["nothing"]["messages"] == 2, "an object is sent as its size and itself"
        assert rank["nothing"]["small"] is None
        assert [host["ranks"] for host in rank["nothing"]["hosts"]] == [[0, 1, 2]]
        assert rank["nothing"]["warnings"] == rank["nothing"]["notes"] == []
        assert rank["clock"]["warnings"] == [], "ranks of one host have one clock"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("version", "torch (0.0.1 instead of "),
        ("config", "algorithm.gamma (0.5 instead of 0.99) and seed (5 instead of 0); start all with the same command"),
        ("code", "mine.py (22 instead of 11); give every machine the same files"),
        ("source", "(source another) instead of "),
    ],
    ids=SAME,
)
def test_who_differs_is_named_on_every_rank(one_host, name, words):
    for rank in one_host:
        assert isinstance(rank[name], str), f"{name}: passes for equal"
        assert rank[name].startswith("ConfigError: rank 1 differs from ranks 0, 2 in "), rank[name]
        assert words in rank[name]


def test_between_hosts_the_host_is_named_too(two_hosts):
    for rank in two_hosts:
        assert rank["config"].startswith("ConfigError: rank 1 (node 1 of "), rank["config"]
        assert "differs from rank 0 (node 0 of " in rank["config"]


def test_between_hosts_the_network_is_measured_and_the_speed_predicted(two_hosts):
    first, second = (rank["nothing"] for rank in two_hosts)
    for told in (first, second):
        assert (told["world_size"], told["num_hosts"]) == (2, 2)
        assert [host["ranks"] for host in told["hosts"]] == [[0], [1]]
        assert 0 < told["small"]["seconds"] < 5
        assert told["small"]["bytes"] < told["large"]["bytes"]
        assert told["large"]["bytes_per_s"] > 0
        assert abs(told["clock_skew_s"]) < 1, "one machine has one clock"
    assert first["predicted_steps_per_second"] > 0, first["notes"]
    assert first["predicted_one_host_steps_per_second"] > 0
    assert first["messages_per_update"] == 1 + 2 * 2
    assert second["predicted_steps_per_second"] is None
    assert first["line"].startswith("2 ranks on 2 hosts (rank 0 on node 0 of ")
    assert "predicted" in first["line"]


def test_a_clock_that_is_ahead_and_another_kind_of_gpu_are_warned_of(two_hosts):
    (said,) = [line for line in two_hosts[0]["clock"]["warnings"] if "clock" in line]
    assert "100.0 s ahead of that of node 0" in said
    assert two_hosts[0]["clock"]["clock_skew_s"] == pytest.approx(flights.AHEAD_S, abs=1.0)
    (said,) = [line for line in two_hosts[0]["device"]["warnings"] if "devices" in line]
    assert "NVIDIA T4 on node 1" in said
    assert "equal bits are promised for one kind of hardware only" in said


def test_a_run_writes_what_was_found_and_ends_with_the_same_bits(tmp_path):
    run = small("lockstep/Match-v0", num_shards=4, total_steps=256)
    jobs = {"two": job(run, tmp_path, "two", hosts=(1, 1)), "one": job(run, tmp_path, "one")}
    trained = train_all(2, jobs)
    prints = {
        outcome.summary.get("params_fingerprint", outcome.error) for ranks in trained.values() for outcome in ranks
    }
    assert len(prints) == 1, prints
    found = {name: json.loads((tmp_path / name / "preflight.json").read_text()) for name in jobs}
    assert (found["one"]["num_hosts"], found["two"]["num_hosts"]) == (1, 2)
    assert found["two"]["predicted_steps_per_second"] > 0


def start(command, sizes, tmp_path, per_rank=({}, {}), more=((), ())):
    """`(code, output, errors)` of each rank, on hosts of so many ranks each; `more` are arguments of each rank."""
    size, port = sum(sizes), free_port()
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("LOCKSTEP_LAUNCHER", "TORCHELASTIC"))}
    places = [(node, local, count) for node, count in enumerate(sizes) for local in range(count)]
    ranks = []
    for rank, (node, local, count) in enumerate(places):
        described = {
            "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(count),
            "GROUP_RANK": str(node), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        ranks.append(
            subprocess.Popen(
                [sys.executable, *command, *more[rank]],
                env=clean | described | per_rank[rank],
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        said = [rank.communicate(timeout=BOUND_S) for rank in ranks]
        return [(rank.returncode, *texts) for rank, texts in zip(ranks, said, strict=True)]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def shadowing(path, name, version):
    """`PYTHONPATH` that makes a package look like another version of itself."""
    info = Path(path, f"{name}-{version}.dist-info")
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    inherited = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(path), *([inherited] if inherited else [])])}


def test_the_probe_tells_a_table_on_rank_0_alone(tmp_path):
    (code, told, errors), (other, nothing, _) = start(["-m", "lockstep.cli.probe"], (2,), tmp_path)
    assert (code, other, nothing) == (0, 0, ""), errors
    assert told.splitlines()[0] == "2 ranks on 1 host"
    for word in ("cpu", "a sum over all ranks", "4,194,304 bytes", f"python {sys.version.split()[0]}"):
        assert word in told


def test_an_installed_version_that_differs_ends_all_ranks_with_2(tmp_path):
    other = shadowing(tmp_path / "other", "numpy", "0.9.9")
    said = start(["-m", "lockstep.cli.probe"], (2,), tmp_path, per_rank=({}, other))
    for code, told, errors in said:
        assert (code, told) == (2, ""), errors
        (line,) = [line for line in errors.splitlines() if line.startswith("lockstep: error:")]
        assert "rank 1 differs from rank 0 in numpy (0.9.9 instead of " in line
        assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("rank_0", "rank_1", "words"),
    [
        (["lockstep/Match-v0"], ["lockstep/Match-v0", "--init-from", "one"], "--init-from (a policy instead of none)"),
        (["--resume", "one"], ["lockstep/Match-v0"], "--resume (none instead of one)"),
        (["--resume", "one"], ["--resume", "two"], "--resume (two instead of one)"),
    ],
    ids=["init-from", "resume", "other run"],
)
def test_a_rank_that_begins_in_another_way_is_refused(tmp_path, rank_0, rank_1, words):
    """Its first collectives would be others."""
    values = ("num_envs=4", "total_steps=512", "device=cpu", "num_shards=2", "stop_when_solved=false")
    settings = [word for value in values for word in ("--set", value)]
    trained = ["-m", "lockstep", "train", "lockstep/Match-v0", *settings, "--run-dir", "one"]
    subprocess.run([sys.executable, *trained], cwd=tmp_path, check=True, capture_output=True)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    more = [[*words_of_rank, *settings, "--set", "total_steps=1024"] for words_of_rank in (rank_0, rank_1)]
    for code, _, errors in start(["-m", "lockstep", "train"], (2,), tmp_path, more=more):
        assert code == 2, errors
        assert f"rank 1 differs from rank 0 in {words}; start all with the same command" in errors


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((2,), "lockstep: error: rank 1 has been in its own code, update 1 for 3 s"),
        ((1, 1), r"PeerError: .*\(rank 1\).* in preflight .*timeout_s=3"),
    ],
    ids=["one-host", "two-hosts"],
)
def test_a_rank_that_does_not_come_is_named(tmp_path, sizes, words):
    here = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])}
    (code, _, errors), _ = start(["-c", "import flights; flights.asleep()"], sizes, tmp_path, per_rank=(here, here))
    assert code == 1, errors
    assert re.search(words, errors), errors
