"""The same parameters and rollouts in both frameworks, whole updates: the same parameters and metrics out."""

import numpy as np
import pytest

from quick import others_slow

pytest.importorskip("torch")
pytest.importorskip("jax")

from networks_alike import ACTIONS, acted, observed, perturbed, spec_of

from lockstep import World
from lockstep.algorithms.ppo import METRICS, PPOConfig
from lockstep.experience.rollout import Rollout
from lockstep.jax.comm import Comm
from lockstep.jax.networks import Policy
from lockstep.jax.ppo import PPO
from lockstep.record.progress import Progress
from lockstep.run import NetworkConfig, Run
from lockstep.torch import ppo as torch_ppo
from lockstep.torch.comm import Comm as TorchComm
from lockstep.torch.networks import Policy as TorchPolicy
from lockstep.world import stream

STEPS, ENVS, SHARDS = 16, 4, 2  # environments of one shard
IMAGE = (3, 40, 44)
BASE = {"num_steps": STEPS, "num_epochs": 3, "num_minibatches": 4, "learning_rate": 3e-3, "clip_range": 0.02}
CASES = {
    "defaults": ({}, {}),
    "clipped values": ({"value_clip_range": 0.1, "value_coef": 1.3, "max_grad_norm": None, "clip_range": 0.2}, {}),
    "raw advantages": (
        {"normalize_advantage": False, "entropy_coef": 0.3, "learning_rate_schedule": "constant", "gamma": 0.9},
        {},
    ),
    "adaptive": ({"learning_rate_schedule": "adaptive", "desired_kl": 0.004}, {}),
    "normalizers": (
        {
            "normalize_observation": True,
            "normalize_return": True,
            "reward_scale": 0.3,
            "observation_limit": 1.5,
            "normalize_value": True,
            "value_limit": 0.8,
            "value_clip_range": 0.1,
        },
        {},
    ),
    "continuous": (
        {
            "learning_rate": 1e-3,
            "adam_eps": 1e-3,
            "bounds_loss_coef": 3.0,
            "learning_rate_schedule": "adaptive",
            "desired_kl": 0.004,
            "adapt_every": "minibatch",
            "adapt_before_step": True,
        },
        {"action": "continuous", "network": {"state_dependent_std": True, "critic_hidden": (12,)}},
    ),
    "deviations that are parameters": ({"learning_rate": 1e-3}, {"action": "continuous"}),
    "multi_discrete": ({}, {"action": "multi_discrete"}),
    "gru": (
        {"sequence_length": 4, "normalize_value": True},
        {"network": {"recurrent": "gru", "recurrent_size": 6, "recurrent_layers": 2}},
    ),
    "lstm of one body": (
        {"sequence_length": 8, "num_minibatches": 2, "clip_range": 1e-3},
        {"network": {"recurrent": "lstm", "recurrent_size": 6, "shared": True}},
    ),
    "observation of the critic's own": (
        {"normalize_observation": True, "observation_limit": 1.5, "clip_range": 0.05},
        {"critic_size": 4, "network": {"critic_hidden": (12,)}},
    ),
    "gru and observation of the critic's own": (
        {"normalize_observation": True, "sequence_length": 4, "clip_range": 1e-3},
        {"critic_size": 4, "network": {"recurrent": "gru", "recurrent_size": 6}},
    ),
    "images": ({"num_epochs": 2, "num_minibatches": 2, "learning_rate": 2e-4, "clip_range": 2e-4}, {"image": IMAGE}),
}


