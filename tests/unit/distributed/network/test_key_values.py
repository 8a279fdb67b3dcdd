"""The store that ranks meet at without a framework: the same for who holds it and for who asks it over a connection."""

import json
import socket
import threading

import pytest

from lockstep.distributed.network import key_values
from lockstep.distributed.network.interfaces import listening_socket
from lockstep.distributed.network.key_values import Client, KeyValues, Part, Server, StoreGoneError
from lockstep.distributed.network.stores import OwnKind, lives, serve, visit
from lockstep.errors import ConfigError
from lockstep.world import World


@pytest.fixture
def served():
    """A server, and where it is."""
    with listening_socket("127.0.0.1", 0) as listener:
        yield Server(listener), listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)  # wakes the server


@pytest.fixture(params=["here", "elsewhere", "a part"])
def store(request, served):
    server, port = served
    kinds = {"here": server.store, "elsewhere": Client("127.0.0.1", port, 5.0)}
    return kinds.get(request.param) or Part("part", kinds["elsewhere"])


def test_texts_by_key(store):
    assert not store.check(["a"])
    store.set("a", "é\n1")
    assert store.get("a") == "é\n1".encode()
    assert store.check(["a"])
    assert not store.check(["a", "b"])
    assert [store.add("n", 1), store.add("n", 2), store.add("n", 0)] == [1, 3, 3]


def test_only_the_first_sets_what_was_not_there(store):
    assert store.compare_set("first", "", "me") == b"me"
    assert store.compare_set("first", "", "you") == b"me"
    assert store.compare_set("first", "me", "you") == b"you"
    assert store.compare_set("none", "me", "you") == b"me"
    assert not store.check(["none"])


def test_what_comes_late_is_waited_for(store, monkeypatch):
    timer = threading.Timer(0.1, store.set, ("late", "x"))
    timer.start()
    assert store.get("late") == b"x"
    timer.join()
    monkeypatch.setattr(key_values, "ANSWER_S", 0.1)
    with pytest.raises(RuntimeError, match=r"nobody has set never within 0.1 s"):
        store.get("never")


def test_many_count_at_once(served):
    _, port = served
    clients = [Client("127.0.0.1", port, 5.0) for _ in range(4)]

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
    "line", [b"GET / HTTP/1.1\r\n", b'["no", 1]\n', b'["set", "a"]\n', b'["get", 1]\n', b"[]\n", b"3\n"]
)
def test_who_speaks_another_language_is_hung_up_on_and_changes_nothing(served, line):
    server, port = served
    server.store.set("a", "x")
    with socket.create_connection(("127.0.0.1", port), 5) as stranger:
        stranger.settimeout(5)
        stranger.sendall(line)
        answer = stranger.recv(100)
    assert answer in (b"", b"null\n"), answer
    assert Client("127.0.0.1", port, 5.0).get("a") == b"x"


def test_a_store_whose_process_has_ended_is_a_runtime_error():
    with listening_socket("127.0.0.1", 0) as listener:
        client = Client("127.0.0.1", listener.getsockname()[1], 5.0)
        connection, _ = listener.accept()
        connection.close()
        with pytest.raises(StoreGoneError, match=r"hung up|gone"):
            client.check(["a"])
        with pytest.raises(RuntimeError):
            client.set("a", "b")


def test_a_rank_with_another_token_is_kept_out_and_seen():
    kind = OwnKind()
    with listening_socket("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        met = serve(kind, listener, "127.0.0.1", "secret")
        same = visit(kind, World(token="secret"), "127.0.0.1", port)
        assert same.nonce == met.nonce
        assert lives(kind, "127.0.0.1", port, met.nonce)
        assert not lives(kind, "127.0.0.1", port, "another")
        same.part("secret", 0).set("rank/0", "x")
        assert met.part("secret", 0).check(["rank/0"])
        assert not met.part("guessed", 0).check(["rank/0"])
        assert not met.part("secret", 1).check(["rank/0"])
        with pytest.raises(ConfigError, match="another token than this one"):
            visit(kind, World(rank=1, size=2, port=1, token="other"), "127.0.0.1", port)
        assert json.loads(met.store.get("lockstep/stranger"))["rank"] == 1
        with pytest.raises(TimeoutError, match="is gone"):
            visit(kind, World(token="secret"), "127.0.0.1", port, "another")
        listener.shutdown(socket.SHUT_RDWR)


def test_a_key_of_a_store_is_not_one_of_its_parts():
    whole = KeyValues()
    Part("a", Part("b", whole)).set("c", "x")
    assert whole.get("b/a/c") == b"x"
