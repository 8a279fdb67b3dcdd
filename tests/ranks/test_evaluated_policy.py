"""All ranks evaluate the policy that rank 0 has found: a run that trains writes checkpoints while they look for one."""

import evaluating
import pytest
from running import small

from lockstep import spawn, train

STEPS = [512, 2560]


@pytest.fixture(scope="module")
def played_run(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("played") / "run"
    train(small("CartPole-v1", num_shards=2, checkpoint_every=512, num_checkpoints=8), run_dir=run_dir)
    return str(run_dir)


def test_episodes_are_played_by_the_policy_of_rank_0(played_run):
    first, last = (evaluating.played(0, played_run, [step], "torch") for step in STEPS)
    mixed = spawn(evaluating.played, 2, (played_run, STEPS, "torch"), timeout_s=120)[0]
    assert first != last
    assert mixed == first


def test_estimates_are_of_the_policy_of_rank_0(tmp_path):
    evaluating.check_estimates(tmp_path, "torch")
