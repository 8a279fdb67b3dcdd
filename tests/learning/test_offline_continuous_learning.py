"""From the log of a half-trained policy of continuous actions to one that is as good as the log's best episodes."""

import importlib.util
import statistics
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.learning
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def offline_continuous():
    spec = importlib.util.spec_from_file_location("offline_continuous", BENCHMARKS / "offline_continuous.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["offline_continuous"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pendulum(offline_continuous, tmp_path_factory):
    """The folder of a log, and the returns of its episodes, the best first."""
    folder = tmp_path_factory.mktemp("pendulum")
    return folder, offline_continuous.write_log(folder, "Pendulum-v1", seed=0)


@pytest.mark.parametrize("algo", ["iql", "td3_bc", "cql"])
def test_pendulum_is_learned_as_well_as_the_best_tenth_of_the_log(offline_continuous, pendulum, algo):
    folder, returns = pendulum
    best = statistics.mean(returns[: len(returns) // 10])
    assert statistics.mean(returns) < best - 100, "the log has no worse episodes"
    summary = offline_continuous.learn(folder, "Pendulum-v1", 0, algo, [])
    assert summary["eval_return_mean"] >= best
