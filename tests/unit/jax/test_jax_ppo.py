"""PPO in JAX, in a world of one: the loss against the papers' equations, schedules, and what is not finite."""

import dataclasses

import numpy as np
import pytest
from safetensors import safe_open

from lockstep import World
from lockstep.algorithms.ppo import METRICS, PPOConfig
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.errors import ConfigError
from lockstep.experience.rollout import NonFiniteValue, Rollout
from lockstep.record.progress import Progress
from lockstep.run import NetworkConfig, Run
from lockstep.session.non_finite import NonFiniteError, save_batches
from quick import others_slow

pytest.importorskip("jax")

import jax
import jax.numpy as jnp

from lockstep.jax.adam import Adam, adapted
from lockstep.jax.batch import Batch
from lockstep.jax.comm import Comm
from lockstep.jax.metrics import Metrics
from lockstep.jax.networks import Policy, actor_of
from lockstep.jax.ppo import PPO

SPEC = EnvSpec(3, ActionSpec("discrete", (3,)), "same_step", True)
STEPS, ENVS, ROWS = 8, 6, 12
RAW = {"gae_lambda": 0.0, "normalize_advantage": False}


@pytest.fixture
def learner():
    """Makes a learner of two shards."""
    with Comm(World().with_shards(2), device="cpu") as comm:

        def make(non_finite="stop", **config):
            config = {"num_steps": STEPS, "num_epochs": 2, "learning_rate_schedule": "constant", **config}
            run = Run(
                task="t", num_envs=2 * ENVS, num_shards=2, network=NetworkConfig(hidden=(8,)), non_finite=non_finite,
                algorithm=PPOConfig(**config),
            )  # fmt: skip
            return PPO(run, Policy(SPEC, run.network, seed=0), comm)

        yield make


def rollouts():
    draw = np.random.default_rng(0)
    return [
        Rollout(
            draw.standard_normal((STEPS + 1, ENVS, 3), dtype=np.float32), draw.integers(0, 3, (STEPS, ENVS)),
            draw.standard_normal((STEPS, ENVS)).astype(np.float32), *np.zeros((2, STEPS, ENVS), bool),
            np.ones((STEPS, ENVS), np.float32), [],
        )
        for _ in range(2)
    ]  # fmt: skip


def state_of(ppo):
    return {name: array for name, array in ppo.shared_arrays().items() if name != "metrics"}


def same(a, b):
    return all(np.array_equal(a[name], b[name], equal_nan=True) for name in a)


# -- the loss ----------------------------------------------------------------------------------------------------------


def make_batch():
    draw = np.random.default_rng(0)
    normal = lambda *shape: draw.standard_normal(shape).astype(np.float32)  # noqa: E731
    weight, action = (draw.random(ROWS) < 0.8).astype(np.float32), draw.integers(3, size=ROWS).astype(np.int32)
    # Old log-probabilities far enough off that a part of the ratios is clipped.
    columns = (-1.1 + 0.4 * normal(ROWS), normal(ROWS), normal(ROWS), 2 * normal(ROWS), weight)
    return Batch(normal(ROWS, 3), action, *columns)


def plain(ppo, params, batch):
    """Schulman et al., 2017, eq. 7 and 9, one row after the other; sums over rows of weight 1."""
    c, total, told = ppo.config, 0.0, jnp.zeros(6)
    logits, values = ppo.policy.apply(params, batch.observation)
    for i in np.flatnonzero(batch.weight):
        log_p = logits[i] - jnp.log(jnp.exp(logits[i]).sum())
        ratio = jnp.exp(log_p[int(batch.action[i])]) / np.exp(batch.log_prob[i])
        low, high = 1 - c.clip_range, 1 + c.clip_range
        clipped = jnp.where(ratio < low, low, jnp.where(ratio > high, high, ratio))
        surrogate = jnp.minimum(ratio * batch.advantage[i], clipped * batch.advantage[i])
        square = (values[i] - batch.target[i]) ** 2
        if c.value_clip_range is not None:
            moved = jnp.clip(values[i] - batch.value[i], -c.value_clip_range, c.value_clip_range)
            square = jnp.maximum(square, (batch.value[i] + moved - batch.target[i]) ** 2)
        entropy = -(jnp.exp(log_p) * log_p).sum()
        total += -surrogate + c.value_coef * square / 2 - c.entropy_coef * entropy
        kl = ratio - 1 - jnp.log(ratio)
        told += jnp.stack([jnp.ones(()), -surrogate, square / 2, entropy, kl, jnp.float32(ratio != clipped)])
    return total, told


