"""What a fixed number of nodes tell each other through the main one: no framework, and nothing for strangers."""

import json
import socket
import threading
import time

import pytest

from lockstep.errors import ConfigError, RunError
from lockstep.launch.fixed import FixedMembership
from lockstep.launch.nodes import Nodes
from lockstep.launch.rendezvous import Cancelled, Met
from lockstep.launch.round import End

KEY = bytes(range(32))
LOOPBACK = "127.0.0.1"


@pytest.fixture
def store():
    """A listening socket for the main node."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        yield listener


def member(store, rank, *, main=False, key=KEY, count=2, **flags):
    nodes = Nodes(**{"minimum": count, "maximum": count, "node_rank": rank, "nproc": rank + 1, **flags})
    listener = store if main else None
    return FixedMembership(nodes, Met(main, LOOPBACK, "lo", LOOPBACK, store.getsockname()[1], listener, key))


class Joining(threading.Thread):
    """A node that waits for a round, beside the test."""

    def __init__(self, membership, failures=0):
        super().__init__(daemon=True)
        self.membership, self.failures, self.round, self.error, self.cancel = membership, failures, None, None, False
        self.start()

    def run(self):
        try:
            self.round = self.membership.join(self.failures, lambda: self.cancel)
        except BaseException as error:
            self.error = error

    def joined(self):
        self.join(20)
        assert self.error is None and self.round is not None, self.error
        return self.round


def test_a_round_begins_when_all_are_there_and_each_knows_its_place(store):
    with member(store, 0, main=True, rank_port=5555, port=5555) as one, member(store, 1) as two:
        first = Joining(one, failures=2)
        time.sleep(0.3)
        assert first.round is None
        rounds = [first.joined() if i == 0 else Joining(two).joined() for i in (1, 0)][::-1]
    places = [found.place for found in rounds]
    assert [(p.node_rank, p.num_nodes, p.first_rank, p.world_size) for p in places] == [(0, 2, 0, 3), (1, 2, 1, 3)]
    assert {(p.address, p.port, p.token) for p in places} == {(LOOPBACK, 5555, KEY.hex())}
    assert [(found.failures, found.starts) for found in rounds] == [(2, 0)] * 2


def test_the_first_end_that_is_told_holds_for_all_and_the_next_round_knows_nothing_of_it(store):
    with member(store, 0, main=True) as one, member(store, 1) as two:
        for starts in range(2):
            threads = [Joining(one), Joining(two)]
            first, second = (thread.joined() for thread in threads)
            assert first.starts == second.starts == starts
            assert first.reported_end() is None
            held = second.tell(End("failed", "rank 1 exited with code 7", 7, 1, True))
            assert (held.code, held.node_rank) == (7, 1)
            assert first.tell(End("interrupted", "stopped", 143, None, False)).code == 7
            assert first.reported_end() == held
            for part in (first, second):
                assert not part.all_succeeded() and not part.all_seen()
                part.succeeded()
                part.seen()
            assert first.all_succeeded() and second.all_seen()


def test_a_node_that_goes_while_it_waits_is_not_counted(store):
    with member(store, 0, main=True, count=3) as one:
        first = Joining(one)
        with member(store, 1, count=3) as gone:
            waiting = Joining(gone)
            time.sleep(0.3)
            waiting.cancel = True
            waiting.join(20)
            assert isinstance(waiting.error, Cancelled)
        with member(store, 1, count=3) as two, member(store, 2, count=3) as three:
            second = Joining(two)
            time.sleep(0.3)
            assert first.round is None and second.round is None, "a round began without the third node"
            assert Joining(three).joined().place.node_rank == 2
            assert first.joined().place.world_size == second.joined().place.world_size == 6


def test_waiting_is_bounded(store):
    with member(store, 0, main=True, join_timeout_s=0.3) as one:
        waiting = Joining(one)
        waiting.join(20)
    assert isinstance(waiting.error, ConfigError)
    assert "not all nodes came within --join-timeout 0.3 s" in str(waiting.error)


def test_who_does_not_know_the_key_is_told_nothing(store):
    with member(store, 0, main=True, count=1) as one:
        first = Joining(one).joined()
        with socket.create_connection(store.getsockname()) as connection:
            connection.settimeout(5)
            assert "nonce" in json.loads(connection.recv(1000))
            connection.sendall(b'{"ask": "compare_set", "keys": ["0/end"], "value": ["", "x"]}\n' * 2)
            assert connection.recv(1000) == b"", "a stranger was answered"
        with (
            pytest.raises(RunError, match="the main node does not answer"),
            member(store, 1, key=bytes(32), count=1) as stranger,
        ):
            stranger.join(0, lambda: False)
        assert first.reported_end() is None


def test_where_the_main_node_is_gone_each_node_ends_alone(store):
    one, two = member(store, 0, main=True).__enter__(), member(store, 1).__enter__()
    threads = [Joining(one), Joining(two)]
    _, second = (thread.joined() for thread in threads)
    one.__exit__()
    mine = second.tell(End("failed", "rank 1 exited with code 7", 7, 1, again=True))
    assert (mine.code, mine.again) == (7, False), "nothing starts again without the main node"
    assert second.all_seen(), "nobody is waited for"
    with pytest.raises(RunError, match="the main node does not answer any more"):
        second.reported_end()
    two.__exit__()
