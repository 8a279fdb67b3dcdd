"""The ten seams of data parallelism for PPO, on 2 ranks: each test fails when its seam is cut (see tests/planted)."""

import re
from itertools import pairwise

import numpy as np
import pytest
from ppo_seams import config, run_seams
from running import lines
from seam_world import ENVS, FAR, SIZE, SPEC, STEPS, make_rollout, run_selected, same

from quick import others_slow

TOTAL = 6 * 128


# Whole runs, of which a session that both backends share decides: in JAX they take seconds to compile.
slow_in_jax = pytest.mark.parametrize("seam", others_slow(["torch", "jax"], "torch"), indirect=True)


@pytest.fixture(scope="module", params=["torch", "jax"])
def seam(request, tmp_path_factory):
    """What both ranks saw of each seam that a selected test asks for."""
    run_of = {"counters": "files", "metrics_are_sums": "files"}
    return run_selected(request, run_seams, run_of, str(tmp_path_factory.mktemp("seams")))


# -- a plain reference: one process, the whole batch, the equations of the papers --------------------------------------


def plain_gae(reward, value, terminated, ended, gamma, gae_lambda):
    advantage, following = np.zeros_like(reward), np.zeros(reward.shape[1])
    for t in reversed(range(len(reward))):
        delta = reward[t] + gamma * value[t + 1] * (1 - terminated[t]) - value[t]
        following = advantage[t] = delta + gamma * gae_lambda * (1 - ended[t]) * following
    return advantage


def plain_columns(backend, run) -> list[np.ndarray]:
    """Observations, actions, advantages and targets of the rollouts of both shards together."""
    c, columns = run.algorithm, ([], [], [], [])
    for r in (make_rollout(shard) for shard in range(2)):
        value = backend.ppo_values(run, r.observation.reshape(-1, SIZE)).reshape(STEPS + 1, ENVS)
        advantage = plain_gae(r.reward.astype(float), value, r.terminated, r.ended, c.gamma, c.gae_lambda)
        parts = (
            r.observation[:-1].reshape(-1, SIZE),
            r.action.ravel(),
            advantage.ravel(),
            (advantage + value[:-1]).ravel(),
        )
        for column, part in zip(columns, parts, strict=True):
            column.append(part[r.weight.ravel() > 0])  # rows of weight 0 are no data
    return [np.concatenate(column) for column in columns]


def plain_gradient(backend, run) -> np.ndarray:
    """The clipped gradient of the first step on the rollouts of both shards together."""
    c = run.algorithm
    observation, action, advantage, target = plain_columns(backend, run)
    if c.normalize_value:
        target = (target - target.mean()) / target.std()
    if c.normalize_advantage:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    gradient = backend.ppo_gradient(run, observation, action, advantage, target)
    if c.max_grad_norm is not None:
        norm = np.linalg.norm(gradient)
        assert norm > 2 * c.max_grad_norm, "the gradient is not clipped; the test proves nothing"
        gradient = gradient * c.max_grad_norm / norm
    return gradient


# -- the seams ---------------------------------------------------------------------------------------------------------


def test_start_equal(seam):
    first, second = seam["start_equal"]
    mine = seam.backend.parameters(seam.backend.ppo.Policy(SPEC, config().network, seed=0))
    for name in first:
        assert same(first[name], second[name]), f"ranks start from different parameters ({name})"
        assert same(first[name], mine), f"rank 0's values are the ones that all get ({name})"


@pytest.mark.parametrize("seam", ["torch"], indirect=True)
def test_broadcast(seam):
    first, second = seam["broadcast"]
    assert same(first, second), "parameters or buffers were not broadcast"
    assert not first["mean"].any(), "rank 0's values are the ones that all get"


@slow_in_jax
def test_initialized_from(seam):
    first, second = seam["initialized_from"]
    assert first["error"] == second["error"] == "", "a re-initialised policy was not broadcast"
    assert first["fingerprint"] == second["fingerprint"] is not None


def test_gradient_mean(seam):
    expected = plain_gradient(seam.backend, config(max_grad_norm=0.5))
    for rank in seam["gradient_mean"]:
        assert np.allclose(rank["gradient"], expected, rtol=1e-4, atol=1e-6), (
            "not the clipped mean over the global batch"
        )


