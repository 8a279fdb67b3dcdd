"""Helpers of the launcher's tests."""

import time
from pathlib import Path

import pytest
from rendezvous_nodes import Node

from lockstep.launch.rank_environment import free_port
from lockstep.launch.rendezvous import client, server


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


@pytest.fixture
def start():
    """Start nodes that join each other; all leave at the end."""
    nodes = []

    def one(**flags):
        nodes.append(Node(**flags))
        return nodes[-1]

    yield one
    for node in nodes:
        node.leave()


@pytest.fixture
def at():
    """Flags of an endpoint on this machine."""
    return {"host": "127.0.0.1", "port": free_port()}


@pytest.fixture
def impatient(monkeypatch):
    """Bounds of seconds instead of half a minute, except where a test sets others."""
    monkeypatch.setattr(server, "_SETTLE_S", 1.0)
    monkeypatch.setattr(server, "_FREE_S", 1.0)
    monkeypatch.setattr(client, "_PATIENCE_S", 1.0)
    monkeypatch.setattr(client, "_REPORT_S", 1.0)
    monkeypatch.setattr(client, "_CLOSED_S", 1.0)
