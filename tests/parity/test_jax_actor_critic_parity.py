"""SAC and TD3 in JAX take the gradient steps that they take in torch: same parameters, transitions and noise.

Two shards with unequal rewards are on one rank. Each backend fills its own replay buffers with the same rollouts and
draws from them by the same streams, so that whole updates are compared. Each framework draws dropout masks with its own
generators, so torch gets those of JAX here.
"""

from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest

from quick import others_slow

pytest.importorskip("torch")
pytest.importorskip("jax")

import jax
import torch

from lockstep.algorithms.sac import SACConfig
from lockstep.algorithms.td3 import TD3Config
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.experience.rollout import Rollout
from lockstep.jax.comm import Comm as JaxComm
from lockstep.jax.continuous_policy import ContinuousPolicy as JaxPolicy
from lockstep.record.progress import Progress
from lockstep.run import NetworkConfig, Run
from lockstep.torch.comm import Comm
from lockstep.torch.continuous_policy import ContinuousPolicy, Critics
from lockstep.world import World

SIZE, WIDTH, ENVS, STEPS, SHARDS, SEED = 4, 2, 2, 12, 2, 7
SPEC = EnvSpec(SIZE, ActionSpec("continuous", (WIDTH,), (-2.0, 0.5), (2.0, 3.5)), "same_step", True)
BASE = {
    "num_steps": STEPS, "batch_size": 16, "capacity": 400, "learning_starts": 0,
    "updates_per_step": 2 / (STEPS * ENVS * SHARDS), "learning_rate": 0.01, "gamma": 0.9, "target_rate": 0.1,
}  # fmt: skip
VARIANTS = {
    "plain": {},
    "all": {
        "prioritized": True, "n_step": 3, "num_critics": 3, "target_critics": 2, "layer_norm": True,
        "max_grad_norm": 0.5, "policy_delay": 2, "learning_rate_schedule": "linear", "critic_learning_rate": 0.02,
        "adam_eps": 1e-3, "policy_average": 0.5,
    },
    "one critic": {"num_critics": 1, "policy_delay": 1},
    "layer norm": {"layer_norm": True, "max_grad_norm": 0.1},
    "droq": {"layer_norm": True, "dropout": 0.3, "num_critics": 3, "target_critics": 2, "policy_delay": 2},
}  # fmt: skip
OWN = {
    "sac": {"fixed temperature": {"alpha": 0.2}, "target entropy": {"target_entropy": -0.5, "initial_alpha": 0.1}},
    "td3": {"no smoothing": {"target_noise": 0.0}, "often clipped": {"noise_clip": 0.1}},
}
CASES = [(algo, name) for algo in OWN for name in (*VARIANTS, *OWN[algo])]


def rollouts(number):
    """Steps of both shards with ends of both kinds; those of number + 1 continue those of number."""
    made = []
    for shard in range(SHARDS):
        random = np.random.default_rng([number, shard])
        first = np.random.default_rng([number - 1, shard]).normal(size=(ENVS, SIZE)) if number else None
        last = random.normal(size=(ENVS, SIZE))  # drawn first, so that the next rollout can draw it again
        observation = random.normal(size=(STEPS + 1, ENVS, SIZE))
        observation[0], observation[-1] = observation[0] if first is None else first, last
        terminated, truncated = random.random((2, STEPS, ENVS)) < 0.12
        rows = [(t, np.flatnonzero(truncated[t] & ~terminated[t])) for t in range(STEPS)]
        final = [(t, env, random.normal(size=(len(env), SIZE)).astype(np.float32)) for t, env in rows if len(env)]
        reward = (random.normal(size=(STEPS, ENVS)) * (1 + 3 * shard)).astype(np.float32)
        action = random.uniform(SPEC.action.low, SPEC.action.high, (STEPS, ENVS, WIDTH)).astype(np.float32)
        ended, weight = terminated | truncated, np.ones((STEPS, ENVS), np.float32)
        made.append(Rollout(observation.astype(np.float32), action, reward, terminated, ended, weight, final))
    return made


def both(algo, config, comms):
    """The learners of both backends, from the parameters of torch's."""
    network = NetworkConfig(hidden=(8, 5), critic_hidden=(7, 6), activation="tanh" if config.layer_norm else "relu")
    run = Run(task="any", algo=algo, algorithm=config, network=network, seed=SEED, num_envs=SHARDS * ENVS)
    policy, mirror = ContinuousPolicy(SPEC, network, config, seed=1), JaxPolicy(SPEC, network, config, seed=2)
    mirror.params = {name: value.numpy().copy() for name, value in policy.state_dict().items()}
    learners = [getattr(import_module(f"lockstep.{name}.{algo}"), algo.upper()) for name in ("torch", "jax")]
    return learners[0](run, policy, comms[0]), learners[1](run, mirror, comms[1])