def rollout_of(spec, shard, update):
    """Random steps with ends of both kinds; half of the truncations with a true last observation apart."""
    draw = stream(update, "parity", shard)
    ended = draw.random((STEPS, ENVS)) < 0.2
    terminated = ended & (draw.random((STEPS, ENVS)) < 0.5)
    weight = np.ones((STEPS, ENVS), np.float32)
    weight[1:][ended[:-1] & (draw.random((STEPS - 1, ENVS)) < 0.5)] = 0.0
    shape, seed = (STEPS + 1, ENVS), [update, shard]
    observation = observed(spec, (STEPS + 1) * ENVS, seed, whole=True)
    observation = observation.reshape(*shape, *observation.shape[1:])
    rows = [(t, np.flatnonzero(ended[t] & ~terminated[t])) for t in range(0, STEPS, 2)]
    final = [(t, envs, observed(spec, len(envs), [t, shard], whole=True)) for t, envs in rows if len(envs)]
    action = acted(spec, STEPS * ENVS, seed)
    reward = (draw.standard_normal((STEPS, ENVS)) * (1 + 3 * shard)).astype(np.float32)
    return Rollout(
        observation, action.reshape(STEPS, ENVS, *action.shape[1:]), reward, terminated, ended, weight, final
    )


def add_states(rollouts, size, update):
    """What the collector of a recurrent policy adds to its rollouts."""
    draw = stream(update, "parity states")
    for rollout in rollouts:
        rollout.state = 0.3 * draw.standard_normal((ENVS, size), np.float32)
        rollout.begins = draw.random((STEPS + 1, ENVS)) < 0.2


def run_of(config, non_finite="stop", precision="float32", network=None, **_):
    return Run(
        task="t", num_envs=SHARDS * ENVS, num_shards=SHARDS,
        network=NetworkConfig(hidden=(16,), features=16, **(network or {})),
        algorithm=PPOConfig(**{**BASE, **config}), non_finite=non_finite, precision=precision,
    )  # fmt: skip


def updated(config, updates=2, spoil=None, **other):
    """What both made of the same updates: parameters and all else that is equal on all ranks, and metrics."""
    spec = spec_of(other.get("action", "discrete"), other.get("image"), critic_size=other.get("critic_size"))
    run, world = run_of(config, **other), World().with_shards(SHARDS)
    with TorchComm(world, device="cpu") as torch_comm, Comm(world, device="cpu") as comm:
        theirs = torch_ppo.PPO(run, TorchPolicy(spec, run.network, seed=0), torch_comm)
        policy = Policy(spec, run.network, seed=0)
        policy.params = perturbed(theirs.policy)
        ours, found = PPO(run, policy, comm), []
        for update in range(updates):
            rollouts = [rollout_of(spec, shard, update) for shard in range(SHARDS)]
            if policy.state_size > 0:
                add_states(rollouts, policy.actor_state_size, update)
            if spoil is not None:
                spoil(update, rollouts)
            caller_sums, progress = np.array([[1.0, 2.0], [3.0, 5.0]]), Progress(10, env_steps=2 * update)
            assert ours.update(rollouts, caller_sums, progress).tolist() == [4.0, 7.0]
            assert theirs.update(rollouts, caller_sums, progress).tolist() == [4.0, 7.0]
            found.append((ours.read_metrics(), theirs.metrics.read()))
        for shard in range(SHARDS):
            mine, other = (str(one.shard_state(shard)["minibatches"]) for one in (ours, theirs))
            assert mine == other, "minibatches of later updates are not the same"
        arrays = {name: tensor.detach().numpy().copy() for name, tensor in theirs.shared_tensors().items()}
        return ours.shared_arrays(), arrays, found, comm.num_compilations


def check(ours, theirs, found, tolerance=2e-5, relative=2e-3, absolute=2e-6):
    assert ours.keys() == theirs.keys()
    for name, wanted in theirs.items():
        assert ours[name].shape == wanted.shape, name
        if not name.startswith(("optimizer.moment", "optimizer.square", "metrics")):  # in an order of each one's own
            np.testing.assert_allclose(ours[name], wanted, tolerance, tolerance, err_msg=name)
    for name in ("optimizer.moment", "optimizer.square"):
        np.testing.assert_allclose(np.sort(ours[name]), np.sort(theirs[name]), 1e-3, 10 * tolerance, err_msg=name)
    for mine, wanted in found:
        assert mine.keys() == wanted.keys()
        assert mine == pytest.approx(wanted, rel=relative, abs=absolute)


