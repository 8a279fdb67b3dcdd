"""DQN in a world of one that holds two shards: when a gradient step is taken, and what it leaves behind.

What a step computes is judged by `tests/parity/test_dqn_oracle.py`.
"""

import math

import numpy as np
import pytest
import torch
from safetensors import safe_open

from lockstep import World
from lockstep.algorithms.dqn import DQNConfig
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.experience.rollout import NonFiniteValue, Rollout
from lockstep.record.progress import Progress
from lockstep.run import NetworkConfig, Run
from lockstep.session.non_finite import NonFiniteError, save_batches
from lockstep.torch.comm import Comm
from lockstep.torch.dqn import DQN
from lockstep.torch.q_networks import QPolicy

SPEC = EnvSpec(3, ActionSpec("discrete", (2,)), "same_step", True)
STEPS, ENVS, ROWS = 16, 4, 2 * 16 * 4  # ROWS: environment steps of a rollout of both shards


def learner(non_finite="stop", seed=0, frozen=0, **config):
    """One gradient step per rollout unless told otherwise; the first `frozen` parameters are not trained."""
    base = {
        "num_steps": STEPS, "batch_size": 32, "capacity": 4 * ROWS, "learning_starts": 0, "updates_per_step": 1 / ROWS,
        "learning_rate": 1e-2, "target_update_every": 1000,
    }  # fmt: skip
    run = Run(
        task="t", algo="dqn", num_envs=2 * ENVS, num_shards=2, seed=seed, non_finite=non_finite, total_steps=10 * ROWS,
        network=NetworkConfig(hidden=(8,)), algorithm=DQNConfig(**{**base, **config}),
    )  # fmt: skip
    world = World().with_shards(2)
    policy = QPolicy(SPEC, run.network, run.algorithm, seed=seed)
    for parameter in list(policy.parameters())[:frozen]:
        parameter.requires_grad_(False)
    return DQN(run, policy, Comm(world, device="cpu"))


def rollouts(seed=0, ends=0.1):
    """Shard 1 sees and earns more than shard 0."""
    draw = np.random.default_rng(seed)
    made = []
    for shard in range(2):
        observation = draw.standard_normal((STEPS + 1, ENVS, 3), dtype=np.float32) * (1 + shard)
        reward = draw.standard_normal((STEPS, ENVS)).astype(np.float32) * (1 + 4 * shard)
        terminated = draw.random((STEPS, ENVS)) < ends
        action, weight = draw.integers(0, 2, (STEPS, ENVS)), np.ones((STEPS, ENVS), np.float32)
        made.append(Rollout(observation, action, reward, terminated, terminated.copy(), weight, []))
    return made


def update(dqn, collected, before=0):
    return dqn.update(
        collected, np.array([[1.0], [2.0]]), Progress(10 * ROWS, env_steps=before, updates=before // ROWS)
    )


def values(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()]).clone()


def taken(dqn):
    return int(dqn.counters[0])


def test_the_target_is_copied_every_so_many_gradient_steps():
    dqn = learner(updates_per_step=2 / ROWS, target_update_every=4)
    first = values(dqn.target)
    assert (first == values(dqn.policy)).all()
    update(dqn, rollouts())
    assert (values(dqn.target) == first).all(), "two of four steps, and the target moved"
    assert (values(dqn.policy) != first).any()
    update(dqn, rollouts(1), before=ROWS)
    assert taken(dqn) == 4
    assert (values(dqn.target) == values(dqn.policy)).all()


def test_the_target_may_follow_step_by_step():
    dqn = learner(target_rate=0.25)
    first = values(dqn.target)
    update(dqn, rollouts())
    torch.testing.assert_close(values(dqn.target), 0.75 * first + 0.25 * values(dqn.policy))


def test_learning_starts_at_a_count_of_all_shards():
    dqn = learner(learning_starts=2 * ROWS)
    update(dqn, rollouts())
    assert taken(dqn) == 0
    update(dqn, rollouts(1), before=ROWS)
    assert taken(dqn) == 1