def give_masks_of_jax(learner, monkeypatch):
    """Let the three critics of torch's learner draw the masks that JAX draws from the same seed of a part."""
    target = learner.target.critics if isinstance(learner.config, TD3Config) else learner.target
    calls: dict[int, int] = {}

    def dropout_mask(critics, x):
        use = [one is critics for one in (target, learner.policy.critics, learner.frozen_critics)].index(True)
        layer = calls.get(use, 0) % len(critics.norms)
        calls[use] = calls.get(use, 0) + 1
        key = jax.random.split(jax.random.key(np.uint32(critics.generator.initial_seed())), 3)[use]
        mask = jax.random.bernoulli(jax.random.fold_in(key, layer), 1 - critics.dropout, x.shape)
        return torch.from_numpy(np.array(mask))

    monkeypatch.setattr(Critics, "dropout_mask", dropout_mask)


def moments(learner, mirror):
    """Adam's first moments of both backends by parameter: after one step a tenth of the gradient."""
    of_torch = {}
    optimizers = {"policy": learner.actor_adam, "critic": learner.critic_adam}
    flat = {name: optimizer.state()["moment"].numpy() for name, optimizer in optimizers.items()}
    offsets = dict.fromkeys(flat, 0)
    for name, parameter in learner.policy.named_parameters():
        kind, size = "critic" if name.startswith("critics.") else "policy", parameter.numel()
        of_torch[name] = flat[kind][offsets[kind] : offsets[kind] + size].reshape(parameter.shape)
        offsets[kind] += size
    state = mirror.comm.read(mirror.state)
    found = mirror.flat_actor.split(state.actor_optimizer.moment)
    critics = mirror.flat_critics.split(state.critic_optimizer.moment)
    return of_torch, {**found, **{f"critics.{name}": value for name, value in critics.items()}}


@pytest.mark.parametrize(
    ("algo", "variant"), others_slow(CASES, ("sac", "all"), ("sac", "droq"), ("td3", "all"), several=True)
)
def test_updates_equal_those_of_torch(algo, variant, monkeypatch):
    base = {"sac": SACConfig, "td3": TD3Config}[algo](**BASE)
    config = replace(base, **{**VARIANTS, **OWN[algo]}[variant])
    world, progress = World().with_shards(SHARDS), Progress(SHARDS * ENVS * STEPS * 10)
    with Comm(world, device="cpu") as comm, JaxComm(world, device="cpu") as other:
        learner, mirror = both(algo, config, (comm, other))
        if config.dropout:
            give_masks_of_jax(learner, monkeypatch)
        before = {name: tensor.numpy().copy() for name, tensor in learner.shared_tensors().items()}
        for number in range(4):
            for one in (learner, mirror):
                assert one.update(rollouts(number), np.ones((SHARDS, 2)), progress).tolist() == [2.0, 2.0]
            expected, gradients = moments(learner, mirror)
            assert gradients.keys() == expected.keys()
            for name, gradient in expected.items():
                np.testing.assert_allclose(gradients[name], gradient, rtol=1e-3, atol=1e-5, err_msg=name)
            check(learner, mirror)
            progress.env_steps += SHARDS * ENVS * STEPS
            progress.updates += 1
        after = learner.shared_tensors()
        still = [
            n
            for n in before
            if n.startswith(("policy.", "learned.", "target.")) and (after[n].numpy() == before[n]).all()
        ]
        assert not still, f"the test proves nothing: {still} did not change"
        assert set(other.num_compilations.values()) == {1}, "a step was compiled twice"


def check(learner, mirror):
    """Parameters to 1e-5, metrics to 1e-3 relatively, priorities."""
    found, expected = mirror.shared_arrays(), {name: t.numpy() for name, t in learner.shared_tensors().items()}
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if name.startswith(("policy.", "learned.", "target.", "counters", "learning_rates")):
            np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-5, err_msg=name)
    metrics, others = learner.metrics.read(), mirror.metrics.read()
    assert metrics.keys() == others.keys() >= {"loss/value", "loss/policy"}
    for name, value in metrics.items():
        assert others[name] == pytest.approx(value, rel=1e-3, abs=1e-5), name
    for one, two in zip(learner.replays.buffers, mirror.replays.buffers, strict=True):
        if learner.config.prioritized:
            np.testing.assert_allclose(two.state()["priority"], one.state()["priority"], rtol=1e-3, atol=1e-5)
