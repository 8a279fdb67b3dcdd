"""Stores behave alike, whether they are in this process, served by another one, or a prefix of either."""

import json
import socket
import threading

import pytest

from lockstep.distributed.network import store as stores
from lockstep.distributed.network import store_server
from lockstep.distributed.network.interfaces import listening_socket
from lockstep.distributed.network.rank_store import LockstepStoreBackend, connect, is_alive, serve
from lockstep.distributed.network.store import MemoryStore, PrefixStore, StoreGoneError
from lockstep.distributed.network.store_server import StoreClient, StoreServer
from lockstep.errors import ConfigError
from lockstep.world import World


@pytest.fixture
def server():
    server = StoreServer(listening_socket("127.0.0.1", 0))
    server.port = server._listener.getsockname()[1]
    yield server
    server.close()


@pytest.fixture(params=["memory", "client", "prefix"])
def store(request, server):
    if request.param == "memory":
        return server.store
    client = StoreClient.connect("127.0.0.1", server.port, 5.0)
    return client if request.param == "client" else PrefixStore("part", client)


class RawClient:
    """Sends bytes by hand."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), 5)
        self.socket.settimeout(10)
        self.file = self.socket.makefile("rb")
        self.greeting = json.loads(self.file.readline())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()
        self.socket.close()


def test_values_are_set_checked_and_counted(store):
    assert not store.check(["a"])
    store.set("a", "é\n1")
    assert store.get("a") == "é\n1".encode()
    assert store.check(["a"])
    assert not store.check(["a", "b"])
    assert [store.add("n", 1), store.add("n", 2), store.add("n", 0)] == [1, 3, 3]


def test_compare_set_only_replaces_the_expected_value(store):
    assert store.compare_set("first", "", "me") == b"me"
    assert store.compare_set("first", "", "you") == b"me"
    assert store.compare_set("first", "me", "you") == b"you"
    assert store.compare_set("none", "me", "you") == b"me"
    assert not store.check(["none"])


def test_get_waits_for_the_key_and_is_bounded(store, monkeypatch):
    timer = threading.Timer(0.1, store.set, ("late", "x"))
    timer.start()
    assert store.get("late") == b"x"
    timer.join()
    monkeypatch.setattr(stores, "ANSWER_S", 0.1)
    with pytest.raises(RuntimeError, match=r"nobody has set never within 0.1 s"):
        store.get("never")


def test_concurrent_adds_are_all_counted(server):
    clients = [StoreClient.connect("127.0.0.1", server.port, 5.0) for _ in range(4)]

    def count(client):
        for _ in range(50):
            client.add("n", 1)

    threads = [threading.Thread(target=count, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clients[0].add("n", 0) == 200


@pytest.mark.parametrize(
    "line",
    [
        b"GET / HTTP/1.1\r\n",
        b'["set", "a"]\n',
        b'{"op": "no", "keys": ["a"]}\n',
        b'{"op": "set", "keys": []}\n',
        b'{"op": "set", "keys": ["a"], "value": 1}\n',
        b'{"op": "get", "keys": [1]}\n',
        b'{"op": "add", "keys": ["a"], "amount": 1}\n',
        b"{}\n",
        b"3\n",
        b"x" * (1 << 21),
    ],
)
def test_malformed_requests_close_the_connection_and_change_nothing(server, line):
    server.store.set("a", "x")
    with RawClient(server.port) as client:
        reply = b"?"
        try:
            client.socket.sendall(line)
            client.socket.shutdown(socket.SHUT_WR)
            reply = client.file.read()
        except OSError:  # closed by the server, perhaps before we have written all
            reply = b""
    assert reply == b""
    assert StoreClient.connect("127.0.0.1", server.port, 5.0).get("a") == b"x"


def test_a_client_that_does_not_read_delays_no_other_and_is_dropped(server, monkeypatch):
    monkeypatch.setattr(store_server, "_MAX_UNSENT", 1 << 20)
    server.store.set("large", "x" * 500_000)
    with RawClient(server.port) as silent:
        silent.socket.sendall(b'{"op": "get", "keys": ["large"]}\n' * 100)
        other = StoreClient.connect("127.0.0.1", server.port, 5.0)
        for _ in range(10):
            assert other.add("n", 0) == 0
        with pytest.raises(ConnectionError):  # dropped with requests unread
            while silent.socket.recv(1 << 20):
                pass
            raise ConnectionError


def test_another_protocol_version_is_no_store():
    def greet(listener):
        with listener.accept()[0] as connection:
            connection.sendall(b'{"lockstep": 99}\n')

    with listening_socket("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=greet, args=(listener,))
        thread.start()
        with pytest.raises(TimeoutError, match="another version"):
            StoreClient.connect("127.0.0.1", listener.getsockname()[1], 5.0)
        thread.join()


def test_requests_to_a_closed_store_are_runtime_errors(server):
    client = StoreClient.connect("127.0.0.1", server.port, 5.0)
    server.close()
    with pytest.raises(StoreGoneError, match=r"the store is gone"):
        client.check(["a"])
    with pytest.raises(RuntimeError):
        client.set("a", "b")


def test_a_server_that_does_not_answer_is_given_up(server, monkeypatch):
    client = StoreClient.connect("127.0.0.1", server.port, 5.0)
    client._timeout_s = 0.2
    monkeypatch.setattr(server, "on_message", lambda *_: None)
    with pytest.raises(StoreGoneError, match=r"did not answer within 0.2 s"):
        client.check(["a"])
    with pytest.raises(StoreGoneError):
        client.check(["a"])


def test_a_rank_with_another_token_is_refused_and_reported(server, monkeypatch):
    backend, port = LockstepStoreBackend(), server.port
    monkeypatch.setattr(backend, "serve", lambda *_: server.store)
    opened = serve(backend, server._listener, "127.0.0.1", "secret")
    same = connect(backend, World(token="secret"), "127.0.0.1", port)
    assert same.nonce == opened.nonce
    assert is_alive(backend, "127.0.0.1", port, opened.nonce)
    assert not is_alive(backend, "127.0.0.1", port, "another")
    same.for_rendezvous("secret", 0).set("rank/0", "x")
    assert opened.for_rendezvous("secret", 0).check(["rank/0"])
    assert not opened.for_rendezvous("guessed", 0).check(["rank/0"])
    assert not opened.for_rendezvous("secret", 1).check(["rank/0"])
    with pytest.raises(ConfigError, match="another token than this one"):
        connect(backend, World(rank=1, size=2, port=1, token="other"), "127.0.0.1", port)
    assert json.loads(opened.store.get("lockstep/foreign_rank"))["rank"] == 1
    with pytest.raises(TimeoutError, match="is gone"):
        connect(backend, World(token="secret"), "127.0.0.1", port, "another")


def test_prefixes_nest():
    whole = MemoryStore()
    PrefixStore("a", PrefixStore("b", whole)).set("c", "x")
    assert whole.get("b/a/c") == b"x"