@pytest.mark.parametrize("config", [{}, {"value_clip_range": 0.2, "value_coef": 2.0, "clip_range": 0.3}])
def test_loss_sums_and_gradient_are_those_of_the_equations(learner, config):
    ppo, batch = learner(**config), make_batch()
    params = jax.tree.map(jnp.asarray, ppo.policy.params)
    (loss, sums), gradient = jax.value_and_grad(ppo.loss, has_aux=True)(params, jax.tree.map(jnp.asarray, batch))
    reference = jax.jit(jax.value_and_grad(lambda params: plain(ppo, params, batch), has_aux=True))
    (expected, told), wanted = reference(params)
    np.testing.assert_allclose(loss, expected, rtol=1e-4)
    np.testing.assert_allclose(sums, told, rtol=1e-4, atol=1e-4)
    for name, slope in wanted.items():
        np.testing.assert_allclose(gradient[name], slope, rtol=1e-3, atol=1e-3)
    assert 0.1 < told[5] / told[0] < 0.95, "nothing or everything is clipped; the test proves little"


def test_rows_of_weight_0_change_nothing(learner):
    ppo, batch = learner(), make_batch()
    odd = batch._replace(advantage=np.where(batch.weight > 0, batch.advantage, np.float32(1e6)))
    params = jax.tree.map(jnp.asarray, ppo.policy.params)
    assert ppo.loss(params, batch)[0] == ppo.loss(params, odd)[0]


# -- parts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kl", "factor"), [(0.0, 1.5), (0.006, 1.0), (0.03, 1 / 1.5), (np.nan, 1.0)])
def test_the_adaptive_rate_keeps_the_kl_near_what_is_wanted(kl, factor):
    assert float(adapted(jnp.asarray(1e-3), jnp.asarray(kl), 0.01)) == pytest.approx(1e-3 * factor)
    assert float(adapted(jnp.asarray(1e-2), jnp.asarray(0.0), 0.01)) == pytest.approx(1e-2)
    assert float(adapted(jnp.asarray(1e-6), jnp.asarray(1.0), 0.01)) == pytest.approx(1e-6)


def test_eps_of_adam_is_that_of_torch_unless_given():
    one, other, values, gradient = Adam(), Adam(1e-8), jnp.zeros(2), jnp.asarray([1e-8, -3e-9])
    step = jnp.asarray(0.1), jnp.asarray(False)
    mine, _ = one.step(one.init(values), values, gradient, *step)
    assert np.array_equal(mine, other.step(other.init(values), values, gradient, *step)[0])
    np.testing.assert_allclose(mine, [-0.05, 0.1 * 3 / 13], rtol=1e-3)


@pytest.mark.parametrize("poison", [1.0, np.nan, np.inf])
def test_a_step_of_adam_that_is_left_out_never_was(poison):
    adam, values, rate = Adam(1e-5), jnp.arange(3.0), jnp.asarray(0.1)
    yes, no = jnp.asarray(True), jnp.asarray(False)
    values, state = adam.step(adam.init(values), values, jnp.ones(3), rate, no)
    np.testing.assert_allclose(values, np.arange(3.0) - 0.1, rtol=1e-4)
    after, left = adam.step(state, values, jnp.full(3, poison), rate, yes)
    assert np.array_equal(after, values)
    assert all(np.array_equal(a, b) for a, b in zip(state, left, strict=True))
    moved, state = adam.step(left, after, -jnp.ones(3), rate, no)
    assert int(state.steps) == 2
    assert (moved > values - 0.01).all()


def test_metrics_are_weighted_means_of_what_was_added():
    metrics = Metrics(("a", "b", "c"))
    table = metrics.add(metrics.zeros(), ("a", "b"), jnp.asarray([6.0, 1.0]), 2.0)
    table = metrics.add(table, ("b",), jnp.asarray([4.0]), jnp.asarray(3.0))
    assert metrics.read(np.asarray(table)) == {"a": 3.0, "b": 1.0}


