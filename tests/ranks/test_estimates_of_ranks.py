"""Estimates are the same on any number of ranks, and from parts of a log on several machines as from the whole."""

import estimating
import numpy as np
import pytest

import made_data
from lockstep import spawn
from lockstep.launch.rank_environment import free_port

ROWS = 900


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """By name the data of each machine."""
    root = tmp_path_factory.mktemp("data")
    columns = made_data.discrete_columns(ROWS, metrics=2)
    whole = str(made_data.write(root / "whole", columns))
    candidates = str(made_data.parametric(root / "candidates", ROWS))
    middle = int(np.flatnonzero(columns["sequence_number"] == 0)[30])
    parts = []
    for name, rows in (("first", slice(0, middle)), ("second", slice(middle, ROWS))):
        part = {key: column[rows] for key, column in columns.items()}
        part["trajectory"] = part["trajectory"] - part["trajectory"][0]
        parts.append(str(made_data.write(root / name, part)))
    return {"one machine": [whole], "candidates": [candidates], "copies": [whole, whole], "parts": parts}


@pytest.fixture(scope="module")
def alone(paths):
    one = {name: listed for name, listed in paths.items() if len(listed) == 1}
    return spawn(estimating.judged, 1, (dict.fromkeys(one, 0), one), timeout_s=180)[0]


@pytest.fixture(scope="module", params=[2, 4])
def together(request, paths):
    ports = {name: free_port() for name in paths}
    return spawn(estimating.judged, request.param, (ports, paths), timeout_s=180)


def test_all_ranks_are_told_the_same(together):
    for rank in together[1:]:
        assert rank == together[0]


@pytest.mark.parametrize("name", ["one machine", "candidates"])
def test_the_same_bits_as_alone(together, alone, name):
    assert together[0][name] == alone[name], "estimates depend on the number of ranks"


def test_machines_with_copies_are_one_log(together, alone):
    found, expected = dict(together[0]["copies"]), dict(alone["one machine"])
    assert found == expected


def test_machines_with_parts_are_one_log(together, alone):
    found, expected = together[0]["parts"], alone["one machine"]
    assert (found["num_rows"], found["num_trajectories"]) == (ROWS, expected["num_trajectories"])
    for column, told in expected["estimates"].items():
        for name, one in told.items():
            for key, value in one.items():
                close = value if value is None else pytest.approx(value, rel=1e-4)
                assert found["estimates"][column][name][key] == close, (column, name, key)
