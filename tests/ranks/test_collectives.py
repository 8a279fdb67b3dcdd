"""The collectives among real processes: sums, mistakes, death. What a world of one does is in tests/unit/torch."""

import os
import re
import subprocess
import sys
from pathlib import Path

import collectives
import numpy as np
import pytest
import stuck
from running import job, small, small_actor_critic, small_dqn, train_all

from lockstep import RunError, spawn
from lockstep.distributed.watch import MARGIN_S
from lockstep.launch.rank_environment import free_port

WAYS = ("memory", "messages", "plain")


def ports(*names):
    return {name: free_port() for name in names}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("collectives")


@pytest.fixture(scope="module")
def told(folder):
    """What both ranks said of everything that leaves them alive."""
    calls = [
        ("all_collectives", (ports(*WAYS),)),
        ("flat_gradients", (free_port(),)),
        ("module_gradients", (ports(*WAYS),)),
        ("odd_inputs", (ports(*WAYS),)),
        ("results_alone", (ports(*WAYS),)),
        ("go_on_after_a_failure", (ports(*WAYS),)),
        ("overlapped_gradients", (free_port(),)),
        ("differ", (ports(*WAYS),)),
        ("objects_differ", (free_port(),)),
        ("call_different_things", ({way: [free_port() for _ in range(11)] for way in WAYS},)),
        ("first_is_missed", ({way: [free_port() for _ in range(3)] for way in WAYS[:2]},)),
        ("unequal", (ports(*WAYS),)),
        ("one_port", (free_port(),)),
        ("comm_dies_with_an_error", ([free_port(), free_port()],)),
        ("one_gpu", (free_port(),)),
        ("start_unequal", (free_port(), str(folder / "run"))),
    ]
    ranks = spawn(collectives.one_after_another, 2, (calls,), timeout_s=240)
    return {name: [rank[name] for rank in ranks] for name, _ in calls}


@pytest.mark.parametrize("way", WAYS)
def test_inputs_that_are_out_of_the_ordinary(told, way):
    first, second = (rank[way] for rank in told["odd_inputs"])
    assert first == second
    assert first["sparse"] == [0.5, 0.5, 0.5, 0.5, 0.0, 0.0]
    assert first["one"] == [1.5, 1.5]
    assert first["complex"] == [1 + 0.5j]
    assert first["complex mean"] == [1j]
    assert first["frozen"] == [4.0]
    assert (first["small"], first["largest"], first["narrow"]) == ([1], [0], [1.0])
    assert (
        first["before"] == first["after"] == "sum was called before or after `with Comm(...) as comm:`; call it inside"
    )
    assert first["narrow whole"] == [("torch.int64", [200]), ("torch.int64", [2]), ("torch.int64", [400])]
    assert (first["uint32"], first["negated later"], first["moments of nothing"]) == ([1], [0.0], [])
    assert first["statistics"] == [2.0**54]
    assert first["source"] == "source=2 is not a rank: there are 2, from 0 to 1"
    assert first["object"].startswith("source=-1 is not a rank")
    assert first["weight"] == "weight=-1.0 must be a finite number of at least 0"
    assert first["weights"].startswith("weight has shape [2], but a rank has one weight")
    assert first["rows"].startswith("rows given: ")
    assert first["computed"].startswith("a tensor that was computed has no gradient to average")
    assert first["still"] == [2.0], "a refused call must not end what follows"


