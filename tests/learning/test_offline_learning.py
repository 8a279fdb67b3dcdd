"""A policy that is better than the one in the log is learned from the log alone. Minutes: `make test-learning`."""

import importlib.util
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.learning
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def offline_learning():
    spec = importlib.util.spec_from_file_location("offline_learning", BENCHMARKS / "offline_learning.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["offline_learning"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("ranks", [1, 2])
def test_cartpole_is_learned_from_a_mediocre_log(offline_learning, tmp_path, ranks):
    returns = []
    for seed in range(5):
        lengths, summary = offline_learning.learn(tmp_path, seed, ranks, "dqn", [])
        assert len(lengths) == 100
        assert 30 <= sum(lengths) / 100 <= 80, "the log is not that of a mediocre policy"
        returns.append(summary["eval_return_mean"])
    assert sum(mean >= 190 for mean in returns) >= 4, returns


def test_a_clone_is_no_better_than_the_log(offline_learning, tmp_path):
    """So what Q-learning found was not the mode of what is there."""
    lengths, summary = offline_learning.learn(tmp_path, 0, 1, "bc", ["epochs=50"])
    assert summary["eval_return_mean"] < 1.5 * sum(lengths) / 100 < 80
