"""SAC and TD3 in JAX learn Pendulum within 12 000 steps, on 2 ranks."""

from dataclasses import replace

import pytest

pytest.importorskip("jax")

from lockstep.algorithms.td3 import TD3Config
from lockstep.recipes import pendulum_sac
from lockstep.run import override
from lockstep.train import train

pytestmark = pytest.mark.learning

SAC = override(pendulum_sac.recipe(), {"ml_framework": "jax", "num_shards": 2})
TD3 = replace(SAC, algo="td3", algorithm=TD3Config(learning_rate=1e-3, learning_starts=1_000, capacity=12_000))


@pytest.mark.parametrize("run", [SAC, TD3], ids=["sac", "td3"])
def test_pendulum_is_learned(tmp_path, run):
    summary = train(run, ranks=2, run_dir=tmp_path / "run")
    assert summary["eval_return_mean"] >= -200.0
    assert summary["ml_framework"] == "jax"
    assert len({rank["params_fingerprint"] for rank in summary["ranks"]}) == 1
