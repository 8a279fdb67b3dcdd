"""DQN in JAX takes the gradient steps that DQN in torch takes: from the same parameters, on the same transitions.

Two shards with unequal rewards live on one rank. Each backend fills replays of its own by the same rollouts and draws
from them by the same streams, so that all that an update does is compared: returns over n steps, probabilities and
weights, targets, losses, gradients, clipping, Adam, the target network, priorities and metrics.
"""

from dataclasses import replace

import numpy as np
import pytest

from quick import others_slow

pytest.importorskip("torch")
pytest.importorskip("jax")

from test_dqn_oracle import BASE, ENVS, SEED, SHARDS, SPEC, STEPS, VARIANTS, rollouts

from lockstep.algorithms.dqn import DQNConfig
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.experience.rollout import Rollout
from lockstep.jax.comm import Comm as JaxComm
from lockstep.jax.dqn import DQN as JaxDQN  # noqa: N811
from lockstep.jax.q_networks import QPolicy as JaxQPolicy
from lockstep.record.progress import Progress
from lockstep.run import NetworkConfig, Run
from lockstep.torch.comm import Comm
from lockstep.torch.dqn import DQN
from lockstep.torch.q_networks import QPolicy
from lockstep.world import World

MORE = {
    "dueling": {"dueling": True},
    "noisy": {"noisy": True, "dueling": True},
    "many steps": {"updates_per_step": 8 / (STEPS * ENVS * SHARDS), "prioritized": True, "max_grad_norm": 0.5},
    "double": {"double": True, "updates_per_step": 16 / (STEPS * ENVS * SHARDS), "target_update_every": 100},
    "falling rate": {"learning_rate_schedule": "linear", "n_step": 3},
}
PICTURES = EnvSpec(36 * 36 * 2, ActionSpec("discrete", (3,)), "same_step", True, image=(2, 36, 36))


def run_of(config: DQNConfig, **changes) -> Run:
    base = {"network": NetworkConfig(hidden=(8, 5)), "seed": SEED, "num_envs": SHARDS * ENVS}
    return Run(task="any", algo="dqn", algorithm=config, **{**base, **changes})


def both(run, spec, comms):
    """The two learners, from the parameters of torch's."""
    policy = QPolicy(spec, run.network, run.algorithm, seed=1)
    mirror = JaxQPolicy(spec, run.network, run.algorithm, seed=2)
    mirror.params = {name: value.numpy().copy() for name, value in policy.state_dict().items()}
    return DQN(run, policy, comms[0]), JaxDQN(run, mirror, comms[1])


def compare(dqn, mirror, before):
    """Parameters to 2e-5, metrics to 2e-3 of themselves, priorities of what was drawn."""
    found, wanted = mirror.shared_arrays(), {name: t.numpy() for name, t in dqn.shared_tensors().items()}
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        if name.startswith(("policy.", "target.", "counters", "learning_rate")):
            np.testing.assert_allclose(found[name], value, rtol=0, atol=2e-5, err_msg=name)
    moved = [name for name, value in wanted.items() if name.startswith("policy.") and (value != before[name]).any()]
    assert moved, "nothing was learned, and nothing is proved"
    told, other = dqn.metrics.read(), mirror.metrics.read()
    assert told.keys() == other.keys() and "loss/value" in told
    for name, value in told.items():
        assert other[name] == pytest.approx(value, rel=2e-3), name
    for one, two in zip(dqn.replays.buffers, mirror.replays.buffers, strict=True):
        if dqn.config.prioritized:
            np.testing.assert_allclose(two.state()["priority"], one.state()["priority"], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("variant", others_slow([*VARIANTS, *MORE], "rainbow", "plain"))
def test_updates_are_those_of_torch(variant):
    run = run_of(replace(BASE, **{**VARIANTS, **MORE}[variant]))
    world, progress = World().with_shards(SHARDS), Progress(SHARDS * ENVS * STEPS * 10)
    with Comm(world, device="cpu") as comm, JaxComm(world, device="cpu") as other:
        dqn, mirror = both(run, SPEC, (comm, other))
        for number in range(4):
            before = {name: tensor.numpy().copy() for name, tensor in dqn.shared_tensors().items()}
            told = [one.update(rollouts(number), np.ones((SHARDS, 2)), progress) for one in (dqn, mirror)]
            assert told[0].tolist() == told[1].tolist() == [2.0, 2.0]
            compare(dqn, mirror, before)
            progress.env_steps += SHARDS * ENVS * STEPS
            progress.updates += 1
        assert set(other.num_compilations.values()) == {1}, "a step was compiled twice"


def pictures(number):
    """A rollout of images for each shard."""
    made = []
    for shard in range(SHARDS):
        draw = np.random.default_rng([number, shard])
        seen = draw.integers(0, 256, (STEPS + 1, ENVS, *PICTURES.observation_shape), dtype=np.uint8)
        ended = draw.random((STEPS, ENVS)) < 0.15
        reward, weight = draw.standard_normal((STEPS, ENVS)).astype(np.float32), np.ones((STEPS, ENVS), np.float32)
        made.append(Rollout(seen, draw.integers(0, 3, (STEPS, ENVS)), reward, ended, ended.copy(), weight, []))
    return made


@pytest.mark.parametrize("encoder", others_slow(["nature", "small", "mlp"], "small"))
def test_updates_on_images_are_those_of_torch(encoder):
    # A gradient of nearly nothing is mostly rounding, which Adam would blow up to a whole step.
    config = replace(
        BASE,
        dueling=True,
        n_step=3,
        prioritized=True,
        value_distribution="categorical",
        adam_eps=1e-5,
        learning_rate=1e-3,
    )
    run = run_of(config, network=NetworkConfig(encoder=encoder, features=16, hidden=(16,)))
    world, progress = World().with_shards(SHARDS), Progress(SHARDS * ENVS * STEPS * 10)
    with Comm(world, device="cpu") as comm, JaxComm(world, device="cpu") as other:
        dqn, mirror = both(run, PICTURES, (comm, other))
        for number in range(2):
            before = {name: tensor.numpy().copy() for name, tensor in dqn.shared_tensors().items()}
            for one in (dqn, mirror):
                one.update(pictures(number), np.ones((SHARDS, 1)), progress)
            compare(dqn, mirror, before)
            progress.env_steps += SHARDS * ENVS * STEPS