def test_symmetry_weights(seam):
    expected = plain_gradient(seam.backend, config())
    rows = sum(int((make_rollout(shard).weight > 0).sum()) for shard in range(2))
    for rank in seam["symmetry_weights"]:
        assert np.allclose(rank["gradient"], expected, rtol=1e-4, atol=1e-5), "copies of rows change the total weight"
    assert sum(rank["seen"][0]["sums"][0] for rank in seam["symmetry_weights"]) == rows, "copies count in the metrics"


def test_statistics_in_the_loss(seam):
    expected = plain_gradient(seam.backend, config(normalize_advantage=True))
    for rank in seam["statistics_in_the_loss"]:
        assert np.allclose(rank["gradient"], expected, rtol=1e-4, atol=1e-5), "advantages are not normalised globally"


def test_running_statistics(seam):
    rollouts = [make_rollout(shard) for shard in range(2)]
    kept = [r.weight.ravel() > 0 for r in rollouts]
    seen = np.concatenate([r.observation[:-1].reshape(-1, SIZE)[k] for r, k in zip(rollouts, kept, strict=True)])
    discounted = []
    for r, k in zip(rollouts, kept, strict=True):
        value, found = np.zeros(ENVS), []
        for t in range(STEPS):
            value = 0.99 * value + r.reward[t]
            found.append(value)
            value = np.where(r.ended[t], 0.0, value)
        discounted.append(np.ravel(found)[k])
    for rank in seam["running_statistics"]:
        for name, rows in (("observations", seen), ("returns", np.concatenate(discounted)[:, None])):
            state = rank[name]
            assert state["count"] == len(rows), f"{name} are not counted over all ranks"
            assert np.allclose(state["mean"], rows.mean(0)), f"the mean of {name} is not pooled"
            assert np.allclose(state["variance"], rows.var(0)), f"the variance of {name} is not pooled"


def test_critic_statistics(seam):
    rollouts = [make_rollout(shard) for shard in range(2)]
    seen = np.concatenate([r.observation[:-1].reshape(-1, SIZE)[r.weight.ravel() > 0] for r in rollouts])
    first, second = seam["critic_statistics"]
    assert (first["values"] == second["values"]).all()
    for rank in (first, second):
        for name, rows in (("observations", seen[:, :-1]), ("critic_observations", seen[:, -1:])):
            state = rank["named"][name]
            assert state["count"] == len(rows), f"{name} are not counted over all ranks"
            assert np.allclose(state["mean"], rows.mean(0)), f"the mean of {name} is not pooled"
            assert np.allclose(state["variance"], rows.var(0)), f"the variance of {name} is not pooled"


def test_value_statistics(seam):
    run = config(normalize_value=True)
    target = plain_columns(seam.backend, run)[-1]
    expected = plain_gradient(seam.backend, run)
    for rank in seam["value_statistics"]:
        state = rank["targets"]
        assert state["count"] == len(target), "targets are not counted over all ranks"
        assert np.allclose(state["mean"], target.mean(), rtol=1e-5), "the mean of targets is not pooled"
        assert np.allclose(state["variance"], target.var(), rtol=1e-5), "the variance of targets is not pooled"
        assert np.allclose(rank["gradient"], expected, rtol=1e-4, atol=1e-5), "targets are not normalized by the pool"
        assert rank["messages"]["moments"] == 1


@slow_in_jax
def test_far_statistics(seam):
    rollouts = [make_rollout(shard, far=FAR) for shard in range(2)]
    seen = [r.observation[:-1].reshape(-1, SIZE)[r.weight.ravel() > 0] for r in rollouts]
    rows = np.concatenate(seen).astype(np.float64)
    for rank in seam["far_statistics"]:
        state = rank["observations"]
        assert np.allclose(state["mean"], rows.mean(0), rtol=1e-12), "the first update is not relative to a common mean"
        assert np.allclose(state["variance"], rows.var(0), rtol=1e-9, atol=1e-20), "a variance lost its digits"
        assert rank["messages"]["first_moments"] == 1


