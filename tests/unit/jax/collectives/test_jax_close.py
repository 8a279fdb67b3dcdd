"""The group of JAX's processes, with hosts that are pretended."""

import pytest

pytest.importorskip("jax")

from lockstep.distributed.timers import Timers
from lockstep.errors import PeerError
from lockstep.jax.collectives import processes
from lockstep.world import World


class EndedHosts:
    """A rank has ended, which the others find out in their next collective."""

    def __init__(self):
        self.closed_with = None

    def gather(self, *_):
        raise PeerError("rank 1 has ended while rank 0 waited in close", 1)

    def close(self, error):
        self.closed_with = error


def test_a_rank_that_ended_before_the_close_is_not_waited_for(monkeypatch):
    """JAX's own shutdown waited for it until a timeout, and then aborted the process."""
    stopped = []
    monkeypatch.setattr(processes, "_stop_jax", stopped.append)
    group = processes.Processes(World(rank=0, size=2, port=1), Timers(), 1.0, 1.0)
    group._hosts, group._distributed = hosts, _ = EndedHosts(), True
    with pytest.raises(PeerError, match="rank 1 has ended") as raised:
        group.close(None)
    assert stopped == [raised.value] and hosts.closed_with is raised.value