def test_metrics_are_named_in_any_order():
    metrics = Metrics(("a", "b", "c"))
    table = metrics.add(metrics.zeros(), ("a", "c"), jnp.asarray([1.0, 3.0]), 1.0)
    table = metrics.add(table, ("b", "a"), jnp.asarray([2.0, 1.0]), 1.0)
    assert metrics.read(np.asarray(table)) == {"a": 1.0, "b": 2.0, "c": 3.0}


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("d",), "there is no metric d; the known ones: a, b, c"),
        (("a", "b"), "sums given: 1; needed: 2, one for each of a, b"),
    ],
)
def test_sums_that_belong_to_no_metric_are_refused(names, message):
    metrics = Metrics(("a", "b", "c"))
    with pytest.raises(ConfigError, match=message):
        metrics.add(metrics.zeros(), names, jnp.asarray([1.0]), 1.0)


# -- updates -----------------------------------------------------------------------------------------------------------


def test_an_update_tells_what_it_was_given_and_every_metric_once(learner):
    ppo = learner()
    assert ppo.update(rollouts(), np.array([[3.0, -1.0], [1.0, 0.0]]), Progress(100, env_steps=50)).tolist() == [4, -1]
    metrics = ppo.read_metrics()
    assert set(metrics) == set(METRICS)
    assert np.isfinite(list(metrics.values())).all()
    assert ppo.read_metrics() == {}


def test_a_linear_schedule_falls_to_0_at_the_end(learner):
    ppo = learner(learning_rate_schedule="linear", learning_rate=0.01)
    before = state_of(ppo)["policy.network.actor.layers.0.weight"]
    ppo.update(rollouts(), np.zeros((2, 1)), Progress(100, env_steps=100))
    assert np.array_equal(state_of(ppo)["policy.network.actor.layers.0.weight"], before)
    ppo.update(rollouts(), np.zeros((2, 1)), Progress(100, env_steps=75))
    assert state_of(ppo)["learning_rate"] == pytest.approx(0.0025)
    assert not np.array_equal(state_of(ppo)["policy.network.actor.layers.0.weight"], before)


@pytest.mark.parametrize("scan", [True, False], ids=["one call", "a call per epoch"])
def test_epochs_past_the_target_kl_are_not_computed(learner, scan):
    """An update of six epochs that ends after the first is one of a single epoch, in what it computes too."""
    left, computed = [], []
    for num_epochs in (6, 1):
        ppo = learner(num_epochs=num_epochs, num_minibatches=2, target_kl=1e-9, learning_rate=0.01)
        ppo._scan, loss, calls = scan, ppo.loss, []

        def counted(params, part, sequence_length, loss=loss, calls=calls):
            jax.debug.callback(calls.append, part.weight[0])
            return loss(params, part, sequence_length)

        ppo.loss = counted
        ppo.update(rollouts(), np.zeros((2, 1)))
        jax.effects_barrier()
        computed.append(len(calls))
        left.append((state_of(ppo), ppo.read_metrics()))
    assert computed == [2 * 2, 2 * 2], "of two minibatches, on two shards"
    (stopped_early, metrics), (single, of_single) = left
    assert same(stopped_early, single)
    assert metrics == of_single
    assert set(metrics) == set(METRICS)


def test_the_actor_follows_and_a_rehearsal_compiles_and_changes_nothing(learner):
    ppo = learner(normalize_observation=True, normalize_return=True)
    actor, seen = actor_of(ppo.policy, ppo.comm.devices[0]), np.ones((2, ENVS, 3), np.float32)
    before, acted, drawn = ppo.shared_arrays(), actor(seen), [s.bit_generator.state for s in ppo._streams]
    ppo.warmup(actor)
    compiled = dict(ppo.comm.num_compilations)
    assert set(compiled.values()) == {1}
    assert same(before, ppo.shared_arrays())
    assert str(drawn) == str([s.bit_generator.state for s in ppo._streams])
    ppo.update(rollouts(), np.zeros((2, 1)))
    assert ppo.comm.num_compilations == compiled, "compiled again after the rehearsal"
    assert not np.array_equal(acted, actor(seen)), "acts with old parameters"


def test_what_is_saved_continues_in_another_learner(learner):
    ppo, other = (
        learner(normalize_observation=True, normalize_return=True),
        learner(normalize_observation=True, normalize_return=True),
    )
    ppo.update(rollouts(), np.zeros((2, 1)))
    other.load_shared(ppo.shared_arrays())
    for k in range(2):
        other.restore_shard(k, ppo.shard_state(k))
    assert same(ppo.shared_arrays(), other.shared_arrays())
    for one in (ppo, other):
        one.update(rollouts(), np.zeros((2, 1)))
    assert same(ppo.shared_arrays(), other.shared_arrays())
    assert same(ppo.policy.params, other.policy.params)