def test_ten_steps_for_192_are_ten_each_time():
    dqn = learner(updates_per_step=10 / 192)  # and 128 steps in a rollout: 6.67 gradient steps
    steps = []
    for i in range(6):
        update(dqn, rollouts(i), before=i * ROWS)
        steps.append(taken(dqn))
    assert steps == [6, 13, 20, 26, 33, 40]


def test_no_shard_learns_until_all_can_draw():
    dqn, collected = learner(n_step=20), rollouts(ends=0.0)
    collected[0].terminated[3] = collected[0].ended[3] = True
    update(dqn, collected)
    assert [replay.size > 0 for replay in dqn.replays.buffers] == [True, False]
    assert taken(dqn) == 0
    update(dqn, rollouts(1, ends=0.2), before=ROWS)
    assert [replay.size > 0 for replay in dqn.replays.buffers] == [True, True]
    assert taken(dqn) == 1, "what was not learned while a shard waited is made up for"


@pytest.mark.parametrize("name", ["categorical", "quantile"])
def test_distributions_are_learned(name):
    dqn = learner(value_distribution=name, num_atoms=11, num_quantiles=7, updates_per_step=60 / ROWS, gamma=0.0)
    collected = rollouts()
    for rollout in collected:
        rollout.reward[:] = 2.0
    first = learner(value_distribution=name, num_atoms=11, num_quantiles=7, gamma=0.0)
    found = []
    for one in (first, dqn):
        update(one, collected)
        found.append(one.metrics.read())
    assert [metrics["value/target"] for metrics in found] == pytest.approx([2.0, 2.0], abs=0.01)
    distance = [abs(metrics["value/q"] - 2.0) for metrics in found]
    assert distance[1] < 0.75 * distance[0], "on average over 60 steps it is not nearer than at the first"


def test_noise_is_off_between_updates_and_never_twice_the_same():
    dqn = learner(noisy=True, updates_per_step=2 / ROWS)
    seen = []
    loss = dqn._backward._loss

    def kept(batch):
        seen.append([layer.noise[0].clone() for net in (dqn.policy, dqn.target) for layer in net._noisy])
        return loss(batch)

    dqn._backward._loss = kept
    update(dqn, rollouts())
    assert len(seen) == 4
    assert all((a == b).all() for a, b in zip(seen[0], seen[1], strict=True)), "shards of one step have one noise"
    assert any((a != b).any() for a, b in zip(seen[1], seen[2], strict=True)), "two steps had the same noise"
    assert (seen[0][0] != seen[0][len(dqn.policy._noisy)]).any(), "the target had the noise of the other network"
    assert all(layer.noise is None for layer in dqn.policy._noisy)


@pytest.mark.parametrize("kept", [True, False])
def test_it_goes_on_from_its_state(kept):
    config = {"checkpoint_replay": kept, "learning_starts": 2 * ROWS, "prioritized": True}
    first, second = learner(**config), learner(seed=5, **config)
    for i in range(3):
        update(first, rollouts(i), before=i * ROWS)
    for name, tensor in second.shared_tensors().items():
        tensor.copy_(first.shared_tensors()[name])
    for k in range(2):
        second.restore_shard(k, copied(first.shard_state(k)))
    for i in (3, 4):
        for dqn in (first, second):
            update(dqn, rollouts(i), before=i * ROWS)
        # A new replay fills for as many steps as the first one did, and is learned from after.
        assert taken(second) - 2 == (i - 2 if kept else i - 3)
    assert kept == bool((values(first.policy) == values(second.policy)).all())


def copied(state):
    if isinstance(state, dict):
        return {key: copied(value) for key, value in state.items()}
    return state.copy() if isinstance(state, np.ndarray) else state


