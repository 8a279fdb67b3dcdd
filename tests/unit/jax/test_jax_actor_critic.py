"""SAC and TD3 in JAX, in a world of one that holds two shards: when networks change, and what is compiled.

`tests/parity/test_jax_actor_critic_parity.py` checks the numbers that a step computes.
"""

import numpy as np
import pytest
from safetensors import safe_open

from first_weights import check_first_weights
from lockstep import World
from lockstep.algorithms.sac import SACConfig
from lockstep.algorithms.td3 import TD3Config
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.experience.rollout import Rollout
from lockstep.record.progress import Progress
from lockstep.run import NetworkConfig, Run
from lockstep.session.non_finite import NonFiniteError, save_batches
from quick import others_slow

pytest.importorskip("jax")

from lockstep.jax import loops
from lockstep.jax.comm import Comm
from lockstep.jax.continuous_policy import ContinuousPolicy
from lockstep.jax.sac import SAC
from lockstep.jax.td3 import TD3

slow = pytest.mark.slow  # most of the time is compilation

SPEC = EnvSpec(3, ActionSpec("continuous", (2,), (-1.0, 0.0), (1.0, 4.0)), "same_step", True)
STEPS, ENVS, ROWS = 16, 4, 2 * 16 * 4  # ROWS: environment steps of a rollout of both shards
ALGORITHMS = {"sac": (SAC, SACConfig), "td3": (TD3, TD3Config)}


@pytest.fixture
def comm():
    with Comm(World().with_shards(2), device="cpu") as opened:
        yield opened


@pytest.fixture
def learner(comm):
    """Makes a learner; one gradient step per rollout by default."""

    def make(algo="sac", non_finite="stop", **settings):
        base = {
            "num_steps": STEPS, "batch_size": 32, "capacity": 4 * ROWS, "learning_starts": 0,
            "updates_per_step": 1 / ROWS, "learning_rate": 1e-2,
        }  # fmt: skip
        cls, config = ALGORITHMS[algo]
        run = Run(
            task="t", algo=algo, num_envs=2 * ENVS, num_shards=2, non_finite=non_finite, total_steps=10 * ROWS,
            network=NetworkConfig(hidden=(8,), activation="relu"), algorithm=config(**{**base, **settings}),
        )  # fmt: skip
        return cls(run, ContinuousPolicy(SPEC, run.network, run.algorithm), comm)

    return make


def rollouts(seed=0, ends=0.1):
    """Shard 1 observes and earns larger numbers than shard 0."""
    draw = np.random.default_rng(seed)
    made = []
    for shard in range(2):
        observation = draw.standard_normal((STEPS + 1, ENVS, 3), dtype=np.float32) * (1 + shard)
        reward = draw.standard_normal((STEPS, ENVS)).astype(np.float32) * (1 + 4 * shard)
        terminated = draw.random((STEPS, ENVS)) < ends
        action = draw.uniform(SPEC.action.low, SPEC.action.high, (STEPS, ENVS, 2)).astype(np.float32)
        weight = np.ones((STEPS, ENVS), np.float32)
        made.append(Rollout(observation, action, reward, terminated, terminated.copy(), weight, []))
    return made