@pytest.mark.parametrize("seam", others_slow(["torch", "jax"], "torch"), indirect=True)
def test_reset_rows(seam):
    ranks = [rank["stages"] if isinstance(rank, dict) else rank for rank in seam["reset_rows"]]
    assert not any(isinstance(rank, str) for rank in ranks), f"rows that weigh nothing end the update: {ranks}"
    for one, other in zip(*ranks, strict=True):
        assert np.array_equal(one["values"], other["values"]), "ranks left out different steps"
        assert one["messages"] == {"moments": 1, "average_gradients": 8}
    for half, nothing, whole in ranks:
        assert [stage["steps"] for stage in (half, nothing, whole)] == [8, 8, 16], "a step of weight 0 was taken"
        assert np.array_equal(half["values"], nothing["values"])
        assert same(half["observations"], nothing["observations"]), "a normalizer took in rows of weight 0"
        assert np.isfinite(whole["values"]).all()
        assert set(nothing["metrics"]) == {"optim/learning_rate"}, "something is told of what was left out"
        assert half["metrics"]["optim/skipped"] == whole["metrics"]["optim/skipped"] == 0.0


def kl_of_epochs(ranks, minibatches: int) -> tuple[list[float], list[list[float]]]:
    """KL of each epoch over both ranks, and over each alone, from the local sums of every step."""
    sums = np.array([[step["sums"] for step in rank["seen"]] for rank in ranks])
    epochs = sums.reshape(2, -1, minibatches, sums.shape[-1]).sum(2)
    together = epochs.sum(0)
    return list(together[:, 4] / together[:, 0]), (epochs[:, :, 4] / epochs[:, :, 0]).tolist()


def test_stop_on_kl(seam):
    ranks = seam["stop_on_kl"]
    assert not any(isinstance(rank, str) for rank in ranks), f"ranks left the update apart: {ranks}"
    assert len(ranks[0]["seen"]) == len(ranks[1]["seen"])
    assert np.array_equal(ranks[0]["values"], ranks[1]["values"]), "ranks left the update apart"
    assert ranks[0]["steps"] == ranks[1]["steps"]
    together, alone = kl_of_epochs(ranks, 2)
    taken = ranks[0]["steps"] // 2
    assert 1 < taken < 12, "target_kl stopped nothing; the test proves nothing"
    assert len(together) == taken, "steps after the stop were computed"
    assert together[taken - 1] > 0.01 and max(together[: taken - 1]) <= 0.01, "the stop is not decided by the global KL"
    first = [next((i for i, kl in enumerate(rank) if kl > 0.01), None) for rank in alone]
    assert first[0] != first[1], "both ranks alone would have decided alike; the test proves nothing"
    assert ranks[0]["metrics"]["policy/kl"] == pytest.approx(np.mean(together[:taken]), rel=1e-4), (
        "the metrics count steps after the stop"
    )


def test_adaptive_rate(seam):
    ranks = seam["adaptive_rate"]
    together, alone = kl_of_epochs(ranks, 2)

    def rate(kls):
        value = 3e-3
        for kl in kls:
            value = min(value * (1 / 1.5 if kl > 0.02 else 1.5 if kl < 0.005 else 1.0), 1e-2)
        return value

    assert not np.isclose(rate(alone[0]), rate(alone[1])), (
        "both ranks alone would have decided alike; nothing is proved"
    )
    for rank in ranks:
        assert rank["learning_rate"] == pytest.approx(rate(together)), "the rate does not follow the global KL"


@slow_in_jax
def test_adaptive_rate_of_minibatches(seam):
    ranks = seam["adaptive_rate_of_minibatches"]
    together, alone = kl_of_epochs(ranks, 1)

    def rate(kls):
        value = 3e-3
        for kl in kls:
            value = min(value * (1 / 1.5 if kl > 0.02 else 1.5 if kl < 0.005 else 1.0), 1e-2)
        return value

    assert len(together) == 12
    assert not np.isclose(rate(alone[0]), rate(together)), "rank 0 alone would have decided alike; nothing is proved"
    for rank in ranks:
        assert rank["learning_rate"] == pytest.approx(rate(together)), (
            "the rate does not follow the global KL of each minibatch"
        )


@slow_in_jax
def test_solved_by_all(seam):
    ranks = seam["solved_by_all"]
    assert [rank["error"] for rank in ranks] == ["", ""], "ranks decided apart whether the task is solved"
    for rank in ranks:
        assert rank["summary"]["status"] == "finished", "solved by the episodes of one rank"
        assert (rank["summary"]["env_steps"], rank["summary"]["eval_episodes"]) == (TOTAL, 8)
        assert rank["summary"]["eval_return_mean"] == 1.0


