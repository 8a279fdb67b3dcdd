"""Ranks of several hosts, made believe on this machine: the bits of one host, and failures that name the other host."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import host_blocks
import pytest
from running import job, small, train_all

from lockstep import spawn
from lockstep.distributed.watch import MARGIN_S
from lockstep.launch.rank_environment import free_port

# Name: ranks of each host, num_shards, whether hosts use their memory.
LAYOUTS = {
    "one host": ((4,), 6, True),
    "2 and 2": ((2, 2), 6, True),
    "1 and 3": ((1, 3), 6, True),
    "3 and 1": ((3, 1), 6, True),
    "4 of 1": ((1, 1, 1, 1), 6, True),
    "three hosts": ((2, 1, 1), 6, True),
    "no memory": ((2, 2), 6, False),
}


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What every rank of every layout said."""
    calls = [(name, "sums", layout) for name, layout in LAYOUTS.items()]
    calls += [("not pinned", "sums", ((2, 2), None))]
    calls += [(f"other {how}", "differ", ((2, 2), how)) for how in ("tag", "size")]
    calls += [(f"other order {length}", "other_order", (length,)) for length in (8, 100_000)]
    calls += [("mixed up", "mixed_up", ())]
    ranks = spawn(host_blocks.at_once, 4, (calls, str(tmp_path_factory.mktemp("ports"))), timeout_s=300)
    return {name: [rank[name] for rank in ranks] for name, *_ in calls}


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name != "one host"])
@pytest.mark.parametrize("what", host_blocks.SUMS)
def test_sums_over_hosts_have_the_bits_of_one_host(told, name, what):
    (expected,) = {bits for rank in told["one host"] for bits in rank[what]}
    found = [rank[what] for rank in told[name]]
    assert {bits for rank in found for bits in rank} == {expected}, "sums depend on the hosts"


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_else_goes_between_hosts(told, name):
    for rank, said in enumerate(told[name]):
        rest = said["rest"]
        assert rest["max"] == [3.0, 0.0]
        assert rest["any"] == [True, False]
        assert rest["objects"] == ["", "x", "xx", "xxx"]
        assert rest["told"] == [3, "é"]
        assert rest["broadcast"] == "000000800000c07f0000404000004040", "bits change on the way"
        assert rest["integers"] == [4 * 2**40 + 6]
        assert said["messages"]["small"] == 3, "one message for each sum"
        assert said["unequal"] == ""
        sizes = LAYOUTS[name][0]
        if LAYOUTS[name][2]:
            first = next(sum(sizes[:n]) for n in range(len(sizes)) if rank < sum(sizes[: n + 1]))
            local = next(size for n, size in enumerate(sizes) if rank < sum(sizes[: n + 1]))
            assert [seen for seen, _ in rest["seen"]] == list(range(first, first + local)), (
                "the board names other ranks"
            )


def test_only_the_first_rank_of_a_host_talks_to_other_hosts(told):
    assert [said["links"] for said in told["one host"]] == [False] * 4
    assert [said["links"] for said in told["2 and 2"]] == [True, False, True, False]
    assert [said["links"] for said in told["1 and 3"]] == [True, True, False, False]
    (hosts,) = {tuple(said["hosts"]) for said in told["1 and 3"]}
    assert re.fullmatch(r"host \S+ \(rank 0\)", hosts[0])
    assert re.fullmatch(r"host \S+ \(ranks 1-3\)", hosts[1])


def test_ranks_that_do_not_lie_in_blocks_are_summed_all_the_same(told):
    """As `srun -m cyclic` deals them: each is a host of its own."""
    (expected,) = {bits for rank in told["one host"] for bits in rank["small"]}
    assert {said["small"] for said in told["mixed up"]} == {expected}
    assert all(len(said["hosts"]) == 4 for said in told["mixed up"])


def test_a_run_that_is_not_pinned_takes_the_same_way(told):
    assert len({bits for rank in told["not pinned"] for bits in rank["small"]}) == 1
    assert [said["links"] for said in told["not pinned"]] == [True, False, True, False]


@pytest.mark.parametrize("how", ["tag", "size"])
def test_hosts_in_different_collectives_are_told_apart(told, how):
    for rank, said in enumerate(told[f"other {how}"]):
        if how == "tag":
            ways = [("average_gradients", 0), ("log", 2)]
            (mine, first), (other, second) = ways if rank < 2 else ways[::-1]
            told = f"ranks are in different collectives: rank {first} is in {mine}, rank {second} is in {other};"
        else:
            sizes = [(32, 0), (8000, 2)]
            (mine, first), (other, second) = sizes if rank < 2 else sizes[::-1]
            told = f"average_gradients, with different tensors: rank {first} sends {mine} bytes"
            assert f"rank {second} {other} bytes" in said
        assert told in said, said