@pytest.mark.parametrize("way", WAYS)
def test_collectives(told, way):
    first, second = (rank[way] for rank in told["all_collectives"])
    assert repr(first) == repr(second), "ranks were told different things"
    shards = range(2) if way == "plain" else range(5)
    assert first["sum_shards"] == pytest.approx([sum(10.0**s for s in shards), sum(s / 3 for s in shards)])
    assert first["sum"] == [3.0, 4.0]
    assert first["mean"] == [1.5, 2.0]
    assert first["weighted"] == [(1 + 3 * 2) / 4, 2.0]
    assert first["not weighed"] == [1.0, 2.0], "a rank of weight 0 has a say"
    assert first["max"] == [2.0, 2.0]
    assert first["any"] == [True, False]
    rows = np.concatenate([np.arange(6.0).reshape(3, 2)[[0, 2, 2]] * k for k in (1, 2)])
    assert first["moments"] == [6.0, pytest.approx(rows.mean(0)), pytest.approx(rows.var(0), rel=1e-6)]
    assert [g["rank"] for g in first["gather"]] == [0, 1]
    assert [g["array"].tolist() for g in first["gather"]] == [[], [0]]
    assert first["broadcast"] == [1, "é"]
    assert first["gradient"] == [pytest.approx([4 / 5, 4 / 5])], "the mean gradient does not weigh ranks"
    assert first["weight"] == [5.0]
    assert first["large"] == 600_000
    assert first["double"] == [2e-17, 2.0], "float64 was narrowed on the way"


@pytest.mark.parametrize("way", WAYS)
def test_gradients_of_ordinary_modules(told, way):
    for rank in told["module_gradients"]:
        found = rank[way]
        assert found["integers"] == {"bytes": [400], "flags": [2], "mean": [0.5], "moments": [2.0, 0.5, 0.25]}
        assert found["bfloat16 sum"] == [512.0, 1.0]
        assert found["bfloat16 max"] == [0.0]
        assert found["torch.float16"] == [[80002.0], True, [0.5, 0.5]], "a weight above what float16 holds"
        assert found["torch.bfloat16"] == [[516.0], True, [0.5, pytest.approx(259 / 516, rel=0.01)]]
        assert found["masked"] == [1.0, 2.0, 1.0, None], "NaN of weight 0, or a gradient that no rank has"


@pytest.mark.parametrize("way", WAYS)
def test_results_are_new_tensors_without_a_gradient(told, way):
    for rank, found in enumerate(told["results_alone"]):
        assert found[way] == []
        assert found[f"{way} given"] == [[1.0, rank]]
        assert found[f"{way} moments"] == [8.25, 2.0, 2.0, 1.0], "far from zero, and of weight 0"


@pytest.mark.parametrize("way", WAYS)
def test_no_collective_follows_one_that_failed(told, way):
    """Steps have equal sizes and tags: a rank would add what the others sent for another step."""
    for rank, said in enumerate(one[way] for one in told["go_on_after_a_failure"]):
        assert "ranks are in different collectives" in said[0]
        follows = f"step cannot follow step of rank {rank}, which failed"
        assert [one.startswith(follows) for one in said[1:3]] == [True, True], said
        assert said[3].startswith(f"close cannot follow step of rank {rank}"), "the block ends without an error"


def test_gradients_of_shards_count_by_their_weight(told):
    expected = np.array([[s * (s + 1.0)] * 3 + [s + 1.0] for s in range(4)]).sum(0) / 10
    for rank in told["flat_gradients"]:
        assert np.allclose(rank["gradient"], expected)
        assert rank["sums"] == [10.0, 6.0]
        assert rank["messages"]["average_gradients"] == 1


@pytest.mark.parametrize("skips_last", [False, True])
def test_gradients_sent_during_the_backward_pass_are_those_of_one_message(told, skips_last):
    collectives.check_overlapped_gradients(told["overlapped_gradients"], skips_last=skips_last)


def test_a_layer_that_one_rank_leaves_out_does_not_change_what_ranks_send(told):
    for rank in told["overlapped_gradients"]:
        whole, buckets = rank["one leaves out"]
        assert whole == buckets


@pytest.mark.slow
def test_runs_that_send_gradients_during_backward_passes_end_with_the_same_parameters(tmp_path):
    runs = {"ppo": small("CartPole-v1"), "dqn": small_dqn("CartPole-v1")}
    runs |= {algo: small_actor_critic(algo) for algo in ("sac", "td3")}
    jobs = {}
    for algo, run in runs.items():
        for name, size in (("whole", None), ("buckets", 256)):
            jobs[algo, name] = job(run, tmp_path, f"{algo}-{name}", shared_memory=False, bucket_bytes=size)
    trained = train_all(2, jobs)
    for algo in runs:
        whole, buckets = trained[algo, "whole"][0], trained[algo, "buckets"][0]
        assert whole.error == buckets.error == ""
        assert whole.summary["params_fingerprint"] == buckets.summary["params_fingerprint"], algo
        sent = [one.messages["average_gradients"] for one in (whole, buckets)]
        assert sent[1] >= 2 * sent[0], algo


