"""Learning from logged data in JAX takes the gradient steps of torch: from the same parameters, on the same rows.

Two shards live on one rank, the second of which is partly padding. Losses, targets, gradients, clipping, the optimizer,
target networks and metrics are compared; then the estimates that the learned policies get from the log.
"""

import json
from dataclasses import replace

import numpy as np
import pytest

from quick import others_slow

pytest.importorskip("torch")
pytest.importorskip("jax")

import made_data
from lockstep.algorithms.offline import OfflineDQNConfig
from lockstep.algorithms.offline_continuous import IQLConfig
from lockstep.data.dataset import Dataset
from lockstep.jax.comm import Comm as JaxComm
from lockstep.jax.offline.dqn import OfflineDQN as JaxOfflineDQN
from lockstep.jax.offline.iql import IQL as JaxIQL  # noqa: N811
from lockstep.jax.offline.scorer import PolicyScorer as JaxScorer
from lockstep.jax.scoring.offline_policy import offline_policy_from_file as jax_from_file
from lockstep.jax.scoring.offline_policy import policy_of as jax_policy_of
from lockstep.jax.scoring.offline_policy import save_offline_policy as jax_save
from lockstep.record.progress import Progress
from lockstep.run import OfflineRun
from lockstep.session import policy_file
from lockstep.session.offline.estimate import estimate
from lockstep.torch.comm import Comm
from lockstep.torch.offline.dqn import OfflineDQN
from lockstep.torch.offline.iql import IQL
from lockstep.torch.offline.scorer import PolicyScorer
from lockstep.torch.scoring.offline_policy import offline_policy_from_file
from lockstep.world import World
from offline_policies import SMALL, part, policy_for, spec_for

ROWS, STEPS = 16, 6
DQN = OfflineDQNConfig(batch_size=2 * ROWS, target_rate=0.3, gamma=0.9, learning_rate=0.003)
IQL_CONFIG = IQLConfig(batch_size=2 * ROWS, target_rate=0.3, gamma=0.9, learning_rate=0.003)
VARIANTS = {
    "dqn": DQN,
    "dqn bcq": replace(DQN, bcq_threshold=0.3, dueling=True, max_grad_norm=0.1, loss="huber"),
    "dqn n-step": replace(
        DQN, n_step=3, policy="softmax", cql_alpha=0.5, double=False, learning_rate_schedule="linear"
    ),
    "dqn sarsa": replace(DQN, maxq=False, optimizer="sgd", l2_decay=0.05, cql_alpha=0.5, max_grad_norm=0.1),
    "dqn boost": replace(DQN, reward_boost={"1": 0.5}, use_time_diff=True, time_diff_unit=2.0, estimate=False),
    "dqn bce": replace(DQN, loss="bce", gamma=0.0),
    "iql": replace(IQL_CONFIG, policy="sampled", l2_decay=0.05, max_grad_norm=0.5),
    "iql greedy": replace(IQL_CONFIG, reward_scale=0.1, num_critics=3, expectile=0.9),
    "iql alone": replace(IQL_CONFIG, estimate=False, learning_rate_schedule="exponential", learning_rate_decay=0.5),
}


def made(folder, name) -> Dataset:
    make = made_data.continuous if name.startswith("iql") else made_data.discrete
    return Dataset.open(make(folder / "data", 100))


def both(run, dataset, comms):
    """The two learners, from the parameters of torch's."""
    policy, mirror = policy_for(run, dataset, 1), jax_policy_of(spec_for(run, dataset), 2)
    assert {n: tuple(p.shape) for n, p in policy.state_dict().items()} == {n: p.shape for n, p in mirror.params.items()}
    mirror.params = {name: value.numpy().copy() for name, value in policy.state_dict().items()}
    if run.algo == "iql":
        return IQL(run, policy, comms[0]), JaxIQL(run, mirror, comms[1])
    return OfflineDQN(run, policy, comms[0], dataset.rows), JaxOfflineDQN(run, mirror, comms[1], dataset.rows)


