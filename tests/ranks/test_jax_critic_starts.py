"""A run of JAX that starts from a policy takes over the statistics that are the unit of its value network."""

import functools

import pytest

pytest.importorskip("jax")

from critic_starts import (
    GROUPS,
    check_a_file_of_an_older_version_is_told,
    check_a_run_begins_with_the_normalizers_of_its_policy,
    check_another_unit_of_values_is_refused,
    check_the_same_bits_on_any_number_of_ranks,
    run_of,
)
from jax_running import train_all

from lockstep.train import train
from quick import others_slow

RUNS = {
    "host": run_of("grouped_envs:Hidden", "jax", **GROUPS),
    "device": run_of("device_envs:GroupedDrift", "jax"),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Returns the directory of an ended run, by its name."""
    folder = tmp_path_factory.mktemp("ended")

    @functools.cache
    def path_of(name):
        train(RUNS[name], run_dir=folder / name)
        return folder / name

    return path_of


@pytest.mark.parametrize("name", others_slow(RUNS, "host"))  # on the device each of three runs is compiled
def test_a_run_begins_with_the_normalizers_of_its_policy(trained, tmp_path, capfd, name):
    check_a_run_begins_with_the_normalizers_of_its_policy(RUNS[name], trained(name), tmp_path, capfd)


@pytest.mark.slow
def test_any_number_of_ranks_gives_the_same_bits(trained, tmp_path):
    check_the_same_bits_on_any_number_of_ranks(RUNS["host"], trained("host"), tmp_path, train_all, (1, 2))


def test_a_file_of_an_older_version_is_told(trained, tmp_path, capfd):
    check_a_file_of_an_older_version_is_told(RUNS["host"], trained("host"), tmp_path, capfd)


def test_another_unit_of_values_is_refused(trained, tmp_path):
    check_another_unit_of_values_is_refused(RUNS["host"], trained("host"), tmp_path)