def test_a_fault_of_an_environment_stops_with_its_name():
    dqn, collected = learner(), rollouts()
    collected[1].reward[5, 2] = math.nan
    collected[1].fault = NonFiniteValue(5, 6, "a reward", math.nan)
    with pytest.raises(NonFiniteError) as caught:
        update(dqn, collected, before=ROWS)
    place = "in step 5 of the rollout of update 2 (environment step 176, rank 0, shard 1)"
    assert f"environment 6 gave a reward that is not finite (nan), {place}" in str(caught.value)
    assert list(caught.value.batches) == [1]


def test_a_fault_may_be_left_out():
    dqn, collected = learner(non_finite="skip"), rollouts()
    collected[1].reward[5, 2] = math.nan
    collected[1].fault = NonFiniteValue(5, 6, "a reward", math.nan)
    update(dqn, collected)
    assert [replay.size > 0 for replay in dqn.replays.buffers] == [True, False]
    update(dqn, rollouts(1), before=ROWS)
    assert taken(dqn) == 1
    assert dqn.metrics.read()["replay/skipped"] == 0.25
    assert values(dqn.policy).isfinite().all()


def test_a_gradient_that_is_not_finite_stops_with_the_transition(tmp_path):
    dqn, collected = learner(loss="mse", max_grad_norm=None), rollouts()
    collected[1].reward[:] = 1e30  # finite, but not its square
    before = values(dqn.policy)
    with pytest.raises(NonFiniteError) as caught:
        update(dqn, collected, before=ROWS)
    error = caught.value
    assert (
        "loss or gradient of transition 0 from the replay is not finite, in gradient step 0 after the rollout"
        in str(error)
    ), error
    assert "of update 2 (environment step 256, rank 0, shard 1)" in str(error), error
    assert (values(dqn.policy) == before).all(), "the step was taken"
    save_batches(error, tmp_path)
    with safe_open(tmp_path / "non_finite" / "shard_1.safetensors", "pt") as file:
        assert float(file.get_tensor("batch.reward")[0]) == np.float32(1e30)


def test_a_return_that_is_no_float32_is_named():
    dqn, collected = learner(n_step=3, gamma=1.0), rollouts(ends=0.0)
    collected[0].reward[:] = 3e38
    with np.errstate(over="ignore"), pytest.raises(NonFiniteError) as caught:
        update(dqn, collected)
    assert "the reward of transition 0 from the replay is not finite (inf)" in str(caught.value), caught.value


def test_a_gradient_that_is_not_finite_may_be_left_out():
    dqn, collected = learner("skip", loss="mse", max_grad_norm=None, prioritized=True), rollouts()
    collected[1].reward[:] = 1e30
    before = values(dqn.policy)
    update(dqn, collected)
    assert (values(dqn.policy) == before).all()
    assert dqn.metrics.read()["optim/skipped"] == 1.0
    assert taken(dqn) == 1


def test_the_learning_rate_falls_with_the_steps_of_all_ranks():
    dqn = learner(learning_rate_schedule="linear")
    update(dqn, rollouts(), before=4 * ROWS)
    assert float(dqn.learning_rate) == pytest.approx(0.6e-2)


def test_warmup_changes_nothing():
    dqn = learner(noisy=True)
    update(dqn, rollouts())
    before = {name: tensor.clone() for name, tensor in dqn.shared_tensors().items()}
    dqn.warmup_step(8)()
    assert all((before[name] == tensor).all() for name, tensor in dqn.shared_tensors().items())
    assert all(layer.noise is None for layer in dqn.policy._noisy)


def test_the_target_takes_over_frozen_parameters_of_another_run():
    """`init_from` loads a policy whose frozen layers have other numbers than those that this run drew."""
    dqn = learner(seed=2, frozen=2)
    other = learner(seed=1, frozen=2).policy.state_dict()
    dqn.policy.load_state_dict(other)
    dqn.copy_to_target()
    assert all(torch.equal(tensor, other[name]) for name, tensor in dqn.target.state_dict().items())
