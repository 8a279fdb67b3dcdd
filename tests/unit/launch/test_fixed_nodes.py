"""Rounds of a fixed number of nodes, through the main node's store: no framework, and no access for other processes."""

import threading
import time

import pytest

from lockstep.errors import ConfigError, RunError
from lockstep.launch import fixed_membership
from lockstep.launch.attempt import AttemptEnd
from lockstep.launch.fixed_membership import FixedMembership
from lockstep.launch.rendezvous import Cancelled


@pytest.fixture
def join_nodes(start, at):
    """`join_nodes(2)`: the memberships of nodes that have completed a rendezvous; and their threads, to end them."""

    def join(count, **flags):
        flags = {**flags, **at, "minimum": count, "maximum": count}
        nodes = [start(node_rank=rank, nproc=rank + 1, **flags) for rank in range(count)]
        return [membership(node) for node in nodes], nodes

    return join


def membership(node):
    return FixedMembership(node.nodes, node.admitted())


class Joining(threading.Thread):
    """A node that waits for a round, in a thread."""

    def __init__(self, membership, failures=0):
        super().__init__(daemon=True)
        self.membership, self.failures = membership, failures
        self.round, self.error, self.cancel = None, None, False
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


def test_a_round_begins_once_all_nodes_are_ready(join_nodes):
    (one, two), nodes = join_nodes(2, rank_port=5555)
    first = Joining(one, failures=2)
    time.sleep(0.3)
    assert first.round is None
    attempts = [first, Joining(two)]
    attempts = [thread.joined() for thread in attempts]
    placements = [found.placement for found in attempts]
    assert [(p.node_rank, p.num_nodes, p.first_rank, p.world_size) for p in placements] == [(0, 2, 0, 3), (1, 2, 1, 3)]
    assert {(p.address, p.port, p.token) for p in placements} == {("127.0.0.1", 5555, nodes[0].info.key.hex())}
    assert [(found.failures, found.restarts) for found in attempts] == [(2, 0)] * 2


def test_the_first_reported_end_holds_for_all_and_for_its_round_only(join_nodes):
    (one, two), _ = join_nodes(2)
    for restarts in range(2):
        threads = [Joining(one), Joining(two)]
        first, second = (thread.joined() for thread in threads)
        assert first.restarts == second.restarts == restarts
        assert first.reported_end() is None
        held = second.report_end(AttemptEnd("failed", "rank 1 exited with code 7", 7, 1, True))
        assert (held.code, held.node_rank) == (7, 1)
        assert first.report_end(AttemptEnd("interrupted", "stopped", 143, None, False)).code == 7
        assert first.reported_end() == held
        for part in (first, second):
            assert not part.all_succeeded() and not part.all_exited()
            part.report_success()
            part.report_exit()
        assert first.all_succeeded() and second.all_exited()


def test_a_node_that_leaves_while_it_waits_is_not_counted(join_nodes, start, at):
    (one, two, three), nodes = join_nodes(3)
    waiting = Joining(two)
    time.sleep(0.3)
    waiting.cancel = True
    waiting.join(20)
    assert isinstance(waiting.error, Cancelled)
    nodes[1].leave()
    first, third = Joining(one), Joining(three)
    time.sleep(0.5)
    assert first.round is None and third.round is None, "a round began without the second node"
    replacement = start(node_rank=1, nproc=2, minimum=3, maximum=3, **at)
    assert Joining(membership(replacement)).joined().placement.node_rank == 1
    assert first.joined().placement.world_size == third.joined().placement.world_size == 6


def test_waiting_for_a_round_is_bounded(join_nodes):
    (one, _), nodes = join_nodes(2)
    object.__setattr__(nodes[0].nodes, "join_timeout_s", 0.3)
    waiting = Joining(one)
    waiting.join(20)
    assert isinstance(waiting.error, ConfigError)
    assert "not all nodes came within --join-timeout 0.3 s" in str(waiting.error)


def test_a_node_that_does_not_come_back_is_named_by_all_that_wait(join_nodes, monkeypatch, capfd):
    monkeypatch.setattr(fixed_membership, "_LOOK_EVERY_S", 0.1)
    monkeypatch.setattr(fixed_membership, "_REPORT_EVERY_S", 0.5)
    memberships, nodes = join_nodes(3)
    for thread in [Joining(one) for one in memberships]:
        thread.joined()
    nodes[2].leave()
    for node in nodes[:2]:
        object.__setattr__(node.nodes, "join_timeout_s", 1.5)
    waiting = [Joining(one) for one in memberships[:2]]
    for thread in waiting:
        thread.join(20)
        assert isinstance(thread.error, RunError), "a scheduler does not repeat a user error"
        assert str(thread.error) == "node 2 (127.0.0.1) did not come back within --join-timeout 1.5 s"
    told = [line for line in capfd.readouterr().err.splitlines() if "waiting for node" in line]
    assert len(told) >= 2 and set(told) == {"lockstep: waiting for node 2 (127.0.0.1), or others in their place"}


def test_without_the_main_node_each_node_ends_alone(join_nodes):
    (one, two), nodes = join_nodes(2)
    threads = [Joining(one), Joining(two)]
    _, second = (thread.joined() for thread in threads)
    nodes[0].leave()
    mine = second.report_end(AttemptEnd("failed", "rank 1 exited with code 7", 7, 1, restart=True))
    assert (mine.code, mine.restart) == (7, False), "nothing starts again without the main node"
    assert second.all_exited(), "no node is waited for"
    with pytest.raises(RunError, match="the main node does not answer any more"):
        second.reported_end()
