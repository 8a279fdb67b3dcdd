"""Which policy is played, for runs that JAX trained and by JAX, without torch."""

import pytest

pytest.importorskip("jax")

from policies import (
    DQN,
    PPO,
    check_a_policy_is_said_and_chosen,
    check_ranks_share_the_episodes,
    check_the_checkpoint_is_the_file,
    run_of,
    twice,
)


@pytest.mark.parametrize("algorithm", [PPO, pytest.param(DQN, marks=pytest.mark.slow)], ids=["ppo", "dqn"])
def test_policies_of_a_run(algorithm, tmp_path, capsys):
    trained = twice(run_of("jax", algorithm), tmp_path / "my run")
    check_the_checkpoint_is_the_file(trained)
    capsys.readouterr()
    check_a_policy_is_said_and_chosen(trained, capsys)


def test_ranks_share_the_episodes(tmp_path):
    check_ranks_share_the_episodes("jax", tmp_path)
