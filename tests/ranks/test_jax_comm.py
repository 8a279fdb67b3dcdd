"""JAX's collectives among real processes: sums, mistakes, death. Worlds of one process are in tests/unit/jax."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lockstep import RunError, spawn
from lockstep.distributed.tree import tree_sum
from lockstep.distributed.watch import MARGIN_S
from lockstep.launch.rank_environment import free_port

pytest.importorskip("jax")

import jax_comm_calls as called

from quick import others_slow

WAYS = ("memory", "mixed", "messages", "devices", "gloo", "gloo devices")


def expected_sum(num_shards, scale):
    products = called.rows_of(num_shards) * np.asarray(scale, np.float32)
    leaves = {(shard, shard + 1): row for shard, row in enumerate(products)}
    return tree_sum(leaves, (0, num_shards), np.add)


@pytest.mark.parametrize("way", others_slow(WAYS, "memory", "messages", "devices"))
def test_collectives(way):
    ranks = spawn(called.everything, 2, (free_port(), way, 4), timeout_s=120)
    devices = 4 if "devices" in way else 2
    rows, slots = called.rows_of(4), 4 // devices
    first = rows[::slots]  # of each device, the row of its first shard
    scale = np.linspace(0.1, 3.0, called.COLUMNS, dtype=np.float32)
    total = expected_sum(4, scale[None])
    for rank, found in enumerate(ranks):
        shared = found["shared"]
        np.testing.assert_array_equal(shared["total"], total, "not the tree's bits")
        np.testing.assert_array_equal(shared["twice"], 2 * total)
        np.testing.assert_array_equal(found["local"], total)
        np.testing.assert_allclose(shared["sum"], first.sum(0), rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(shared["mean"], first.mean(0), rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(shared["lonely"], rows[0])
        np.testing.assert_array_equal(shared["max"], first.max(0))
        narrow = shared["narrow"]
        np.testing.assert_allclose(narrow["sum"], first.sum(0), atol=0.05)
        np.testing.assert_allclose(narrow["mean"], first.mean(0), atol=5e-3)
        np.testing.assert_allclose(narrow["max"], first.max(0), rtol=0.01)
        count, mean, variance = shared["moments"]
        assert count == 4
        np.testing.assert_allclose(mean, rows.mean(0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(variance, rows.var(0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(shared["gradients"]["a"].ravel(), first.mean(0)[:4], rtol=1e-6)
        np.testing.assert_allclose(shared["gradients"]["b"], first.mean(0)[4:6], rtol=1e-6)
        assert found["shards"] == [2 * rank, 2 * rank + 1]
        np.testing.assert_array_equal(found["rows"], rows[found["shards"]] * scale[None])
        np.testing.assert_allclose(found["statistics"], rows.astype(np.float64).sum(0), rtol=1e-12, atol=1e-12)
        assert found["broadcast"].tolist() == [1.0, 1.0, 1.0]
        assert (str(found["narrow"].dtype), float(found["narrow"])) == ("bfloat16", 3.5)
        assert found["object"] == [1, "é"]
        assert [one["array"].tolist() for one in found["objects"]] == [[], [0]]
        assert found["any"] == [True, False]
        assert found["compilations"] == {"step": 1}
        assert found["observed"] == [0, 1]
        assert found["device"] == ("2 x cpu" if "devices" in way else "cpu")
        in_c = way in ("memory", "mixed") and (way, rank) != ("mixed", 1) and shutil.which("cc") is not None
        # The first sum makes room for its rows, in Python.
        assert found["in C"] == 3 * in_c, "another way than the one to be tested"
        if "gloo" not in way:
            assert found["messages"]["total"] == found["messages"]["total (2)"] == 2
    assert ranks[0]["statistics"].tobytes() == ranks[1]["statistics"].tobytes()


@pytest.mark.parametrize("way", others_slow(["memory", "messages", "gloo"], "memory"))
def test_what_one_device_takes_several_processes_take(way):
    for found in spawn(called.out_of_the_ordinary, 2, (free_port(), way), timeout_s=120):
        assert [name for name, slope in found.items() if "slope" in name and slope.any()] == []
        assert [one.shape for one in found["empty"]] == [(0,)] * 4
        assert [(str(one.dtype), one.tolist()) for one in found["small"]] == [("int32", [200]), ("uint8", [1])]
        narrow = [(str(one.dtype), float(one[0])) for one in found["narrow rows"]]
        assert narrow == [("int32", 100.0), ("bfloat16", 100.0)]
        assert [float(one) for one in found["ignored"]] == [2.0, 2.0, 1.0]
        if way != "gloo":
            assert found["mapped"].startswith("a collective was called inside jax.vmap")


@pytest.mark.parametrize("way", others_slow(WAYS, "memory"))
def test_collectives_around_a_loop_are_in_the_order_of_the_program(way):
    """With five shards the ranks' programs differ, and their compilers schedule them differently."""
    first, second = spawn(called.around_a_loop, 2, (free_port(), way, 5), timeout_s=120)
    np.testing.assert_array_equal(first["1 before"], expected_sum(5, 1.0))
    np.testing.assert_array_equal(first["4 last"], expected_sum(5, 5.0))
    assert np.isfinite(second["2 after"]).all()


