"""The scorer of a run in JAX: compiled once for all estimates, always with the newest parameters."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

import made_data
from lockstep.algorithms.offline import OfflineDQNConfig
from lockstep.algorithms.offline_continuous import IQLConfig
from lockstep.data.dataset import Dataset
from lockstep.jax.offline.session import LoggedJax
from lockstep.jax.scoring.logged_policy import policy_of
from lockstep.run import OfflineRun
from logged_policies import SMALL, spec_for


@pytest.mark.parametrize("algo", ["dqn", "iql"])
def test_estimates_of_a_run_compile_once_and_follow_the_parameters(tmp_path, algo):
    make, config = {
        "dqn": (made_data.discrete, OfflineDQNConfig(policy="softmax")),
        "iql": (made_data.continuous, IQLConfig(policy="sampled")),
    }[algo]
    data = Dataset.open(make(tmp_path / "data", rows=50))
    run = OfflineRun(data=str(tmp_path / "data"), algo=algo, algorithm=config, network=SMALL, ml_framework="jax")
    policy = policy_of(spec_for(run, data))
    backend, comm = LoggedJax(), SimpleNamespace(devices=jax.devices("cpu"))
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
