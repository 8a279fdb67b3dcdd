"""The seams of data parallelism for SAC and TD3, on 2 ranks: each test fails when its seam is cut (tests/planted).

What the session, the replays and their streams do for every algorithm with a replay is tested for DQN.
"""

import numpy as np
import pytest
from actor_critic_seams import config, continuous_rollout, run_seams
from running import lines
from seam_world import plain_weights, run_selected, same, whole_batch

from quick import others_slow

# In JAX each learner takes seconds to compile.
slow_in_jax = pytest.mark.parametrize("seam", others_slow(["torch", "jax"], "torch"), indirect=True)


@pytest.fixture(scope="module", params=["torch", "jax"])
def seam(request, tmp_path_factory):
    """What both ranks saw of each seam that a selected test needs."""
    run_of = {"learned_metrics": "importance_weights"}
    return run_selected(request, run_seams, run_of, str(tmp_path_factory.mktemp("actor_critic_seams")))


def test_start_equal(seam):
    first, second = seam["start_equal"]
    assert same(first["policy"], second["policy"]), "ranks start from different parameters"
    for rank in (first, second):
        critics = {name: p for name, p in rank["policy"].items() if name.startswith("critics.")}
        assert same(rank["target"], critics), "the target critics do not start as the critics"
    assert same(first["shared"], second["shared"])
    compared = {name.removeprefix("target."): t for name, t in first["shared"].items() if name.startswith("target.")}
    assert same(compared, {name.removeprefix("critics."): t for name, t in first["target"].items()}), (
        "the target critics are not compared between ranks"
    )


@slow_in_jax
def test_initialized_from(seam):
    ranks = seam["initialized_from"]
    assert [rank["error"] for rank in ranks] == ["", ""], "ranks continued from different policies"
    given = ranks[0]["given"]
    assert given.keys() == ranks[1]["given"].keys() and not same(given, ranks[1]["given"])
    critics = {name: p for name, p in given.items() if name.startswith("critics.")}
    for rank in ranks:
        assert same(rank["policy"], given), "the policy is not that of the file of rank 0"
        assert same(rank["target"], critics), "the target critics are not those of the file of rank 0"


@slow_in_jax
def test_td3_initialized_from(seam):
    ranks = seam["td3_initialized_from"]
    assert [rank["error"] for rank in ranks] == ["", ""], "ranks continued from different policies"
    for rank in ranks:
        assert same(rank["policy"], ranks[0]["given"]), "the policy is not that of the file of rank 0"
        assert same(rank["target"], ranks[0]["given"]), "the target networks are not those of the file of rank 0"


# -- a plain reference: one process, the whole batch, the equations of the papers --------------------------------------


def plain_losses_and_gradients(seam, name, run) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """The losses and the gradients of the first step, by part, on what both ranks drew; the latter clipped."""
    ranks = seam[name]
    losses, gradients = seam.backend.actor_critic_reference(run, whole_batch(ranks), plain_weights(run, ranks))
    most = run.algorithm.max_grad_norm
    for part, gradient in gradients.items():
        if most is not None and part != "temperature":
            assert np.linalg.norm(gradient) > most, "nothing is clipped; the test proves nothing"
            gradients[part] = gradient * most / np.linalg.norm(gradient)
    return losses, gradients


def assert_gradients_equal(rank, expected, message):
    assert rank["gradient"].keys() == expected.keys()
    for part, gradient in expected.items():
        assert np.allclose(rank["gradient"][part], gradient, rtol=1e-4, atol=1e-6), f"{part}: {message}"


def test_gradient_mean(seam):
    assert_mean_gradient(seam, "gradient_mean", "sac")


@slow_in_jax
def test_td3_gradient_mean(seam):
    assert_mean_gradient(seam, "td3_gradient_mean", "td3")


def assert_mean_gradient(seam, name, algo):
    _, expected = plain_losses_and_gradients(seam, name, config(algo, max_grad_norm=0.01))
    for rank in seam[name]:
        assert len(rank["drawn"][0]["action"]) == 16
        assert_gradients_equal(rank, expected, "not the clipped mean over the global batch")


@slow_in_jax
def test_importance_weights(seam):
    ranks, run = seam["importance_weights"], config(prioritized=True)
    largest = plain_weights(run, ranks).reshape(2, -1).max(1)
    assert largest.min() < 0.5, "both ranks alone have nearly the same largest weight; nothing is proved"
    _, expected = plain_losses_and_gradients(seam, "importance_weights", run)
    for rank in ranks:
        assert_gradients_equal(
            rank, expected, "importance weights are not over the global maximum, or not the critics'"
        )


@slow_in_jax
def test_learned_metrics(seam):
    ranks = seam["importance_weights"]
    assert ranks[0]["metrics"] == ranks[1]["metrics"]
    losses, _ = plain_losses_and_gradients(seam, "importance_weights", config(prioritized=True))
    metrics = ranks[0]["metrics"]
    assert metrics["replay/size"] == sum(rank["size"] for rank in ranks), "the replay of one rank only"
    for name, value in losses.items():
        assert metrics[name] == pytest.approx(value, rel=1e-4), f"{name} is not over the global batch"


@slow_in_jax
def test_data_shards(seam):
    ranks = seam["data_shards"]
    assert not any(isinstance(rank, str) for rank in ranks), f"ranks failed: {ranks}"
    assert len(ranks[0]["drawn"]) == len(ranks[1]["drawn"]) == 4
    for r, rank in enumerate(ranks):
        kept = set(continuous_rollout(r).observation[:-1, :, 0].ravel().tolist())
        for drawn in rank["drawn"]:
            assert len(drawn["action"]) == 16, "a rank draws more or less than its part of the batch"
            assert set(drawn["observation"][:, 0].tolist()) <= kept, "transitions of another shard"
    draws = [(drawn["index"].tolist(), drawn["noise"].ravel().tolist()) for rank in ranks for drawn in rank["drawn"]]
    assert len({str(index) for index, _ in draws}) == 8, "ranks or steps draw the same rows"
    numbers = [number for _, noise in draws for number in noise]
    assert len(set(numbers)) == len(numbers), "ranks or steps draw the same noise of actions"


@slow_in_jax
def test_begin_together(seam):
    ranks = seam["begin_together"]
    assert [rank["error"] for rank in ranks] == ["", ""], "ranks began to learn at different times"
    assert ranks[0]["steps"] == ranks[1]["steps"], "ranks took different numbers of gradient steps"
    first = next(i for i, count in enumerate(ranks[0]["steps"]) if count)
    assert first + 1 == 8, "learning begins before both have something to learn from, or later"
    assert ranks[0]["steps"][first:] == [4] * (40 - first), "not a quarter of a gradient step per environment step"
    for rank in ranks:
        assert rank["random"] == [True] * 2 + [False] * 38, "random actions do not end at a global count of steps"
        assert rank["summary"]["env_steps"] == 640, "environment steps are not global"
    logs = lines(ranks[0]["folder"])
    for log in logs[:-1]:  # 10 steps: each of the 8 environments of rank 1 ends 5 episodes, and resets in between
        assert log["episode/count"] == 5 * 8, "episodes of one rank only"
    assert logs[-1]["episode/count"] == 5 * 8 + 8, "episodes of one rank only"