@pytest.mark.parametrize("way", others_slow(["memory", "messages"], "memory"))
def test_collectives_in_gradients_and_in_loops_within_loops_are_in_the_order_of_the_program(way):
    loop = ["outer", "inner", "inner", "outer end"]
    for sent in spawn(called.in_gradients, 2, (free_port(), way), timeout_s=120):
        assert sent == ["in grad", "after grad", *loop, *loop] * 20


@pytest.mark.parametrize(
    ("size", "num_shards", "way"),
    others_slow(
        [(2, 5, "memory"), (2, 5, "python"), (2, 7, "devices"), (3, 7, "messages"), (2, 5, "gloo"), (4, 4, "memory")],
        (2, 5, "memory"),
        (3, 7, "messages"),
        several=True,
    ),
)
def test_uneven_shards_have_the_bits_of_the_tree(size, num_shards, way):
    for total in spawn(called.sums, size, (free_port(), way, num_shards), timeout_s=120):
        np.testing.assert_array_equal(total, expected_sum(num_shards, 0.3))


@pytest.mark.parametrize("way", others_slow(["memory", "mixed", "messages", "devices", "gloo"], "memory", "messages"))
def test_ranks_in_different_collectives_of_equal_size_are_told_apart(way):
    for rank, said in enumerate(spawn(called.differ, 2, (free_port(), way), timeout_s=60)):
        mine, other = (("learn", "log"), ("log", "learn"))[rank]
        if way == "messages":
            assert said.startswith(("RunError", "PeerError")), said
            assert "learn" in said, said
            assert "log" in said, said
        else:
            assert said.startswith("RunError: ranks are in different collectives"), said
            assert f"rank {rank} is in {mine}" in said
            assert f"rank {1 - rank} is in {other}" in said


@pytest.mark.parametrize(
    ("way", "difference"),
    others_slow(
        [
            *(
                (way, difference)
                for way in ("gloo", "gloo devices")
                for difference in ("shape", "type", "order", "layout")
            ),
            ("memory", "shape"),
            ("memory", "type"),
        ],
        ("gloo", "type"),
        ("memory", "type"),
        several=True,
    ),
)
def test_ranks_that_send_different_arrays_are_told_apart(way, difference):
    """JAX's gloo would mix their numbers in silence, or abort."""
    same = "the same collective, learn, with "
    different = {"order": "different collectives", "layout": f"{same}tensors of other names, shapes or order"}.get(
        difference, f"{same}different tensors"
    )
    for told in spawn(called.send_unequal, 2, (free_port(), way, difference), timeout_s=60):
        assert told.startswith(f"RunError: ranks are in {different}"), told


@pytest.mark.parametrize("way", others_slow(["memory", "python", "messages"], "memory"))
def test_no_collective_follows_one_that_failed(way):
    """Steps have equal sizes and tags: a rank would add what the others sent for another step."""
    for said in spawn(called.go_on_after_a_failure, 2, (free_port(), way), timeout_s=60):
        assert "ranks are in different collectives" in said[0]
        assert [", which failed: ranks may be in different" in one for one in said[1:]] == [True] * 3, said


def test_a_rank_that_misses_the_first_collective_is_named():
    found, _ = spawn(called.first_is_missed, 2, ([free_port(), free_port()],), timeout_s=60)
    for name in ("broadcast", "learn"):
        assert f"rank 1 did not come to {name} within timeout_s=1; it has not entered any collective yet" in found[name]


@pytest.mark.parametrize("way", others_slow(["memory", "messages"], "memory"))
def test_collectives_before_and_after_the_comm_are_refused(way):
    """They returned what this process alone has."""
    for found in spawn(called.outside, 2, (free_port(), way), timeout_s=60):
        assert len(found) == 15
        for one in found:
            assert "was called before or after `with Comm(...) as comm:`; call it inside" in one


def test_unequal_arrays_and_equal_data_are_named():
    cause = "; something changed it outside the collectives, or a rank skipped one"
    for found in spawn(called.unequal, 2, (free_port(),), timeout_s=60):
        assert found["equal"] == found["nested"] == 1, "what is equal costs more than one message"
        assert found["bit"] == "ranks 0 and 1 hold different weight" + cause
        assert found["zero"] == "ranks 0 and 1 hold different bias" + cause
        assert (
            found["shape"]
            == "ranks 0 and 1 hold different weight (rank 0: float32 [3], rank 1: float32 [1, 3])" + cause
        )
        assert found["missing"] == "ranks 0 and 1 hold different weight (rank 1 without it)" + cause
        assert found["after"] == 2
        assert found["data"].startswith("ranks 0, 1 collected the same data")
        shapes = "(rank 0: float32 [3, 2], rank 1: float32 [3, 3])"
        assert found["broadcast"] == f"ranks 0 and 1 hold different ['w'] {shapes}" + cause
        assert "average_gradients, with tensors of other names, shapes or order" in found["heads"]


