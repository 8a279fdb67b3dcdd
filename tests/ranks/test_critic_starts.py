"""A run of torch that starts from a policy takes over the statistics that are the unit of its value network."""

import functools
from pathlib import Path

import pytest
from critic_starts import (
    GROUPS,
    check_a_file_of_an_older_version_is_told,
    check_a_run_begins_with_the_normalizers_of_its_policy,
    check_another_unit_of_values_is_refused,
    check_the_same_bits_on_any_number_of_ranks,
    run_of,
)
from running import train_all

pytest.importorskip("torch")

from lockstep.train import train

TENSORS = f"{Path(__file__).parents[1] / 'unit' / 'torch' / 'envs' / 'tensor_envs.py'}:Walk"
RUNS = {
    "host": run_of("grouped_envs:Hidden", "torch", **GROUPS),
    "device": run_of(TENSORS, "torch", **{"env.placement": "device"}),
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


@pytest.mark.parametrize("name", RUNS)
def test_a_run_begins_with_the_normalizers_of_its_policy(trained, tmp_path, capfd, name):
    check_a_run_begins_with_the_normalizers_of_its_policy(RUNS[name], trained(name), tmp_path, capfd)


def test_any_number_of_ranks_gives_the_same_bits(trained, tmp_path):
    check_the_same_bits_on_any_number_of_ranks(RUNS["host"], trained("host"), tmp_path, train_all, (1, 2, 4))


def test_a_file_of_an_older_version_is_told(trained, tmp_path, capfd):
    check_a_file_of_an_older_version_is_told(RUNS["host"], trained("host"), tmp_path, capfd)


def test_another_unit_of_values_is_refused(trained, tmp_path):
    check_another_unit_of_values_is_refused(RUNS["host"], trained("host"), tmp_path)