def test_a_second_backward_pass_after_buckets_were_started_is_refused(told):
    assert all("leave it out" in rank["twice"] for rank in told["overlapped_gradients"])


def test_ranks_in_different_collectives_of_equal_size_are_told_apart(told):
    said = told["differ"]
    for rank, other in ((0, 1), (1, 0)):
        mine = ("average_gradients", "log")[rank]
        assert said[rank]["memory"].startswith("RunError: ranks are in different collectives"), said[rank]["memory"]
        assert f"rank {rank} is in {mine}" in said[rank]["memory"]
        assert f"rank {other} is in {('average_gradients', 'log')[other]}" in said[rank]["memory"]
        assert said[rank]["messages"].startswith("RunError: ranks are in different collectives"), said[rank]["messages"]
        assert f"rank {rank} is in {mine}" in said[rank]["messages"]
        assert f"rank {other} is in {('average_gradients', 'log')[other]}" in said[rank]["messages"]
        assert said[rank]["plain"] == said[rank]["messages"]


def test_objects_of_different_collectives_are_told_apart(told):
    assert all("ranks are in different collectives" in rank for rank in told["objects_differ"]), told["objects_differ"]


OTHER = {"broadcast": "sum", "average_gradients": "gather_object", "gather_object": "broadcast"}
KINDS = [
    ("type", "sum_shards", ("float64", "int64")),
    ("width", "sum_shards", ("float64", "float32")),
    ("type of a broadcast", "broadcast", ("float32", "int32")),
]


@pytest.mark.parametrize("way", WAYS)
def test_what_ranks_call_is_told_before_any_size(told, way):
    """Also in the first collective, and where the sizes alone would end a process."""
    for rank, said in enumerate(told["call_different_things"]):
        for first, second in OTHER.items():
            mine, other = (first, second) if rank == 0 else (second, first)
            assert said[f"{way} {first}"] == (
                f"RunError: ranks are in different collectives: rank {rank} is in {mine}, rank {1 - rank} is in "
                f"{other}; every rank must call the same collectives in the same order"
            )
        mine, other = (12, 12000) if rank == 0 else (12000, 12)
        assert said[f"{way} size"] == (
            "RunError: ranks are in the same collective, sum, with different tensors: "
            f"rank {rank} sends {mine} bytes of float32, rank {1 - rank} {other} bytes of float32; "
            "tensors must have the same shape and type on every rank"
        )
        for case, tag, kinds in KINDS:
            mine, other = kinds[rank], kinds[1 - rank]
            assert said[f"{way} {case}"].startswith(
                f"RunError: ranks are in the same collective, {tag}, with different tensors: "
                f"rank {rank} sends 24 bytes of {mine}, rank {1 - rank} 24 bytes of {other}"
            )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", collectives.MIXED)
def test_ranks_whose_tensors_are_others_of_equal_size_are_told_apart(told, way, case):
    """As parameters of a set, whose order is another in each process, or another frozen head."""
    for rank, said in enumerate(told["call_different_things"]):
        tag = "broadcast" if "broadcast" in case else "average_gradients"
        assert said[f"{way} {case}"] == (
            f"RunError: ranks are in the same collective, {tag}, with tensors of other names, shapes or order: rank "
            f"{rank} gives others than rank {1 - rank}, of the same size in all; give every rank the same tensors in "
            "the same order"
        )


@pytest.mark.parametrize("way", ["memory", "messages"])
@pytest.mark.parametrize("name", ["broadcast", "sum", "gather_object"])
def test_a_rank_that_misses_the_first_collective_is_named(told, way, name):
    assert told["first_is_missed"][0][f"{way} {name}"] == (
        f"PeerError: rank 1 did not come to {name} within timeout_s=1; it has not entered any collective yet"
    )


