"""For the tests of this folder: networks of hosts, ended with the test that made them, and what runs must come to."""

import functools

import pytest

pytest.register_assert_rewrite("network", "small_runs")

from network import network  # noqa: E402, F401  # a fixture
from small_runs import alone  # noqa: E402


@pytest.fixture(scope="session")
def one_host(tmp_path_factory):
    """`one_host("cartpole", total_steps=...)`: the run directory of that training in one process, made once."""

    @functools.cache
    def make(*what, **changes):
        return alone(tmp_path_factory.mktemp("one_host") / "run", *what, **changes)

    return make
