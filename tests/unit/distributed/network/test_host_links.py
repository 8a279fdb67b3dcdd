"""Messages between hosts: here between threads of one process, over loopback."""

import socket
import threading
import time

import pytest

from lockstep.distributed.network.dial import KEY_SIZE, connect_hosts, without_pacing
from lockstep.distributed.network.links import Endpoint, in_slices
from lockstep.errors import PeerError, RunError


def never():
    pass


def endpoints_of(count):
    listeners = [without_pacing(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
    keys = [bytes([number]) * KEY_SIZE for number in range(count)]
    endpoints = [
        Endpoint(f"host {number}", 10 * number, *listener.getsockname(), key)
        for number, (listener, key) in enumerate(zip(listeners, keys, strict=True))
    ]
    return listeners, endpoints


def run_together(*calls):
    """Run calls in threads at once; returns what each returned or raised."""
    found = [None] * len(calls)

    def run(number, call):
        try:
            found[number] = call()
        except Exception as error:
            found[number] = error

    threads = [threading.Thread(target=run, args=(number, call)) for number, call in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "a call hangs"
    return found


@pytest.fixture
def open_links():
    opened = []

    def open_(count, timeout_s=5.0):
        listeners, endpoints = endpoints_of(count)
        until = time.monotonic() + 10
        links = run_together(
            *[
                lambda n=n, one=one: connect_hosts(one, endpoints, n, until, timeout_s, 0.5)
                for n, one in enumerate(listeners)
            ]
        )
        for listener in listeners:
            listener.close()
        opened.extend(links)
        return links

    yield open_
    for one in opened:
        one.close()


def exchange(links, mine, bodies, sizes, tag="moments", row=8):
    """Host `mine` sends its body to all; gives what it received, by host."""
    into = {host: memoryview(bytearray(size)) for host, size in enumerate(sizes) if host != mine}
    links.exchange({host: memoryview(bodies[mine]) for host in into}, into, tag, row, never)
    return {host: bytes(body) for host, body in into.items()}


@pytest.mark.parametrize("sizes", [(8, 8), (0, 5, 3_000_000), (3_000_000, 3_000_000)])
def test_every_host_receives_what_every_other_sends(open_links, sizes):
    """Also many megabytes in both directions, which neither side can send before it receives."""
    links = open_links(len(sizes))
    for turn in range(3):
        bodies = [bytes([16 * turn + host]) * size for host, size in enumerate(sizes)]
        found = run_together(*[lambda n=n, all_=bodies: exchange(links[n], n, all_, sizes) for n in range(len(sizes))])
        for mine, received in enumerate(found):
            assert received == {host: body for host, body in enumerate(bodies) if host != mine}


@pytest.mark.parametrize(("tag", "row", "size"), [("log", 8, 8), ("moments", 16, 16), ("moments", 16, 2)])
def test_another_tag_or_size_is_reported_by_both(open_links, tag, row, size):
    links = open_links(2)
    first, second = run_together(
        lambda: exchange(links[0], 0, [bytes(8), b""], (8, 8)),
        lambda: exchange(links[1], 1, [b"", bytes(size)], (size, size), tag, row),
    )
    assert isinstance(first, RunError)
    if tag == "moments":
        assert f"moments, with different tensors: rank 0 sends 8 bytes, rank 10 {row} bytes" in str(first)
        assert f"moments, with different tensors: rank 10 sends {row} bytes, rank 0 8 bytes" in str(second)
    else:
        start = "ranks are in different collectives: "
        assert str(first).startswith(f"{start}rank 0 is in moments, rank 10 is in {tag};")
        assert str(second).startswith(f"{start}rank 10 is in {tag}, rank 0 is in moments;")


def test_a_failure_is_received_later_even_after_the_connection_closed(open_links):
    links = open_links(3)
    links[2].send_failure("rank 21 has ended")
    links[2].close()
    bodies, sizes = [bytes(100_000)] * 3, (100_000,) * 3
    errors = run_together(*[lambda n=n: exchange(links[n], n, bodies, sizes) for n in (0, 1)])
    assert [str(error) for error in errors] == ["rank 21 has ended"] * 2
    assert all(isinstance(error, PeerError) for error in errors)


def test_a_host_that_closes_its_connection_is_named(open_links):
    links = open_links(2)
    links[1].close()
    (errors,) = run_together(lambda: exchange(links[0], 0, [bytes(8)] * 2, (8, 8)))
    assert isinstance(errors, PeerError)
    assert (errors.rank, str(errors)) == (
        10,
        "host 1 closed its connection while rank 0 waited in moments; its logs say why",
    )


def test_only_silent_hosts_are_named_at_the_timeout(open_links):
    links = open_links(4, timeout_s=0.5)
    bodies, sizes = [bytes(8)] * 4, (8,) * 4
    start = time.monotonic()
    first, second = run_together(*[lambda n=n: exchange(links[n], n, bodies, sizes) for n in (0, 2)])
    assert 1.0 <= time.monotonic() - start < 3.0, "not at the timeout and its margin"
    assert str(first) == "host 1, host 3 did not answer in moments within timeout_s=0.5"
    assert str(second) == str(first)


def test_on_wait_may_end_the_exchange(open_links):
    links = open_links(2)

    def look():
        raise PeerError("rank 1 has ended")

    into = {1: memoryview(bytearray(8))}
    with pytest.raises(PeerError, match="rank 1 has ended"):
        links[0].exchange({1: memoryview(bytes(8))}, into, "moments", 8, look)


def test_a_client_without_the_key_is_not_taken_for_a_host():
    """Neither one that sends nothing, nor one with another key."""
    listeners, endpoints = endpoints_of(2)
    clients = [socket.create_connection(listeners[0].getsockname()) for _ in range(2)]
    clients[0].close()
    clients[1].sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
    until = time.monotonic() + 10
    links = run_together(
        *[lambda n=n, one=one: connect_hosts(one, endpoints, n, until, 5, 0.5) for n, one in enumerate(listeners)]
    )
    found = run_together(*[lambda n=n: exchange(links[n], n, [b"zero", b"one!"], (4, 4)) for n in (0, 1)])
    assert found == [{1: b"one!"}, {0: b"zero"}]
    for one in (*links, *listeners, *clients):
        one.close()


def test_a_host_that_does_not_connect_is_named_with_advice():
    listeners, endpoints = endpoints_of(3)
    listeners[1].close()  # nobody listens there
    errors = run_together(
        lambda: connect_hosts(listeners[0], endpoints, 0, time.monotonic() + 0.5, 5, 0.5),
        lambda: connect_hosts(listeners[2], endpoints, 2, time.monotonic() + 0.5, 5, 0.5),
    )
    assert all(isinstance(error, PeerError) for error in errors)
    assert "host 0 and host 1 did not connect" in str(errors[0])
    assert "host 2 and host" in str(errors[1])
    assert all("set GLOO_SOCKET_IFNAME" in str(error) for error in errors)
    for listener in listeners:
        listener.close()


def test_links_send_without_pacing(open_links):
    """Also on the side that was connected to: a listener hands down how it sends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        try:
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"bbr")
        except OSError:
            pytest.skip("this machine has no BBR")
        without_pacing(listener)
        with socket.create_connection(listener.getsockname()), listener.accept()[0] as accepted:
            found = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    assert found.rstrip(b"\0") == b"reno"
    assert b"bbr" not in [
        link.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")
        for links in open_links(2)
        for link in links._links.values()
    ]


def test_only_large_buffers_of_many_hosts_are_sliced():
    assert not in_slices(2, 1 << 30), "two hosts send as little either way"
    assert not in_slices(64, 1000)
    assert in_slices(3, 1 << 20)