def update(one, collected, before=0):
    progress = Progress(10 * ROWS, env_steps=before, updates=before // ROWS)
    return one.update(collected, np.array([[1.0], [2.0]]), progress)


def values(one, name):
    """All parameters whose names start with `name`."""
    arrays = {key: value for key, value in one.shared_arrays().items() if key.startswith(name + ".")}
    assert arrays, name
    return np.concatenate([arrays[key].ravel() for key in sorted(arrays)])


@pytest.mark.parametrize("config", [SACConfig(), TD3Config(num_critics=1)], ids=["sac", "td3"])
@pytest.mark.parametrize("initialization", [None, "uniform", "orthogonal"])
def test_first_weights_are_those_of_the_setting(config, initialization):
    network = NetworkConfig(hidden=(8, 5), initialization=initialization)
    policy = ContinuousPolicy(SPEC, network, config, seed=3)
    check_first_weights({name: np.asarray(value) for name, value in policy.params.items()}, initialization)


def test_target_critics_of_sac_follow_the_new_critics(learner):
    sac = learner(target_rate=0.25)
    first = values(sac, "target")
    assert (first == values(sac, "policy.critics")).all()
    update(sac, rollouts())
    np.testing.assert_allclose(values(sac, "target"), 0.75 * first + 0.25 * values(sac, "policy.critics"), atol=1e-6)


def test_policy_and_targets_of_td3_move_in_every_second_step(learner):
    td3 = learner("td3", target_rate=0.25)
    names = ("policy.actor", "target.actor", "target.critics", "policy.critics")
    first = {name: values(td3, name) for name in names}
    update(td3, rollouts())
    assert all((values(td3, name) == first[name]).all() for name in names[:3])
    assert (values(td3, "policy.critics") != first["policy.critics"]).any()
    update(td3, rollouts(1), before=ROWS)
    for name in ("actor", "critics"):
        moved = 0.75 * first[f"target.{name}"] + 0.25 * values(td3, f"policy.{name}")
        assert (values(td3, f"policy.{name}") != first[f"policy.{name}"]).any()
        np.testing.assert_allclose(values(td3, f"target.{name}"), moved, atol=1e-6)


@slow
def test_temperature_rises_while_the_entropy_is_too_low_and_falls_otherwise(learner):
    for target, sign in ((50.0, 1), (-50.0, -1)):
        sac = learner(target_entropy=target, initial_alpha=0.5)
        update(sac, rollouts())
        log_alpha = sac.shared_arrays()["policy.temperature.log_alpha"]
        assert np.sign(log_alpha - np.log(np.float32(0.5))) == sign
    fixed = learner(alpha=0.5)
    assert "policy.temperature.log_alpha" not in fixed.shared_arrays()
    update(fixed, rollouts())
    assert fixed.metrics.read()["policy/alpha"] == pytest.approx(0.5)


@slow
@pytest.mark.parametrize("algo", ["sac", "td3"])
def test_warmup_compiles_everything_and_changes_nothing(learner, comm, algo):
    one = learner(
        algo, policy_delay=2, updates_per_step=4 / ROWS, num_critics=3, target_critics=2, dropout=0.2, prioritized=True
    )
    before = one.shared_arrays()
    one.warmup()
    after = one.shared_arrays()
    assert all((before[name] == array).all() for name, array in after.items())
    compiled = {"step": 1, "critic_step": 1, "_copied": 1}
    assert comm.num_compilations == compiled
    update(one, rollouts())
    assert one.counters[0] == 4
    assert comm.num_compilations == compiled, "something was compiled again"


@slow
@pytest.mark.parametrize("algo", ["sac", "td3"])
def test_steps_of_one_call_have_the_bits_of_single_steps(learner, comm, monkeypatch, algo):
    found = []
    for longest in (64, 1):
        monkeypatch.setattr(loops, "MAX_STEPS", longest)
        one = learner(algo, policy_delay=2, updates_per_step=7 / ROWS, num_critics=3, target_critics=2, dropout=0.2)
        assert one._calls.size == {64: 6, 1: 1}[longest]
        one.warmup()
        compiled = comm.num_compilations.copy()
        for i in range(3):
            update(one, rollouts(i), before=i * ROWS)
        assert one.counters[0] == 21
        assert comm.num_compilations == compiled, "something was compiled again"
        found.append(one.shared_arrays())
    assert [name for name, array in found[0].items() if not np.array_equal(array, found[1][name])] == []


@slow
def test_actions_are_chosen_by_the_newest_parameters(learner):
    sac = learner()
    before = sac.policy.params
    update(sac, rollouts())
    held = sac.shared_arrays()
    for name, array in sac.policy.params.items():
        assert (np.asarray(array) == held[f"policy.{name}"]).all()
        assert (np.asarray(array) != np.asarray(before[name])).any(), f"{name} was not trained"


@pytest.mark.parametrize("algo", others_slow(["sac", "td3"], "sac"))
def test_non_finite_loss_stops_the_run_and_names_the_transition(learner, algo, tmp_path):
    one = learner(algo)
    made = rollouts()
    made[1].reward[:] = 1e30  # finite, but its square is not
    before = values(one, "policy")
    with pytest.raises(NonFiniteError, match=r"transition 0 from the replay is not finite.*shard 1") as error:
        update(one, made)
    assert error.value.rank == 0
    assert (values(one, "policy") == before).all(), "the failing parameters were not preserved"
    save_batches(error.value, tmp_path)
    with safe_open(tmp_path / "non_finite/shard_1.safetensors", "numpy") as file:
        assert "batch.noise" in list(file.keys())


@slow
def test_non_finite_step_can_be_skipped(learner):
    one = learner(non_finite="skip", updates_per_step=2 / ROWS)
    made = rollouts()
    made[1].reward[:] = 1e30
    before = values(one, "policy")
    update(one, made)
    assert (values(one, "policy") == before).all()
    assert one.metrics.read()["optim/skipped"] == 1.0
