"""Maps with equal ids in every row are read by a fast path with the same result as the general one."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from lockstep.data.logs.maps import SourceRows, maps_of_series

ENTRY = pl.List(pl.Struct({"key": pl.String, "value": pl.Float64}))


def read(rows):
    entries = [None if row is None else [{"key": key, "value": value} for key, value in row] for row in rows]
    where = SourceRows(Path("log.parquet"), np.arange(1, len(rows) + 1))
    return maps_of_series(pl.Series("state_features", entries, dtype=ENTRY), where, "state_features")


@pytest.mark.parametrize(
    "last",
    [
        [("a", 7.0), ("b", 8.0)],
        [("b", 8.0), ("a", 7.0)],
        [("a", 7.0), ("c", 8.0)],
        [("a", 7.0)],
        [("a", None), ("b", 8.0)],
        [],
        None,
    ],
)
def test_values_are_assigned_to_their_ids(last):
    rows = [[("a", 1.0), ("b", 2.0)], [("a", 3.0), ("b", 4.0)], last]
    found = read(rows)
    told = [
        {name: float(value) for name, value in zip(found.ids, row, strict=True) if value == value}
        for row in found.values
    ]
    assert told == [{key: value for key, value in row or () if value is not None} for row in rows]
    assert found.given.tolist() == [True, True, last is not None]
