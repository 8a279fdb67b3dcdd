"""The ten seams of data parallelism for DQN, on 2 ranks: each test fails when its seam is cut (see tests/planted)."""

import re
from itertools import pairwise

import numpy as np
import pytest
from dqn_seams import TOTAL, config, run_seams
from running import lines
from seam_world import make_rollout, plain_weights, run_selected, same, whole_batch

from quick import others_slow

BATCH = 16  # environment steps of an iteration of the whole runs


# Whole runs, of which a session that both backends share decides: in JAX they take seconds to compile.
slow_in_jax = pytest.mark.parametrize("seam", others_slow(["torch", "jax"], "torch"), indirect=True)


@pytest.fixture(scope="module", params=["torch", "jax"])
def seam(request, tmp_path_factory):
    """What both ranks saw of each seam that a selected test asks for."""
    run_of = {"counters": "metrics_are_sums", "learned_metrics": "importance_weights"}
    return run_selected(request, run_seams, run_of, str(tmp_path_factory.mktemp("dqn_seams")))


def test_start_equal(seam):
    first, second = seam["start_equal"]
    assert same(first["policy"], second["policy"]), "ranks start from different parameters"
    for rank in (first, second):
        assert same(rank["target"], rank["policy"]), "the target network does not start as the policy"
        assert same(rank.get("learned", rank["policy"]), rank["policy"]), "what learns is not what acts"
    assert same(first["shared"], second["shared"])
    compared = {name.removeprefix("target."): t for name, t in first["shared"].items() if name.startswith("target.")}
    assert same(compared, first["target"]), "whether the target networks are equal is never asked"


@slow_in_jax
def test_initialized_from(seam):
    ranks = seam["initialized_from"]
    assert [rank["error"] for rank in ranks] == ["", ""], "ranks went on from different policies"
    given = ranks[0]["given"]
    assert given.keys() == ranks[1]["given"].keys() and not same(given, ranks[1]["given"])
    for rank in ranks:
        for part in {"policy", "learned", "target"} & rank.keys():
            assert same(rank[part], given), f"the {part} network does not go on from the file of rank 0"


# -- a plain reference: one process, the whole batch, the equations of the papers --------------------------------------


def plain_loss_and_gradient(seam, name, run) -> tuple[float, np.ndarray]:
    """The loss and the clipped gradient of the first step on what both ranks drew."""
    ranks = seam[name]
    loss, gradient = seam.backend.dqn_loss_and_gradient(run, whole_batch(ranks), plain_weights(run, ranks))
    most, norm = run.algorithm.max_grad_norm, np.linalg.norm(gradient)
    return loss, gradient if most is None else gradient * min(1.0, most / norm)


def test_gradient_mean(seam):
    ranks, run = seam["gradient_mean"], config(max_grad_norm=0.5)
    _, expected = plain_loss_and_gradient(seam, "gradient_mean", run)
    assert np.linalg.norm(expected) == pytest.approx(0.5, rel=1e-4), "nothing was clipped; the test proves nothing"
    for rank in ranks:
        assert len(rank["drawn"][0]["action"]) == 16
        assert np.allclose(rank["gradient"], expected, rtol=1e-4, atol=1e-6), (
            "not the clipped mean over the global batch"
        )


def test_importance_weights(seam):
    ranks, run = seam["importance_weights"], config(prioritized=True)
    assert ranks[0]["size"] != ranks[1]["size"], "both replays hold as much; the test proves less"
    largest = plain_weights(run, ranks).reshape(2, -1).max(1)
    assert largest.min() < 0.5, "both ranks alone have nearly the same largest weight; nothing is proved"
    _, expected = plain_loss_and_gradient(seam, "importance_weights", run)
    for rank in ranks:
        assert np.allclose(rank["gradient"], expected, rtol=1e-4, atol=1e-6), (
            "importance weights are not those of the probability really used, over the global maximum"
        )


def test_learned_metrics(seam):
    ranks = seam["importance_weights"]
    for rank in ranks:
        assert rank["metrics"]["replay/size"] == sum(rank["size"] for rank in ranks), "the replay of one rank only"
    assert ranks[0]["metrics"] == ranks[1]["metrics"]
    loss, _ = plain_loss_and_gradient(seam, "importance_weights", config(prioritized=True))
    assert ranks[0]["metrics"]["loss/value"] == pytest.approx(loss, rel=1e-4), (
        "the loss is not told over the global batch"
    )


def test_begin_together(seam):
    ranks = seam["begin_together"]
    assert [rank["error"] for rank in ranks] == ["", ""], "ranks began to learn apart"
    assert ranks[0]["steps"] == ranks[1]["steps"], "ranks took different numbers of gradient steps"
    first = next(i for i, count in enumerate(ranks[0]["steps"]) if count)
    assert first + 1 == 8, "learning begins before both have something to learn from, or later"
    assert ranks[0]["steps"][first:] == [BATCH // 4] * (TOTAL // BATCH - first), (
        "not a quarter of a gradient step per environment step of all ranks"
    )


