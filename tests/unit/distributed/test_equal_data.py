"""Ranks that collected the same data are named, group by group."""

import pytest

from lockstep.distributed.agreement import check_different
from lockstep.errors import RunError


def check(*fingerprints):
    check_different(lambda *_: [[fingerprint] for fingerprint in fingerprints], fingerprints[0], "data")


def test_different_data_passes():
    check("a", "b", "c")


def test_ranks_with_equal_data_are_one_group():
    with pytest.raises(RunError, match=r"^ranks 0, 2 collected the same data; their environments"):
        check("a", "b", "a")


def test_two_groups_are_not_one():
    with pytest.raises(RunError, match=r"^ranks 0, 1 and ranks 2, 3 collected the same data each; their environments"):
        check("a", "a", "b", "b", "c")
