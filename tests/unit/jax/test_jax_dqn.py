"""DQN in JAX, in a world of one that holds two shards: when a gradient step is taken, and what it leaves behind.

What a step computes is judged by `tests/parity/test_jax_dqn_parity.py`.
"""

import dataclasses
import math

import jax
import numpy as np
import pytest
from safetensors import safe_open

from lockstep import World
from lockstep.algorithms.dqn import DQNConfig
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.experience.rollout import NonFiniteValue, Rollout
from lockstep.record.progress import Progress
from lockstep.run import NetworkConfig, Run
from lockstep.session.non_finite import NonFiniteError, save_batches
from quick import others_slow

pytest.importorskip("jax")

from lockstep.jax import loops
from lockstep.jax.comm import Comm
from lockstep.jax.dqn import DQN
from lockstep.jax.q_networks import QPolicy

SPEC = EnvSpec(3, ActionSpec("discrete", (2,)), "same_step", True)
STEPS, ENVS, ROWS = 16, 4, 2 * 16 * 4  # ROWS: environment steps of a rollout of both shards


@pytest.fixture
def comm():
    with Comm(World().with_shards(2), device="cpu") as opened:
        yield opened


@pytest.fixture
def learner(comm):
    """Makes a learner; one gradient step per rollout unless told otherwise."""

    def make(non_finite="stop", seed=0, **config):
        base = {
            "num_steps": STEPS, "batch_size": 32, "capacity": 4 * ROWS, "learning_starts": 0,
            "updates_per_step": 1 / ROWS, "learning_rate": 1e-2, "target_update_every": 1000,
        }  # fmt: skip
        run = Run(
            task="t", algo="dqn", num_envs=2 * ENVS, num_shards=2, seed=seed, non_finite=non_finite,
            total_steps=10 * ROWS, network=NetworkConfig(hidden=(8,)), algorithm=DQNConfig(**{**base, **config}),
        )  # fmt: skip
        return DQN(run, QPolicy(SPEC, run.network, run.algorithm, seed=seed), comm)

    return make


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
    progress = Progress(10 * ROWS, env_steps=before, updates=before // ROWS)
    return dqn.update(collected, np.array([[1.0], [2.0]]), progress)


def values(dqn, name="policy"):
    held = {key: value for key, value in dqn.shared_arrays().items() if key.startswith(name + ".")}
    return np.concatenate([held[key].ravel() for key in sorted(held)])


def take_native_calls(dqn):
    return int(dqn.counters[0])


@pytest.mark.slow
def test_the_state_is_updated_in_its_own_buffers(learner):
    """A gradient step is given the buffers of the state, so that a GPU holds it once."""
    dqn = learner()
    update(dqn, rollouts())
    before = jax.tree.leaves((dqn.state.params, dqn.state.target_params, dqn.state.optimizer))
    update(dqn, rollouts(1), ROWS)
    assert all(leaf.is_deleted() for leaf in before)


def test_the_target_is_copied_every_so_many_gradient_steps(learner):
    dqn = learner(updates_per_step=2 / ROWS, target_update_every=4)
    first = values(dqn, "target")
    assert (first == values(dqn)).all()
    update(dqn, rollouts())
    assert (values(dqn, "target") == first).all(), "two of four steps, and the target moved"
    assert (values(dqn) != first).any()
    update(dqn, rollouts(1), before=ROWS)
    assert take_native_calls(dqn) == 4
    assert (values(dqn, "target") == values(dqn)).all()


def test_the_target_may_follow_step_by_step(learner):
    dqn = learner(target_rate=0.25)
    first = values(dqn, "target")
    update(dqn, rollouts())
    np.testing.assert_allclose(values(dqn, "target"), 0.75 * first + 0.25 * values(dqn), atol=1e-6)
    assert (values(dqn, "target") != first).any()


def test_actions_are_chosen_by_the_newest_parameters(learner):
    dqn = learner()
    before = dqn.policy.params
    update(dqn, rollouts())
    assert dqn.policy.params is not before
    held = dqn.shared_arrays()
    for name, array in dqn.policy.params.items():
        assert (np.asarray(array) == held[f"policy.{name}"]).all()
        assert (np.asarray(array) != np.asarray(before[name])).any()


def test_two_programs_serve_however_many_steps_are_due(learner, comm):
    dqn = learner(updates_per_step=2.5 / ROWS, target_update_every=2, learning_rate_schedule="linear")
    dqn.warmup()
    for i in range(4):
        update(dqn, rollouts(i), before=i * ROWS)
    assert take_native_calls(dqn) == 10
    assert comm.num_compilations == {"step": 1, "steps": 1, "_copied": 1}


@pytest.mark.parametrize(
    "config",
    others_slow(
        [{"target_update_every": 3}, {"target_rate": 0.1, "noisy": True, "value_distribution": "quantile"}],
        {"target_update_every": 3},
    ),
)
def test_steps_of_one_call_have_the_bits_of_single_steps(learner, monkeypatch, config):
    found = []
    for longest in (64, 4, 1):
        monkeypatch.setattr(loops, "MAX_STEPS", longest)
        dqn = learner(updates_per_step=7.5 / ROWS, **config)
        assert dqn._calls.size == {64: 7, 4: 3, 1: 1}[longest]
        for i in range(4):
            update(dqn, rollouts(i), before=i * ROWS)
        assert take_native_calls(dqn) == 30
        found.append(dqn.shared_arrays())
    for other in found[1:]:
        assert [name for name, array in found[0].items() if not np.array_equal(array, other[name])] == []


def test_calls_hold_so_many_steps_that_few_programs_are_needed(learner, monkeypatch):
    def calls(due, group=1, **config):
        spec = dataclasses.replace(SPEC, image=(1, 6, 6), observation_size=36) if config.pop("image", False) else SPEC
        config = DQNConfig(num_steps=STEPS, updates_per_step=due / ROWS, **config)
        run = Run(task="t", algo="dqn", num_envs=2 * ENVS, algorithm=config)
        return loops.StepCalls(run, spec, "cpu", np.zeros(1 << 20, np.uint8), group)

    assert calls(4).lengths(4, 0) == [4] and calls(4).occurring() == {4}
    assert calls(4.5).lengths(5, 4) == [4, 1] and calls(4.5).occurring() == {1, 4}
    assert calls(0.25).occurring() == {1}
    assert calls(20).lengths(20, 0) == [6, 6, 6, 1, 1], "a call's minibatches are more than 8 MB"
    assert calls(6, group=2).occurring() == {6}
    odd = calls(7, group=2)  # updates begin at even and at odd steps
    assert odd.lengths(7, 0) == [6, 1] and odd.lengths(7, 7) == [1, 6] and odd.occurring() == {1, 6}
    assert calls(3, group=4).occurring() == {1}
    assert calls(4, prioritized=True).lengths(4, 0) == [1] * 4, "the draw depends on the step before"
    assert calls(4, image=True).occurring() == {1}, "convolutions are slow in loops on CPUs"
    monkeypatch.setattr(loops, "MAX_BYTES", 1)
    assert calls(4).occurring() == {1}


@pytest.mark.parametrize("config", [{}, {"noisy": True, "prioritized": True}])
def test_a_rehearsal_compiles_everything_and_changes_nothing(learner, comm, config):
    dqn = learner(target_update_every=1, **config)
    before, replays = dqn.shared_arrays(), [replay.size for replay in dqn.replays.buffers]
    dqn.warmup()
    after = dqn.shared_arrays()
    assert all((before[name] == array).all() for name, array in after.items())
    assert [replay.size for replay in dqn.replays.buffers] == replays
    assert comm.num_compilations == {"step": 1, "_copied": 1}
    update(dqn, rollouts())
    assert take_native_calls(dqn) == 1
    assert comm.num_compilations == {"step": 1, "_copied": 1}, "something was compiled again"


def stepped(devices, seen, network):
    """The values after gradient steps on rollouts of four shards, which lie on so many devices."""
    shards, spec = 4, SPEC if seen is None else dataclasses.replace(SPEC, observation_size=2 * 36 * 36, image=seen)
    run = Run(
        task="t", algo="dqn", num_envs=shards * ENVS, num_shards=shards, network=network, devices_per_process=devices,
        ml_framework="jax", algorithm=DQNConfig(
            num_steps=STEPS, batch_size=32, capacity=1024, learning_starts=0, learning_rate=1e-2, prioritized=True,
            updates_per_step=4 / (shards * ENVS * STEPS), dueling=True, value_distribution="categorical",
            target_update_every=2,
        ),
    )  # fmt: skip
    with Comm(World().with_shards(shards), device="cpu", devices_per_process=devices) as comm:
        dqn = DQN(run, QPolicy(spec, network, run.algorithm, seed=0), comm)
        for number in range(2):
            made = [shard for seed in (2 * number, 2 * number + 1) for shard in rollouts(seed)]
            for i, rollout in enumerate(made if seen else ()):
                draw = np.random.default_rng([number, i])
                rollout.observation = draw.integers(0, 256, (STEPS + 1, ENVS, *seen), dtype=np.uint8)
            dqn.update(made, np.ones((shards, 1)))
        return dqn.shared_arrays()


@pytest.mark.parametrize("seen", others_slow([None, (2, 36, 36)], None))
def test_any_number_of_devices_takes_the_same_steps(seen):
    network = NetworkConfig(hidden=(8,)) if seen is None else NetworkConfig(encoder="small", features=8)
    alone, *others = (stepped(devices, seen, network) for devices in (1, 4))
    for other in others:
        differ = [name for name, array in alone.items() if not np.array_equal(array, other[name])]
        assert differ == [], "what a shard computes depends on what else its device computes"


def test_learning_starts_at_a_count_of_all_shards(learner):
    dqn = learner(learning_starts=2 * ROWS)
    assert update(dqn, rollouts()).tolist() == [3.0]
    assert take_native_calls(dqn) == 0
    assert "loss/value" not in dqn.metrics.read()
    update(dqn, rollouts(1), before=ROWS)
    assert take_native_calls(dqn) == 1


def test_ten_steps_for_192_are_ten_each_time(learner):
    dqn = learner(updates_per_step=10 / 192)  # and 128 steps in a rollout: 6.67 gradient steps
    steps = []
    for i in range(6):
        update(dqn, rollouts(i), before=i * ROWS)
        steps.append(take_native_calls(dqn))
    assert steps == [6, 13, 20, 26, 33, 40]


def test_no_shard_learns_until_all_can_draw(learner):
    dqn, collected = learner(n_step=20), rollouts(ends=0.0)
    collected[0].terminated[3] = collected[0].ended[3] = True
    update(dqn, collected)
    assert [replay.size > 0 for replay in dqn.replays.buffers] == [True, False]
    assert take_native_calls(dqn) == 0
    update(dqn, rollouts(1, ends=0.2), before=ROWS)
    assert [replay.size > 0 for replay in dqn.replays.buffers] == [True, True]
    assert take_native_calls(dqn) == 1, "what was not learned while a shard waited is made up for"


@pytest.mark.parametrize("name", others_slow(["categorical", "quantile"], "categorical"))
def test_distributions_are_learned(learner, name):
    changes = {"value_distribution": name, "num_atoms": 11, "num_quantiles": 7, "gamma": 0.0}
    collected = rollouts()
    for rollout in collected:
        rollout.reward[:] = 2.0
    found = []
    for one in (learner(**changes), learner(updates_per_step=60 / ROWS, **changes)):
        update(one, collected)
        found.append(one.metrics.read())
    assert [metrics["value/target"] for metrics in found] == pytest.approx([2.0, 2.0], abs=0.01)
    distance = [abs(metrics["value/q"] - 2.0) for metrics in found]
    assert distance[1] < 0.75 * distance[0], "on average over 60 steps it is not nearer than at the first"


def test_noise_is_never_twice_the_same_and_of_all_shards_alike(learner):
    dqn = learner(noisy=True, updates_per_step=2 / ROWS)
    seen, drawn_parts = [], dqn._parts

    def kept(*drawn):
        parts = drawn_parts(*drawn)
        seen.append([np.stack([part.noise, part.noise_of_target]) for part in parts])
        return parts

    dqn._parts = kept
    update(dqn, rollouts())
    (first, second), (later, _) = seen
    assert (first == second).all(), "shards of one step have one noise"
    assert (first != later).any(), "two steps had the same noise"
    assert (first[0] != first[1]).any(), "the target had the noise of the other network"


@pytest.mark.parametrize("kept", [True, False])
def test_it_goes_on_from_its_state(learner, kept):
    config = {"checkpoint_replay": kept, "learning_starts": 2 * ROWS, "prioritized": True}
    first, second = learner(**config), learner(seed=5, **config)
    for i in range(3):
        update(first, rollouts(i), before=i * ROWS)
    second.load_shared(first.shared_arrays())
    assert {name: value.tolist() for name, value in second.shared_arrays().items()} == {
        name: value.tolist() for name, value in first.shared_arrays().items()
    }
    for k in range(2):
        second.restore_shard(k, copied(first.shard_state(k)))
    for i in (3, 4):
        for dqn in (first, second):
            update(dqn, rollouts(i), before=i * ROWS)
        # A new replay fills for as many steps as the first one did, and is learned from after.
        assert take_native_calls(second) - 2 == (i - 2 if kept else i - 3)
    assert kept == bool((values(first) == values(second)).all())


def copied(state):
    if isinstance(state, dict):
        return {key: copied(value) for key, value in state.items()}
    return state.copy() if isinstance(state, np.ndarray) else state


def test_a_fault_of_an_environment_stops_with_its_name(learner):
    dqn, collected = learner(), rollouts()
    collected[1].reward[5, 2] = math.nan
    collected[1].fault = NonFiniteValue(5, 6, "a reward", math.nan)
    with pytest.raises(NonFiniteError) as caught:
        update(dqn, collected, before=ROWS)
    place = "in step 5 of the rollout of update 2 (environment step 176, rank 0, shard 1)"
    assert f"environment 6 gave a reward that is not finite (nan), {place}" in str(caught.value)
    assert list(caught.value.batches) == [1]


def test_a_fault_may_be_left_out(learner):
    dqn, collected = learner(non_finite="skip"), rollouts()
    collected[1].reward[5, 2] = math.nan
    collected[1].fault = NonFiniteValue(5, 6, "a reward", math.nan)
    update(dqn, collected)
    assert [replay.size > 0 for replay in dqn.replays.buffers] == [True, False]
    update(dqn, rollouts(1), before=ROWS)
    assert take_native_calls(dqn) == 1
    assert dqn.metrics.read()["replay/skipped"] == 0.25
    assert np.isfinite(values(dqn)).all()


def test_a_gradient_that_is_not_finite_stops_with_the_transition(learner, tmp_path):
    dqn, collected = learner(loss="mse", max_grad_norm=None, updates_per_step=2 / ROWS), rollouts()
    collected[1].reward[:] = 1e30  # finite, but not its square
    before = values(dqn)
    with pytest.raises(NonFiniteError) as caught:
        update(dqn, collected, before=ROWS)
    error = caught.value
    assert (
        "loss or gradient of transition 0 from the replay is not finite, in gradient step 0 after the rollout"
        in str(error)
    ), error
    assert "of update 2 (environment step 256, rank 0, shard 1)" in str(error), error
    assert (values(dqn) == before).all(), "the step was taken"
    save_batches(error, tmp_path)
    with safe_open(tmp_path / "non_finite" / "shard_1.safetensors", "np") as file:
        assert float(file.get_tensor("batch.reward")[0]) == np.float32(1e30)


def test_no_step_is_taken_after_one_that_was_not_finite(learner):
    """A row of what the first step draws is spoiled; the second draws none of it, and would be fine."""
    dqn = learner(loss="mse", max_grad_norm=None, updates_per_step=2 / ROWS)
    drawn_parts, steps = dqn._parts, []

    def spoiled(*drawn):
        parts = drawn_parts(*drawn)
        if not steps:
            batch = parts[0].batch._replace(reward=np.full_like(parts[0].batch.reward, 1e30))
            parts = [parts[0]._replace(batch=batch), *parts[1:]]
        steps.append(values(dqn))
        return parts

    dqn._parts = spoiled
    with pytest.raises(NonFiniteError):
        update(dqn, rollouts())
    assert len(steps) == 2
    assert (values(dqn) == steps[0]).all(), "a step was taken after the one that was not finite"


def test_a_return_that_is_no_float32_is_named(learner):
    dqn, collected = learner(n_step=3, gamma=1.0), rollouts(ends=0.0)
    collected[0].reward[:] = 3e38
    with np.errstate(over="ignore"), pytest.raises(NonFiniteError) as caught:
        update(dqn, collected)
    assert "the reward of transition 0 from the replay is not finite (inf)" in str(caught.value), caught.value


def test_a_gradient_that_is_not_finite_may_be_left_out(learner):
    dqn, collected = learner("skip", loss="mse", max_grad_norm=None, prioritized=True), rollouts()
    collected[1].reward[:] = 1e30
    before = np.concatenate([values(dqn), values(dqn, "optimizer")])
    priorities = [replay.state()["largest"] for replay in dqn.replays.buffers]
    update(dqn, collected)
    after = np.concatenate([values(dqn), values(dqn, "optimizer")])
    assert (after == before).all(), "the step was taken"
    assert [replay.state()["largest"] for replay in dqn.replays.buffers] == priorities, (
        "priorities of a step left out count"
    )
    assert dqn.metrics.read()["optim/skipped"] == 1.0
    assert take_native_calls(dqn) == 1


def test_the_learning_rate_falls_with_the_steps_of_all_ranks(learner):
    dqn = learner(learning_rate_schedule="linear")
    update(dqn, rollouts(), before=4 * ROWS)
    assert float(dqn.shared_arrays()["learning_rate"]) == pytest.approx(0.6e-2)
    assert dqn.metrics.read()["optim/learning_rate"] == pytest.approx(0.6e-2)