def test_signal_stops_all(seam):
    ranks = seam["signal_stops_all"]
    assert [rank["error"] for rank in ranks] == ["", ""], "a signal to one rank was not told to the other"
    for rank in ranks:
        assert rank["summary"]["status"] == "interrupted"
        assert rank["summary"]["env_steps"] == 4 * 128, "ranks stopped at different updates"


def test_metrics_are_sums(seam):
    logs = lines(seam["files"][0]["folder"])
    assert len(logs) == 6
    # 8 environments each: 4 episodes of return 2 on rank 0 for each one of return 8 on rank 1.
    for log in logs:
        assert log["episode/count"] == 8 * 4 + 8 * 1, "episodes of one rank only"
        assert log["episode/return_mean"] == pytest.approx((32 * 2 + 8 * 8) / 40), "not the mean over all episodes"
        assert log["episode/length_mean"] == pytest.approx((32 * 2 + 8 * 8) / 40)
    assert logs[-1]["episode/return_mean_100"] == pytest.approx((32 * 2 + 8 * 8) / 40, rel=0.1)


@slow_in_jax
def test_no_episode_weighs_nothing(seam):
    logs = lines(seam["no_episode_weighs_nothing"][0]["folder"])[:6]
    assert len(logs) == 6
    for log in logs:
        assert log["episode/return_mean"] == 4.0, "a rank without episodes was counted as 0"
        assert log["episode/count"] == 8 * 2
        assert log["episode/return_mean_100"] == 4.0


def test_counters(seam):
    ranks = seam["files"]
    for rank in ranks:
        assert rank["steps"] >= TOTAL // 2
        assert rank["summary"]["env_steps"] == TOTAL, "environment steps are not global"
        assert rank["summary"]["episodes"] == 6 * 40, "episodes are not global"
        assert rank["summary"]["updates"] == 6
    logs = lines(ranks[0]["folder"])
    assert [log["progress/episodes"] for log in logs] == [40 * (i + 1) for i in range(6)]
    assert [log["step"] for log in logs] == [128 * (i + 1) for i in range(6)]


def test_seeds(seam):
    first, second = seam["seeds"]
    assert same(first["init"], second["init"]), "ranks draw different initial parameters"
    streams = [*first["action"], *second["action"], *first["minibatch"], *second["minibatch"]]
    assert len(streams) == 4
    assert len(set().union(*streams)) == 4 * 2000, "random streams of ranks or purposes overlap"
    assert len(first["env"]) == len(second["env"]) == 8
    numbers = sorted(first["env"] + second["env"])
    assert min(b - a for a, b in pairwise(numbers)) > 100, "seeds of environments collide"


def test_files(seam):
    first, second = seam["files"]
    own = re.compile(r"/(logs(/rank_1\.(log|stack))?|checkpoints(/\.step_\d+(/shard_1\.safetensors)?)?)$")
    assert [line for line in second["touched"] if not own.search(line)] == [], "rank 1 writes what rank 0 writes"
    assert len(lines(first["folder"])) == 6
    assert [line["step"] for line in lines(first["folder"], "evaluations.jsonl")] == [128 * 3, TOTAL]
    # Files are written as `.NAME.PID` and renamed.
    written = {re.sub(r"\.\d+$", "", line.rpartition("/")[2].removeprefix(".")) for line in first["touched"]}
    assert {"policy.safetensors", "policy_best.safetensors"} <= written


def test_data_shards(seam):
    ranks = seam["data_shards"]
    assert not any(isinstance(rank, str) for rank in ranks), f"ranks took different numbers of batches: {ranks}"
    assert [len(rank["seen"]) for rank in ranks] == [3 * 4, 3 * 4], "not the same number of batches"
    for r, rank in enumerate(ranks):
        rows = sorted(make_rollout(r).observation[:-1, :, 0].ravel().tolist())
        orders = []
        for epoch in range(3):
            seen = [i for step in rank["seen"][4 * epoch : 4 * epoch + 4] for i in step["ids"]]
            assert sorted(seen) == rows, "not every row exactly once"
            orders.append(seen)
        assert orders[0] != orders[1] != orders[2], "rows come in the same order in every epoch"