@pytest.mark.parametrize(
    "case", others_slow(CASES, "normalizers", "continuous", "gru", "observation of the critic's own")
)
def test_updates_are_those_of_torch(case):
    config, other = CASES[case]
    ours, theirs, found, compilations = updated(config, **other)
    check(ours, theirs, found)
    assert set(found[0][0]) == set(METRICS)
    assert ours["optimizer.steps"] == 2 * config.get("num_epochs", 3) * config.get("num_minibatches", 4)
    assert set(compilations.values()) == {1}, "something was compiled twice"
    assert found[-1][1]["optim/grad_norm"] > 0.1
    assert found[-1][1]["policy/clip_fraction"] > 0 or case == "clipped values"


@pytest.mark.slow  # quick for the networks, which do all that is rounded
def test_a_step_of_bfloat16_is_near():
    ours, theirs, found, _ = updated({"num_epochs": 1, "num_minibatches": 1}, updates=1, precision="bfloat16")
    # Of a gradient near 0 the backends may round to other signs, and a first step of Adam's is `learning_rate` long.
    check(ours, theirs, found, tolerance=2.05 * BASE["learning_rate"], relative=0.1, absolute=1e-3)


@pytest.mark.parametrize("stopping", others_slow([0.0003, 0.0008], 0.0008))
def test_the_early_stop_is_that_of_torch(stopping):
    config = {"target_kl": stopping, "num_epochs": 8, "learning_rate": 3e-3, "learning_rate_schedule": "adaptive"}
    ours, theirs, found, _ = updated(config, updates=1)
    check(ours, theirs, found)
    steps = int(ours["optimizer.steps"])
    assert 0 < steps < 8 * 4, "nothing was left out; the test proves little"
    assert steps % 4 == 0


@pytest.mark.parametrize("what", others_slow(["reward", "observation", "sum"], "reward"))
def test_what_is_skipped_is_that_of_torch(what):
    """A rollout with a number that is not finite, and one with a minibatch whose loss is too large."""

    def spoil(update, rollouts):
        if update == 1 and what != "sum":
            getattr(rollouts[1], what)[2, 3] = np.nan
        if update == 1 and what == "sum":
            rollouts[1].reward[2, 3] = 1e25

    config = {"normalize_return": True, "normalize_advantage": False, "gae_lambda": 0.0}
    if what == "sum":
        del config["normalize_return"]
    with np.errstate(over="ignore", invalid="ignore"):
        ours, theirs, found, _ = updated(config, updates=3, spoil=spoil, non_finite="skip")
    check(ours, theirs, found)
    assert [mine["optim/skipped"] for mine, _ in found] == [0.0, 0.25 if what == "sum" else 1.0, 0.0]


def test_values_and_advantages_are_those_of_torch():
    spec = spec_of()
    run, world = run_of({"gamma": 0.9}), World().with_shards(SHARDS)
    with TorchComm(world, device="cpu") as torch_comm, Comm(world, device="cpu") as comm:
        theirs, policy = (
            torch_ppo.PPO(run, TorchPolicy(spec, run.network, seed=0), torch_comm),
            Policy(spec, run.network),
        )
        policy.params = perturbed(theirs.policy)
        ours, rollouts = PPO(run, policy, comm), [rollout_of(spec, shard, 0) for shard in range(SHARDS)]
        assert sum(len(rollout.final) for rollout in rollouts) >= 4
        batches, _, _ = ours._builder.build(ours.state.params, rollouts, np.zeros((SHARDS, 1)))
        for rollout, batch in zip(rollouts, comm.unshard(batches), strict=True):
            wanted = theirs._builder.batch(0, rollout)
            for name in [name for name, column in batch._asdict().items() if column is not None]:
                np.testing.assert_allclose(getattr(batch, name), getattr(wanted, name), 1e-4, 1e-5, err_msg=name)


def test_every_kind_of_action_is_tried():
    assert {other.get("action", "discrete") for _, other in CASES.values()} == set(ACTIONS)