def test_a_launched_rank_that_misses_the_first_collective_is_named():
    script = Path(__file__).with_name("missing.py")
    command = [sys.executable, "-m", "lockstep.cli", "launch", "--ranks", "2", str(script)]
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    done = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    said = "PeerError: rank 1 did not come to broadcast within timeout_s=1; it has not entered any collective yet"
    assert said in done.stderr


CAUSE = "; something changed it outside the collectives, or a rank skipped one"


def check_unequal(ranks, way, expected):
    for rank in ranks:
        assert rank[f"{way} messages"]["check_equal"] == 1, "what is equal costs more than one message"
        assert rank[f"{way} after"] == len(ranks), "the collectives do not go on after a mismatch"
        for case, (text, odd, names) in expected.items():
            assert rank[f"{way} {case}"] != "nothing", f"{case}: passes for equal"
            assert rank[f"{way} {case}"] == [text + CAUSE, odd, names], case


@pytest.mark.parametrize("way", WAYS)
def test_unequal_tensors_are_named_with_their_rank(told, way):
    """Two ranks: nobody can say which of them is wrong."""
    both, start = [0, 1], "ranks 0 and 1 hold different "
    several = ["learning_rate", "observations.count", "policy.bias"]
    expected = {
        "one bit": (f"{start}policy.weight", both, ["policy.weight"]),
        "negative zero": (f"{start}optimizer.exp_avg", both, ["optimizer.exp_avg"]),
        "several": (f"{start}learning_rate and 2 more", both, several),
        "missing": (f"{start}observations.count (rank 1 without it)", both, ["observations.count"]),
        "shape": (
            f"{start}policy.weight (rank 0: float32 [3], rank 1: float32 [1, 3])", both, ["policy.weight"]
        ),
        "type": (f"{start}learning_rate (rank 0: float32 [], rank 1: float64 [])", both, ["learning_rate"]),
        "halves": (f"{start}policy.weight", both, ["policy.weight"]),
        "all": (f"{start}policy.weight", both, ["policy.weight"]),
    }  # fmt: skip
    check_unequal(told["unequal"], way, expected)


def test_of_four_ranks_the_odd_one_is_named():
    ways = ("memory", "messages")
    start, several = "rank 3 differs from the other ranks in ", ["learning_rate", "observations.count", "policy.bias"]
    expected = {
        "one bit": (f"{start}policy.weight", [3], ["policy.weight"]),
        "negative zero": (f"{start}optimizer.exp_avg", [3], ["optimizer.exp_avg"]),
        "several": (f"{start}learning_rate and 2 more", [3], several),
        "missing": (f"{start}observations.count (rank 3 without it)", [3], ["observations.count"]),
        "shape": (f"{start}policy.weight (rank 0: float32 [3], rank 3: float32 [1, 3])", [3], ["policy.weight"]),
        "type": (f"{start}learning_rate (rank 0: float32 [], rank 3: float64 [])", [3], ["learning_rate"]),
        "halves": ("ranks 0, 1, 2 and 3 hold different policy.weight", [0, 1, 2, 3], ["policy.weight"]),
        "all": ("ranks 0, 1, 2 and 3 hold different policy.weight", [0, 1, 2, 3], ["policy.weight"]),
    }
    ranks = spawn(collectives.one_after_another, 4, ([("unequal", (ports(*ways),))],), timeout_s=120)
    for way in ways:
        check_unequal([rank["unequal"] for rank in ranks], way, expected)


def test_comms_one_after_another_meet_at_the_same_port(told):
    for rank, found in enumerate(told["one_port"]):
        assert found[0::2] == [3.0, 7.0, 11.0], found
        assert found[1] == ("PeerError", "KeyError")[rank]
        assert found[3] == 9.0


@pytest.mark.parametrize("way", ["memory", "messages"])
def test_a_dead_peer_is_noticed_within_two_seconds(tmp_path, way):
    with pytest.raises(RunError, match=r"rank 1 was killed by SIGKILL"):
        spawn(collectives.peer_dies, 2, (free_port(), str(tmp_path), way), timeout_s=60)
    noticed, number, said = Path(tmp_path, "told").read_text().split("\n", 2)
    assert float(noticed) - float(Path(tmp_path, "died_at").read_text()) < 2.0, "noticed too late"
    assert said == "PeerError: rank 1 has ended while rank 0 waited in average_gradients"
    assert number == "1"


