"""Naming the row that is not finite, in a world of one."""

import numpy as np
import pytest
import torch
from safetensors import safe_open

from lockstep import World
from lockstep.algorithms.ppo import PPOConfig
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.experience.rollout import NonFiniteValue, Rollout
from lockstep.record.progress import Progress
from lockstep.run import NetworkConfig, Run
from lockstep.session.non_finite import NonFiniteError, save_batches
from lockstep.torch.batch import Batch
from lockstep.torch.comm import Comm
from lockstep.torch.flat import FlatParameters
from lockstep.torch.networks import Policy
from lockstep.torch.non_finite import LossReader
from lockstep.torch.offline.noise import Noise
from lockstep.torch.ppo import PPO

SPEC = EnvSpec(3, ActionSpec("discrete", (2,)), "same_step", True)
STEPS, ENVS = 8, 6


def learner(non_finite="stop", **config):
    config = {"num_steps": STEPS, "num_epochs": 2, "learning_rate_schedule": "constant", **config}
    run = Run(
        task="t", num_envs=2 * ENVS, num_shards=2, network=NetworkConfig(hidden=(8,)), non_finite=non_finite,
        algorithm=PPOConfig(**config),
    )  # fmt: skip
    world = World().with_shards(2)
    return PPO(run, Policy(SPEC, run.network, seed=0), Comm(world, device="cpu"))


def rollouts():
    draw = np.random.default_rng(0)
    return [
        Rollout(
            draw.standard_normal((STEPS + 1, ENVS, 3), dtype=np.float32), draw.integers(0, 2, (STEPS, ENVS)),
            draw.standard_normal((STEPS, ENVS)).astype(np.float32), *np.zeros((2, STEPS, ENVS), bool),
            np.ones((STEPS, ENVS), np.float32), [],
        )
        for _ in range(2)
    ]  # fmt: skip


def stopped(ppo, collected):
    with pytest.raises(NonFiniteError) as caught:
        ppo.update(collected, np.zeros((2, 1)), Progress(10_000, env_steps=960, updates=10))
    return caught.value


def test_a_column_made_of_finite_numbers_is_named():
    ppo, collected = learner(gamma=1.0, gae_lambda=1.0), rollouts()
    collected[1].reward[:2, 2] = 3e38  # whose sum is no float32
    error = stopped(ppo, collected)
    place = "in step 0 of the rollout of update 11 (environment step 972, rank 0, shard 1)"
    assert f"the target of environment 8 is not finite (inf), {place}" in str(error), error
    assert list(error.batches) == [1]


@pytest.mark.parametrize(("row", "size"), [((0, 0), 1e25), ((7, 5), 1e25), ((3, 4), 1e25)])
def test_a_row_whose_loss_is_too_large_is_named(row, size):
    ppo, collected = learner(gae_lambda=0.0, normalize_advantage=False), rollouts()
    collected[0].reward[row] = size
    error = stopped(ppo, collected)
    assert f"loss or gradient of environment {row[1]} is not finite, in step {row[0]} of the rollout" in str(error)
    assert torch.isfinite(ppo.flat.params).all()
    assert error.rank == 0


def test_a_sum_that_is_too_large_blames_no_row():
    ppo, collected = learner(gae_lambda=0.0, normalize_advantage=False, num_minibatches=1), rollouts()
    for rollout in collected:
        rollout.reward[:] = 5e18  # whose square is 2.5e37: a dozen of them are more than a float32 holds
    before = ppo.flat.params.detach().clone()
    error = stopped(ppo, collected)
    assert "their sum is too large" in str(error)
    assert error.rank is None
    assert list(error.batches) == [0, 1]
    assert torch.equal(ppo.flat.params, before)


def test_no_step_after_a_bad_one_is_taken():
    """In `stop`, parameters stay those with which it happened; in `skip`, the other minibatches are learned from."""
    left = {}
    for mode in ("stop", "skip"):
        ppo, collected = learner(mode, gae_lambda=0.0, normalize_advantage=False), rollouts()
        collected[0].reward[2, 2] = 1e25
        if mode == "stop":
            stopped(ppo, collected)
        else:
            ppo.update(collected, np.zeros((2, 1)))
            assert ppo.metrics.read()["optim/skipped"] == 0.25
        left[mode] = ppo.optimizer.steps.item()
    assert left["skip"] == 6
    assert left["stop"] < 4


@pytest.mark.parametrize("mode", ["stop", "skip"])
def test_a_minibatch_of_weight_0_is_skipped_but_not_counted(mode):
    ppo, collected = learner(mode), rollouts()
    for rollout in collected:
        rollout.weight[:] = 0.0
        rollout.weight[0, 0] = 1.0
    ppo.update(collected, np.zeros((2, 1)))
    metrics = ppo.metrics.read()
    assert metrics["optim/skipped"] == 0.0
    assert 0 < ppo.optimizer.steps.item() < ppo.config.num_epochs * ppo.config.num_minibatches
    assert np.isfinite(list(metrics.values())).all()
    assert torch.isfinite(ppo.flat.params).all()


def test_an_update_left_out_leaves_normalizers_alone():
    ppo, collected = learner("skip", normalize_observation=True, normalize_return=True), rollouts()
    ppo.update(collected, np.zeros((2, 1)))
    before = {name: tensor.clone() for name, tensor in ppo.shared_tensors().items() if name != "metrics"}
    ppo.metrics.read()
    collected[1].reward[3, 3], collected[1].fault = np.inf, NonFiniteValue(3, 9, "a reward", np.inf)
    assert ppo.update(collected, np.array([[1.0], [2.0]])).tolist() == [3.0]
    assert all(torch.equal(before[name], t) for name, t in ppo.shared_tensors().items() if name in before)
    assert ppo.metrics.read() == {"optim/skipped": 1.0}
    assert all(np.isfinite(ppo.shard_state(k)["discounted"]).all() for k in range(2))


def test_batches_are_saved_whole_or_not_at_all(tmp_path, capsys):
    ppo, collected = learner(), rollouts()
    collected[0].reward[1, 2] = np.nan
    error = stopped(ppo, collected)
    save_batches(error, tmp_path)
    with safe_open(tmp_path / "non_finite/shard_0.safetensors", "numpy") as file:
        assert str(error) in file.metadata()["lockstep"]
        assert np.isnan(file.get_tensor("rollout.reward")[1, 2])
        assert file.get_tensor("batch.observation").shape == (STEPS, ENVS, 3)
    (tmp_path / "file").write_text("")
    save_batches(error, tmp_path / "file")
    assert "file/non_finite/shard_0.safetensors could not be written" in capsys.readouterr().err


def test_saved_columns_are_called_by_what_they_are():
    rows = Batch.blank(SPEC, 2, torch.device("cpu"))
    noise = Noise(torch.zeros(2, 1, 1), torch.zeros(2, 1, 1))
    reader = LossReader(lambda: (), FlatParameters(torch.nn.Linear(1, 1)))
    assert {name.split(".")[0] for name in reader.arrays((rows,))} == {"batch"}
    assert {name.split(".")[0] for name in reader.arrays((rows, rows))} == {"batch", "single"}
    assert {"noise.normal", "noise.uniform", "batch.action"} <= reader.arrays((rows, noise)).keys()