@pytest.mark.parametrize("length", [8, 100_000])
def test_hosts_with_parameters_in_another_order_are_told_apart(told, length):
    """Large gradients are summed in slices: their order was not compared, and other parameters were averaged."""
    said = told[f"other order {length}"]
    assert "nothing" not in said, "a rank averaged other parameters than the rest"
    # A rank that was sending when another had found it out learns of the closed connection alone.
    assert any("with tensors of other names, shapes or order" in one for one in said), said


@pytest.mark.slow  # tests/hosts does it quickly, over a real network
def test_a_whole_run_over_hosts_ends_with_the_bits_of_one_rank(tmp_path):
    """5 shards among 4 ranks: dealt unevenly, and no subtree belongs to a host of two."""
    run = small("CartPole-v1", num_shards=5, num_envs=20, total_steps=8 * 160, evaluate_every=160 * 4, log_every=160)
    (alone,) = train_all(1, {"one": job(run, tmp_path, "one")})["one"]
    layouts = [(2, 2), (1, 2, 1), (1, 1, 1, 1)]
    many = train_all(4, {str(sizes): job(run, tmp_path, str(sizes), hosts=sizes) for sizes in layouts})
    for sizes, ranks in many.items():
        assert [rank.error for rank in [alone, *ranks]] == [""] * 5
        assert {rank.summary["params_fingerprint"] for rank in ranks} == {alone.summary["params_fingerprint"]}, sizes
        assert {rank.summary["eval_return_mean"] for rank in ranks} == {alone.summary["eval_return_mean"]}, sizes


class Ranks:
    """Processes that find out alone: no launcher ends them."""

    def __init__(self, folder, size, call):
        self.folder, port = folder, free_port()
        path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path.rstrip(os.pathsep)}
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-c", f"import host_blocks; host_blocks.{call.format(rank=rank, port=port)}"],
                cwd=folder,
                env=environment,
            )
            for rank in range(size)
        ]

    @classmethod
    def fail(cls, folder, sizes, how):
        return cls(folder, sum(sizes), f"fails({{rank}}, {{port}}, {sizes}, {how!r}, '.')")

    def said(self, rank, within_s=60):
        path, deadline = self.folder / f"{rank}.txt", time.monotonic() + within_s
        while not path.exists():
            assert time.monotonic() < deadline, f"rank {rank} did not find out"
            time.sleep(0.02)
        seconds, _, text = path.read_text().partition(" ")
        return float(seconds), text

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    "sizes", [(2, 2), *(pytest.param(sizes, marks=pytest.mark.slow) for sizes in ((1, 1), (2, 1, 2)))]
)
def test_a_silent_host_is_named_by_every_rank_of_the_others(tmp_path, sizes):
    with Ranks.fail(tmp_path, sizes, "all are stopped") as ranks:
        odd = "ranks 2-3" if sizes == (2, 2) else "rank 1" if sizes == (1, 1) else "ranks 3-4"
        for rank in range(sum(sizes[:-1])):
            seconds, said = ranks.said(rank)
            assert re.fullmatch(
                rf"PeerError: host \S+ \({odd}\) did not answer in average_gradients within timeout_s=2", said
            ), said
            assert 2 + MARGIN_S - 0.1 < seconds < 2 + MARGIN_S + 1.5, "told too early or too late"


CLOSED = r"host \S+ \(ranks 2-3\) closed its connection while rank 0 waited in average_gradients; its logs say why"
FAILURES = {
    "the first is killed": CLOSED,
    "another is killed": "rank 3 has ended while rank 2 waited in average_gradients",
    "the first raises": r"rank 2 on host \S+ \(ranks 2-3\) failed: ValueError: the motor is hot",
    "another is stuck": r"rank 3 has been in env.step, update 2 for \d s; rank 2 waits in average_gradients, update 2",
}


@pytest.mark.parametrize("how", FAILURES)
def test_a_failure_on_one_host_is_told_to_every_rank_of_the_others(tmp_path, how):
    with Ranks.fail(tmp_path, (2, 2), how) as ranks:
        for rank in (0, 1):
            seconds, said = ranks.said(rank)
            assert re.fullmatch(f"PeerError: {FAILURES[how]}", said), said
            assert seconds < 2.0 + MARGIN_S, "told only after the timeout"
        if how != "another is stuck":  # there the watches of both ranks end them
            _, said = ranks.said(2 if how == "another is killed" else 3)
            assert "PeerError: rank" in said


def test_a_first_rank_that_dies_in_the_first_collective_is_named(tmp_path):
    """The others open its memory after it has arrived, and saw a file of /proc that is gone."""
    with Ranks(tmp_path, 2, "first_dies({rank}, {port}, '.')") as ranks:
        deadline = time.monotonic() + 60
        while not (tmp_path / "entering").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(0.5)  # it arrives within microseconds
        ranks.processes[0].kill()
        ranks.processes[0].wait()
        (tmp_path / "killed").touch()
        _, said = ranks.said(1)
        assert said == "PeerError: rank 0 has ended while rank 1 waited in sum"
