"""Reading prepared data on real ranks (seam 10): equal numbers of batches, and every row once per epoch."""

import numpy as np
import offline_reading
import pytest

import made_data
from lockstep import spawn
from lockstep.data.dataset import Dataset
from lockstep.launch.rank_environment import free_port

ROWS, PART = 1003, 730


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What 1 and 2 ranks read, by the name of the job."""
    folder = tmp_path_factory.mktemp("offline_reader")
    columns = made_data.discrete_columns(ROWS)
    columns |= {"continues": np.zeros(ROWS, np.uint8), "trajectory": np.arange(ROWS)}

    def part(name, start, stop):
        rows = {key: column[start:stop] for key, column in columns.items()}
        return str(made_data.write(folder / name, rows | {"trajectory": np.arange(stop - start)}, part_rows=256))

    whole, again = part("whole", 0, ROWS), part("again", 0, ROWS)
    first, second, both = part("first", 0, PART), part("second", PART, ROWS), part("both", PART - 1, ROWS)
    jobs = {
        "same": ((2,), (whole,), 64, None),
        "pinned": ((2,), (whole,), 64, 4),
        "few": ((2,), (whole,), 4096, None),
        "copies": ((1, 1), (whole, again), 64, None),
        "split": ((1, 1), (first, second), 64, None),
        "overlap": ((1, 1), (first, both), 64, None),
    }
    ranks = spawn(
        offline_reading.read_each, 2, ({name: (free_port(), *job) for name, job in jobs.items()},), timeout_s=240
    )
    found = {name: [rank[name] for rank in ranks] for name in jobs}
    alone = spawn(offline_reading.read_each, 1, ({"same": (0, (1,), (whole,), 64, None)},), timeout_s=120)
    return found | {"alone": [alone[0]["same"]], "keys": sorted(Dataset.open(whole).column("key")[:][:, 0].tolist())}


@pytest.mark.parametrize("name", ["same", "pinned", "few", "copies", "split"])
def test_same_number_of_batches_and_every_row_once_per_epoch(told, name):
    ranks = told[name]
    assert len({rank["batches"] for rank in ranks}) == 1, "ranks read different numbers of batches"
    assert ranks[0]["batches"] == 2 * ranks[0]["per_epoch"]
    for epoch in (0, 1):
        rows = [key for rank in ranks for batch in rank["read"][epoch] for key in batch]
        assert sorted(rows) == told["keys"], "a row is missing, or comes twice"
        assert all(any(rank["read"][epoch]) for rank in ranks), "a rank reads nothing"
    assert {rank["counted"] for rank in ranks} == {rank["total"] for rank in ranks} == {2 * ROWS}


@pytest.mark.parametrize("name", ["same", "pinned", "copies"])
def test_the_same_global_batches_as_on_one_rank(told, name):
    for epoch in (0, 1):
        together = [sorted(a + b) for a, b in zip(*(rank["read"][epoch] for rank in told[name]), strict=True)]
        assert together == told["alone"][0]["read"][epoch]


def test_epochs_are_in_different_orders(told):
    for name in ("same", "split", "alone"):
        for rank in told[name]:
            first, second = rank["read"]
            assert first[0] != second[0], "two epochs are in the same order"


def test_layouts_are_recognised(told):
    layouts = {name: [rank["layout"] for rank in told[name]] for name in ("same", "copies", "split")}
    assert layouts == {"same": ["same"] * 2, "copies": ["same"] * 2, "split": ["split"] * 2}


def test_unequal_parts_are_filled_up(told):
    first, second = told["split"]
    assert first["batches"] == 2 * -(-PART // 32)
    assert [len(batch) for batch in second["read"][0]][-1] == 0, "the smaller part was not filled up"


def test_overlap_is_refused_on_both_machines(told):
    first, second = told["overlap"]
    assert first.keys() == second.keys() == {"refused"}, "the overlap went unnoticed"
    assert first == second, "machines disagree"
    assert "have 1 rows in common" in first["refused"]