@pytest.mark.parametrize("name", others_slow(VARIANTS, "dqn", "iql"))
def test_updates_and_estimates_are_those_of_torch(name, tmp_path):
    config, dataset = VARIANTS[name], made(tmp_path, name)
    run = OfflineRun(data="any", algo=name.split()[0], algorithm=config, network=SMALL, seed=3)
    world, generator = World().with_shards(2), np.random.default_rng(0)
    window = {"n_step": config.n_step, "gamma": config.gamma} if isinstance(config, OfflineDQNConfig) else {}
    with Comm(world, device="cpu") as comm, JaxComm(world, device="cpu") as other:
        learner, mirror = both(run, dataset, (comm, other))
        before = {name: value.numpy().copy() for name, value in learner.policy.state_dict().items()}
        progress = Progress(STEPS * 2 * ROWS)
        for _ in range(STEPS):
            parts = [part(dataset, generator.integers(100, size=ROWS), padding, **window) for padding in (0, 5)]
            extra = np.array([[1.0, 2.0], [3.0, 4.0]])
            assert learner.update(parts, extra, progress).tolist() == [4.0, 6.0]
            assert mirror.update(parts, extra, progress).tolist() == [4.0, 6.0]
            progress.env_steps += 2 * ROWS - 5
        for key, value in learner.policy.state_dict().items():
            np.testing.assert_allclose(mirror.policy.params[key], value, rtol=0, atol=1e-5, err_msg=key)
        moved = [key for key, value in learner.policy.state_dict().items() if (value.numpy() != before[key]).any()]
        assert len(moved) == len(before), "a network learned nothing"
        wanted, found = targets_of_torch(learner), mirror.shared_arrays()
        assert wanted.keys() == {key for key in found if key.startswith("target.")}
        for key, value in wanted.items():
            np.testing.assert_allclose(found[key], value, rtol=0, atol=1e-5, err_msg=key)
        metrics, others = learner.metrics.read(), mirror.metrics.read()
        assert metrics.keys() == others.keys()
        for key, value in metrics.items():
            assert others[key] == pytest.approx(value, rel=2e-3, abs=1e-5), key
        if config.estimate:
            compare_estimates(learner, mirror, dataset, (comm, other), run)
    check_files(learner.policy, mirror.policy, tmp_path)


def targets_of_torch(learner):
    """Target parameters by the name of the parameter that each follows: both lie at the same place of their tensor."""
    name_at = {p.storage_offset(): name for name, p in learner.policy.named_parameters()}
    targets = [p for network in learner.target.networks for p in network.parameters()]
    return {f"target.{name_at[p.storage_offset()]}": p.numpy() for p in targets}


def compare_estimates(learner, mirror, dataset, comms, run):
    """Every number that estimates report, to a thousandth."""
    scorers = PolicyScorer(learner.policy, run), JaxScorer(mirror.policy, run, comms[1].devices[0])
    one, two = (estimate(s, dataset, c, run).to_dict() for s, c in zip(scorers, comms, strict=True))
    assert numbers(one).keys() == numbers(two).keys() and len(numbers(one)) > 20
    for key, value in numbers(one).items():
        assert numbers(two)[key] == pytest.approx(value, rel=2e-3, abs=2e-4), key


def numbers(tree, name=""):
    """All numbers of a tree by their place."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    if isinstance(tree, float):
        return {name: tree}
    return {key: value for one, below in items for key, value in numbers(below, f"{name}/{one}").items()}


def check_files(policy, mirror, folder):
    """Each backend reads the policy file of the other."""
    jax_save(folder / "of_jax.safetensors", mirror)
    metadata, arrays = policy_file.read(folder / "of_jax.safetensors")
    import torch

    read = offline_policy_from_file(folder, metadata, {name: torch.from_numpy(array) for name, array in arrays.items()})
    for name, value in read.state_dict().items():
        assert np.array_equal(value.numpy(), mirror.params[name])
    assert json.dumps(metadata) == json.dumps(json.loads(json.dumps(policy.policy_spec.to_dict())))
    again = jax_from_file(folder, metadata, {name: p.numpy() for name, p in policy.state_dict().items()})
    assert again.policy_spec == mirror.policy_spec
