"""From a real log to a policy that is better than the one which made it, on every seed tried, on 1 and 2 ranks.

The log is 26 episodes of CartPole, mean return 151, by a policy that leaves its own choice in one step of twenty. The
rule for its ends: an episode that ends with its 200th decision was cut by the limit and is no failure
(`--max-episode-steps 200`), although the log marks all ends alike.
"""

import json
import math
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.learning

LOG = Path(__file__).parents[3] / "shared" / "data" / "cartpole_parametric.json.bz2"
SETTINGS = ("batch_size=256", "epochs=60", "cql_alpha=0.5", "task=CartPole-v1", "env.max_episode_steps=200")


def lockstep(*words):
    done = subprocess.run([sys.executable, "-m", "lockstep.cli", *words], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    if not LOG.is_file():
        pytest.skip(f"needs {LOG}")
    path = tmp_path_factory.mktemp("prepared") / "data"
    lockstep("offline", "prepare", str(LOG), "--out", str(path), "--max-episode-steps", "200")
    return path


def lower_bound(data, run_dir, ranks, seed):
    """Of the mean return in the simulator, by 100 episodes, with 95 % confidence."""
    words = [word for setting in SETTINGS for word in ("--set", setting)]
    where = ("--ranks", str(ranks), "--seed", str(seed), "--run-dir", str(run_dir))
    lockstep("offline", "train", str(data), "--algo", "parametric_dqn", *words, *where)
    returns = json.loads((run_dir / "evaluations.jsonl").read_text().splitlines()[-1])["returns"]
    assert len(returns) == 100
    return statistics.mean(returns) - 1.96 * statistics.stdev(returns) / math.sqrt(len(returns))


@pytest.mark.parametrize("ranks", [1, 2])
def test_parametric_dqn_beats_the_policy_that_made_the_log(data, tmp_path, ranks):
    bounds = [lower_bound(data, tmp_path / str(seed), ranks, seed) for seed in range(5)]
    assert sum(bound > 151 for bound in bounds) >= 4, bounds
