"""Helpers of the launcher's tests."""

import time
from pathlib import Path

import pytest


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def _gone(pids: list[int], within_s: float = 3.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if not any(map(_alive, pids)):
            return True
        time.sleep(0.02)
    return False


@pytest.fixture
def gone():
    """`gone(pids, within_s)`: whether these processes end soon; a zombie has ended."""
    return _gone
