"""The estimates of a policy by JAX on several ranks are of the one that rank 0 has found."""

import evaluating


def test_estimates_are_of_the_policy_of_rank_0(tmp_path):
    evaluating.check_estimates(tmp_path, "jax")