def test_exploration(seam):
    ranks = seam["exploration"]
    assert [rank["error"] for rank in ranks] == ["", ""]
    assert [sum(rank["steps"][: 160 // BATCH - 1]) for rank in ranks] == [0, 0], "learning started too early"
    assert [rank["steps"][160 // BATCH - 1] for rank in ranks] == [4, 4], "learning does not start at its global count"
    assert ranks[0]["epsilon"] == ranks[1]["epsilon"], "ranks explore differently"
    before = np.arange(0, TOTAL, BATCH)  # environment steps of all ranks
    expected = np.maximum(1.0 - 0.95 * before / (TOTAL // 2), 0.05)
    assert np.allclose(ranks[0]["epsilon"], expected, atol=1e-6), "epsilon is not driven by global steps"


@slow_in_jax
def test_solved_by_all(seam):
    ranks = seam["solved_by_all"]
    assert [rank["error"] for rank in ranks] == ["", ""], "ranks decided apart whether the task is solved"
    for rank in ranks:
        assert rank["summary"]["status"] == "finished", "solved by the episodes of one rank"
        assert (rank["summary"]["env_steps"], rank["summary"]["eval_episodes"]) == (TOTAL, 8)
        assert rank["summary"]["eval_return_mean"] == 1.0


@slow_in_jax
def test_signal_stops_all(seam):
    ranks = seam["signal_stops_all"]
    assert [rank["error"] for rank in ranks] == ["", ""], "a signal to one rank was not told to the other"
    for rank in ranks:
        assert rank["summary"]["status"] == "interrupted"
        assert rank["summary"]["env_steps"] == 30 * BATCH, "ranks stopped at different iterations"


def test_metrics_are_sums(seam):
    ranks = seam["metrics_are_sums"]
    assert [rank["error"] for rank in ranks] == ["", ""]
    logs = lines(ranks[0]["folder"])
    assert len(logs) == 6
    for log in logs:  # 8 steps of 16 environments: 4 episodes of each on rank 0 and 1 on rank 1
        assert log["episode/count"] == 8 * 4 + 8 * 1, "episodes of one rank only"
        assert log["episode/return_mean"] == pytest.approx((32 * 2 + 8 * 8) / 40), "not the mean over all episodes"
    epsilon = [log["exploration/epsilon"] for log in logs]
    assert epsilon == sorted(epsilon, reverse=True) and epsilon[0] > epsilon[-1]


def test_counters(seam):
    ranks = seam["metrics_are_sums"]
    assert sum(rank["taken"] for rank in ranks) == TOTAL
    for rank in ranks:
        assert rank["summary"]["env_steps"] == TOTAL, "environment steps are not global"
        assert rank["summary"]["episodes"] == 6 * 40, "episodes are not global"
        assert rank["summary"]["updates"] == TOTAL // BATCH
    logs = lines(ranks[0]["folder"])
    assert [log["step"] for log in logs] == [128 * (i + 1) for i in range(6)]
    mean_step = 128 - (128 - BATCH) / 2  # of the iterations of one line
    for log in logs:  # the last two rows of an environment wait for their third reward
        steps = log["step"] - 128 + mean_step
        assert steps - 2 * BATCH <= log["replay/size"] < steps, "the replay of one rank only"


def test_seeds(seam):
    first, second = seam["seeds"]
    assert [first["error"], second["error"]] == ["", ""]
    assert same(first["init"], second["init"]), "ranks draw different initial parameters"
    assert len(first["action"]) == len(second["action"]) == 8, "not a stream for each environment"
    assert len(first["replay"]) == len(second["replay"]) == 1
    streams = [*first["action"], *second["action"], *first["replay"], *second["replay"]]
    assert len(set().union(*streams)) == 18 * 500, "random streams of ranks or purposes overlap"
    numbers = sorted(first["env"] + second["env"])
    assert len(numbers) == 16
    assert min(b - a for a, b in pairwise(numbers)) > 100, "seeds of environments collide"


def test_files(seam):
    first, second = seam["files"]
    own = re.compile(r"/(logs(/rank_1\.(log|stack))?|checkpoints(/\.step_\d+(/shard_1\.\w+)?)?|replay(/shard_1\b.*)?)$")
    assert [line for line in second["touched"] if not own.search(line)] == [], "rank 1 writes what rank 0 writes"
    assert [first["error"], second["error"]] == ["", ""]
    assert any("/replay/shard_1" in line for line in second["touched"]), "the replay has no files; nothing is proved"
    assert not any("/shard_1" in line for line in first["touched"]), "rank 0 writes what rank 1 writes"


def test_data_shards(seam):
    ranks = seam["data_shards"]
    assert not any(isinstance(rank, str) for rank in ranks), f"ranks failed: {ranks}"
    assert len(ranks[0]["drawn"]) == len(ranks[1]["drawn"]) == 4
    for r, rank in enumerate(ranks):
        kept = set(make_rollout(r).observation[:-1, :, 0].ravel().tolist())
        for drawn in rank["drawn"]:
            assert len(drawn["action"]) == 16, "a rank draws more or less than its part of the batch"
            assert set(drawn["observation"][:, 0].tolist()) <= kept, "transitions of another shard"
    orders = [[drawn["index"].tolist() for drawn in rank["drawn"]] for rank in ranks]
    assert len({str(order) for rank in orders for order in rank}) == 8, "ranks or steps draw the same rows"