def test_minibatches_that_do_not_divide_are_refused(learner):
    with pytest.raises(
        ValueError, match=r"num_minibatches=5 does not divide a shard's 48 transitions .*; use 4 or 6, or"
    ):
        learner(num_minibatches=5)


# -- what is not finite ------------------------------------------------------------------------------------------------


def stopped(ppo, collected):
    with pytest.raises(NonFiniteError) as caught:
        ppo.update(collected, np.zeros((2, 1)), Progress(10_000, env_steps=960, updates=10))
    return caught.value


def test_a_column_made_of_finite_numbers_is_named(learner):
    ppo, collected = learner(gamma=1.0, gae_lambda=1.0), rollouts()
    collected[1].reward[:2, 2] = 3e38  # whose sum is no float32
    error = stopped(ppo, collected)
    place = "in step 0 of the rollout of update 11 (environment step 972, rank 0, shard 1)"
    assert f"the target of environment 8 is not finite (inf), {place}" in str(error), error
    assert list(error.batches) == [1]


@pytest.mark.parametrize("row", others_slow([(0, 0), (7, 5)], (7, 5)))
def test_a_row_whose_loss_is_too_large_is_named(learner, row):
    ppo, collected = learner(**RAW), rollouts()
    collected[0].reward[row] = 1e25
    error = stopped(ppo, collected)
    assert f"loss or gradient of environment {row[1]} is not finite, in step {row[0]} of the rollout" in str(error)
    assert all(np.isfinite(array).all() for array in state_of(ppo).values())
    assert error.rank == 0


def test_a_sum_that_is_too_large_blames_no_row(learner):
    ppo, collected = learner(num_minibatches=1, **RAW), rollouts()
    for rollout in collected:
        rollout.reward[:] = 5e18  # whose square is 2.5e37: a dozen of them are more than a float32 holds
    before = state_of(ppo)
    error = stopped(ppo, collected)
    assert "their sum is too large" in str(error)
    assert error.rank is None
    assert list(error.batches) == [0, 1]
    assert same(before, state_of(ppo))


def test_no_step_after_a_bad_one_is_taken(learner):
    """In `stop`, parameters stay those with which it happened; in `skip`, the other minibatches are learned from."""
    left = {}
    for mode in ("stop", "skip"):
        ppo, collected = learner(mode, **RAW), rollouts()
        collected[0].reward[2, 2] = 1e25
        if mode == "stop":
            stopped(ppo, collected)
        else:
            ppo.update(collected, np.zeros((2, 1)))
            assert ppo.read_metrics()["optim/skipped"] == 0.25
        left[mode] = state_of(ppo)["optimizer.steps"]
    assert left["skip"] == 6
    assert left["stop"] < 4


def test_an_update_left_out_leaves_all_else_alone(learner):
    ppo, collected = learner("skip", normalize_observation=True, normalize_return=True), rollouts()
    ppo.update(collected, np.zeros((2, 1)))
    before = state_of(ppo)
    ppo.read_metrics()
    collected[1].reward[3, 3], collected[1].fault = np.inf, NonFiniteValue(3, 9, "a reward", np.inf)
    assert ppo.update(collected, np.array([[1.0], [2.0]])).tolist() == [3.0]
    assert same(before, state_of(ppo))
    assert ppo.read_metrics() == {"optim/skipped": 1.0}
    assert all(np.isfinite(ppo.shard_state(k)["discounted"]).all() for k in range(2))


def test_batches_are_saved_with_what_is_wrong(learner, tmp_path):
    ppo, collected = learner(), rollouts()
    collected[0].reward[1, 2] = np.nan
    collected[0] = dataclasses.replace(collected[0], fault=NonFiniteValue(1, 2, "a reward", np.nan))
    error = stopped(ppo, collected)
    assert "environment 2 gave a reward that is not finite (nan), in step 1" in str(error)
    save_batches(error, tmp_path)
    with safe_open(tmp_path / "non_finite/shard_0.safetensors", "numpy") as file:
        assert str(error) in file.metadata()["lockstep"]
        assert np.isnan(file.get_tensor("rollout.reward")[1, 2])
        assert file.get_tensor("batch.observation").shape == (STEPS, ENVS, 3)
