"""The scorer of a run in JAX: compiled once for all estimates, always with the newest parameters."""

import math
from dataclasses import replace
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import made_data
from lockstep.algorithms.offline import OfflineDQNConfig
from lockstep.algorithms.offline_continuous import IQLConfig
from lockstep.data.dataset import Dataset
from lockstep.data.features import Features
from lockstep.experience.sampling import ClippedGaussian
from lockstep.jax.offline.scorer import PolicyScorer
from lockstep.jax.offline.session import OfflineJax
from lockstep.jax.scoring.offline_policy import policy_of
from lockstep.run import OfflineRun
from lockstep.session.offline.policy_spec import as_prepared
from offline_policies import SMALL, spec_for


@pytest.mark.parametrize("algo", ["dqn", "iql"])
def test_estimates_of_a_run_compile_once_and_follow_the_parameters(tmp_path, algo):
    make, config = {
        "dqn": (made_data.discrete, OfflineDQNConfig(policy="softmax")),
        "iql": (made_data.continuous, IQLConfig(policy="sampled")),
    }[algo]
    data = Dataset.open(make(tmp_path / "data", rows=50))
    run = OfflineRun(data=str(tmp_path / "data"), algo=algo, algorithm=config, network=SMALL, ml_framework="jax")
    policy = policy_of(spec_for(run, data))
    backend, comm = OfflineJax(), SimpleNamespace(devices=jax.devices("cpu"))
    traced, outcomes = [], policy.outcomes
    policy.outcomes = lambda *inputs: traced.append(0) or outcomes(*inputs)  # Python runs only to compile
    rows, none = data.rows(np.arange(50)), np.zeros(0, np.int64)
    first = backend.scorer(policy, run, comm).score(rows, with_ratio=True, unlogged=none)
    once = len(traced)
    policy.params = {name: 2 * value for name, value in policy.params.items()}
    second = backend.scorer(policy, run, comm).score(rows, with_ratio=True, unlogged=none)
    assert len(traced) == once > 0
    assert (first.ratio != second.ratio).any(), "the parameters of the first estimate"
    other = policy_of(spec_for(run, data), seed=1)
    assert backend.scorer(other, run, comm).policy is other


@pytest.mark.parametrize("bounds", [(-1.0, 1.0), (0.2, 1.5), (9.7, 10.1), (100.1, 101.3)])
def test_clipped_actions_are_at_the_bound_however_coarse_float32_is_there(tmp_path, bounds):
    """They count as the probability of being clipped there."""
    data = Dataset.open(made_data.continuous(tmp_path / "data", rows=50, action_size=1))
    run = OfflineRun(
        data=str(tmp_path / "data"),
        algo="iql",
        algorithm=IQLConfig(policy="sampled"),
        network=SMALL,
        ml_framework="jax",
    )
    about = spec_for(run, data)
    low, high = bounds
    features = {key: replace(each, min_value=low, max_value=high) for key, each in about.action.items()}
    about = replace(about, action=Features(features))
    scorer = PolicyScorer(policy_of(about), run, jax.devices("cpu")[0])
    parameters, noise = np.array([[0.2, -1.0]] * 2, np.float32), np.array([[9.0], [-9.0]], np.float32)
    executed = ClippedGaussian(about.action_spec, deterministic=False).sample(parameters, noise)
    scaled = as_prepared(executed, about.action_spec)
    found = scorer._log_density(*np.split(parameters.astype(np.float64), 2, -1), scaled)
    wanted = [math.log(math.erfc(distance / math.exp(-1.0) / math.sqrt(2)) / 2) for distance in (0.8, 1.2)]
    assert found == pytest.approx(wanted, abs=0.01)