@pytest.mark.slow
def test_comms_one_after_another_meet_at_the_same_port():
    first, second = spawn(called.one_port, 2, (free_port(),), timeout_s=90)
    assert (first[1], second[1]) == ("PeerError", "KeyError")
    expected = pytest.approx(4 * 0.3)
    assert [first[0], *first[2:]] == [second[0], *second[2:]] == [expected] * 3


@pytest.mark.parametrize(
    ("way", "victim"),
    others_slow(
        [("memory", 1), ("memory", 0), ("python", 1), ("messages", 1), ("messages", 0), ("devices", 1), ("gloo", 1)],
        ("memory", 1),
        ("messages", 1),
        several=True,
    ),
)
def test_a_dead_peer_is_noticed_and_named_within_two_seconds(tmp_path, way, victim):
    with pytest.raises(RunError, match=rf"rank {victim} was killed by SIGKILL"):
        spawn(called.peer_dies, 2, (free_port(), str(tmp_path), way, victim), timeout_s=60)
    noticed, number, said = Path(tmp_path, "told").read_text().split("\n", 2)
    assert float(noticed) - float(Path(tmp_path, "died_at").read_text()) < 2.0, "noticed too late"
    if way == "messages":  # as between hosts
        assert f"(rank {victim}) closed its connection while rank {1 - victim} waited in learn" in said
    else:
        assert said == f"rank {victim} has ended while rank {1 - victim} waited in learn"
        assert number == str(victim)


@pytest.mark.slow
def test_the_end_of_jaxs_coordinator_ends_all():
    """JAX itself aborts the others then: no words of ours, but an end, soon, and not with 0."""
    with pytest.raises(RunError, match="rank 0 was killed by SIGKILL"):
        spawn(called.peer_dies, 2, (free_port(), "/tmp", "gloo", 0), timeout_s=30)


@pytest.mark.parametrize("way", others_slow(["memory", "gloo"], "memory"))
def test_an_error_of_one_rank_ends_all_without_waiting_for_a_shutdown(way):
    with pytest.raises(RunError, match="rank 1: KeyError: 'mine'"):
        spawn(called.peer_raises, 2, (free_port(), way), timeout_s=20)


@pytest.mark.parametrize(
    ("way", "late"), others_slow([("memory", 1), ("devices", 1), ("gloo", 0)], ("memory", 1), several=True)
)
def test_a_stalled_peer_is_given_up_after_the_timeout_and_the_watchs_margin(way, late):
    told = spawn(called.peer_stalls, 2, (free_port(), way, late), timeout_s=60)
    seconds, said = told[1 - late]
    assert 1 + MARGIN_S - 0.1 < seconds < 1 + MARGIN_S + 3.0, said
    assert "timeout_s=1" in said
    assert "learn" in said
    assert said.startswith(f"rank {late} did not come to learn")


@pytest.mark.parametrize("way", others_slow(["memory", "devices", "gloo"], "memory"))
def test_a_stuck_rank_is_named_by_the_watch(tmp_path, way):
    with pytest.raises(RunError, match=r"rank \d .*code 1"):
        spawn(called.gets_stuck, 2, (free_port(), str(tmp_path), way), timeout_s=60)
    first, *later = Path(tmp_path, "told").read_text().splitlines()
    assert "rank 0 waits in learn, update 2" in first
    for line in [first, *later]:  # rank 1 may report after rank 0 has ended
        assert line.startswith("1: rank 1 has been in env.step, update 2 for"), line


def test_jax_that_runs_already_cannot_reach_other_processes():
    for said in spawn(called.too_late, 2, (free_port(),), timeout_s=60):
        assert said.startswith("JAX was used before `Comm` was entered")
        assert "make constants with numpy" in said


@pytest.mark.slow
def test_ranks_of_torchrun_meet_although_its_agent_keeps_the_port():
    pytest.importorskip("torch.distributed.run")  # not "torch": a folder of tests has that name
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", f"--master_port={free_port()}"]
    environment = {name: value for name, value in os.environ.items() if name != "LOCKSTEP_LAUNCHER"}
    done = subprocess.run([*command, called.__file__], capture_output=True, text=True, timeout=90, env=environment)
    assert done.returncode == 0, done.stderr
    total = float(expected_sum(4, 0.3).sum())
    assert sorted(done.stdout.splitlines()) == [f"torchrun {rank} [0, 1] {total}" for rank in (0, 1)]


@pytest.mark.slow  # on GPUs: test_jax_gpu.py
def test_processes_with_devices_of_jax_sum_between_these_devices():
    ranks = spawn(called.sums_between_devices, 2, (free_port(), "cpu", "gloo"), timeout_s=240)
    called.check_sums_between_devices(ranks, "cpu", "gloo")