@pytest.mark.parametrize("way", ["memory", "messages"])
def test_a_stalled_peer_is_given_up_after_the_timeout_and_the_watchs_margin(way):
    (seconds, said), _ = spawn(collectives.peer_stalls, 2, (free_port(), way), timeout_s=60)
    assert 1 + MARGIN_S - 0.1 < seconds < 1 + MARGIN_S + 2.0, said
    assert said.startswith("PeerError:")
    assert "average_gradients" in said
    assert "timeout_s=1" in said
    if way == "memory":
        assert "rank 1 did not come" in said


@pytest.mark.parametrize(
    ("how", "way", "where", "calls"),
    [
        ("python", "memory", "env.step", ["in stick", "in gets_stuck"]),
        ("python", "messages", "env.step", ["in stick", "in gets_stuck"]),
        ("holding the interpreter's lock", "memory", "env.step", ["in stick", "in gets_stuck"]),
        ("inside a collective", "memory", "average_gradients", ["in slow", "in exchange"]),
    ],
)
def test_a_stuck_rank_is_named_with_its_stack(tmp_path, how, way, where, calls):
    with pytest.raises(RunError, match=r"rank \d .*code 1"):
        spawn(stuck.gets_stuck, 2, (free_port(), str(tmp_path), how, way), timeout_s=60)
    waits_in = where if where == "average_gradients" else "moments"
    first, report, headline, *stack = Path(tmp_path, "told").read_text().splitlines()
    assert first == "1 running"
    assert "1 running" not in stack, "more than one of the watches that see it reports"
    assert re.fullmatch(
        rf"rank 1 has been in {where}, update 2 for [23] s; rank 0 waits in {waits_in}, update 2", report
    )
    assert headline == "  rank 1, innermost call first (all: logs/rank_1.stack):"
    assert [any(call in line for line in stack[:3]) for call in calls] == [True, True], stack
    assert all(line.startswith("    File ") or line.startswith("    ...") for line in stack)
    written = Path(tmp_path, "logs", "stall.txt").read_text()
    assert written.partition(" ")[2].partition(" ")[2].splitlines() == [report, headline, *stack]
    assert calls[0] in Path(tmp_path, "logs", "rank_1.stack").read_text()


@pytest.mark.parametrize(("way", "rank_0_in"), [("memory", "average_gradients"), ("messages", "moments")])
def test_a_stopped_rank_is_told_from_a_busy_one_also_while_it_waits(tmp_path, way, rank_0_in):
    with pytest.raises(RunError, match="rank 0"):
        spawn(stuck.gets_stuck, 2, (free_port(), str(tmp_path), "stopped", way), timeout_s=60)
    first, report = Path(tmp_path, "told").read_text().splitlines()
    assert first == "1 stopped"
    assert re.fullmatch(
        r"rank 1 is stopped \(SIGSTOP\) in moments, update 2, for [23] s; continue it with `kill -CONT \d+`; "
        rf"rank 0 waits in {rank_0_in}, update 2",
        report,
    )
    assert report in Path(tmp_path, "logs", "stall.txt").read_text()


def test_the_group_is_destroyed_after_an_error_and_at_the_end(told):
    assert told["comm_dies_with_an_error"] == [[False, True, False]] * 2


def test_too_many_processes_for_the_gpus_is_refused_by_every_rank(told):
    for said in told["one_gpu"]:
        assert said.startswith("ConfigError: 2 processes")
        assert "--nproc_per_node=1" in said


def test_ranks_with_different_configs_are_refused_before_anything_is_written(told, folder):
    for said in told["start_unequal"]:
        assert said.startswith(
            "ConfigError: rank 1 differs from rank 0 in algorithm.learning_rate (0.002 instead of 0.001)"
        )
    assert not (folder / "run").exists()
