"""The rendezvous through a shared file, whatever the file held before."""

import socket
import threading
import time

import pytest
from rendezvous_nodes import OUTER_S, serve, until

from lockstep.distributed.network import init_file
from lockstep.distributed.network.init_file import PublishedEndpoint, read
from lockstep.launch.rendezvous import client, join, server

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.fixture
def file(tmp_path):
    return tmp_path / "run7"


def write_stale(file, port, nonce="stale"):
    """Write what a killed run leaves."""
    init_file._write(file, PublishedEndpoint(("127.0.0.1",), port, nonce, "alpha", 1, time.time()))


@pytest.mark.parametrize("before", [None, ""])
def test_nodes_join_through_a_file_that_is_removed_with_the_run(start, file, before):
    if before is not None:
        file.write_text(before)
    other, main = start(node_rank=1, init_file=file), start(node_rank=0, init_file=file)
    assert main.admitted().key == other.admitted().key
    other.info.store.set("a", "1")
    assert main.info.store.get("a") == b"1"
    main.leave()
    assert not file.exists()


def test_a_stale_file_with_a_closed_port_is_not_used(start, file):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    write_stale(file, port)
    other = start(node_rank=1, init_file=file)
    assert not other.decided.wait(1.0)
    assert start(node_rank=0, init_file=file).admitted().key == other.admitted().key


def test_a_stale_file_with_another_runs_port_is_not_used(start, file, tmp_path):
    """Nothing but the nonce tells them apart: no token, no --rdzv-id."""
    another = start(node_rank=0, init_file=tmp_path / "another")
    until(lambda: read(tmp_path / "another") is not None)
    write_stale(file, read(tmp_path / "another").port)
    other = start(node_rank=1, init_file=file)
    assert not other.decided.wait(1.0), (other.info, other.error)
    assert start(node_rank=0, init_file=file).admitted().key == other.admitted().key
    assert not another.decided.is_set()


def test_a_stale_file_with_a_silent_port_is_not_used(start, file, monkeypatch):
    monkeypatch.setattr(client, "_ALIVE_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = serve(server, b"")
        write_stale(file, server.getsockname()[1])
        other = start(node_rank=1, init_file=file)
        assert not other.decided.wait(1.0)
        assert start(node_rank=0, init_file=file).admitted().key == other.admitted().key
        server.shutdown(socket.SHUT_RDWR)
    thread.join(OUTER_S)


def test_the_second_of_two_runs_with_one_file_is_refused(start, file):
    first = start(node_rank=0, init_file=file)
    until(lambda: read(file) is not None)
    second = start(node_rank=0, init_file=file)
    assert f"--init-file {file} belongs to another run, met at " in second.refused()
    assert f"of host {socket.gethostname()}, started 20" in second.refused()
    assert start(node_rank=1, init_file=file).admitted().key == first.admitted().key


def test_of_two_runs_that_start_at_once_one_continues(start, file, monkeypatch):
    """Both have seen no living run; the other one's file came last."""
    both = threading.Barrier(2)
    write = init_file._write

    def at_once(path, place):
        both.wait(OUTER_S)
        write(path, place)

    monkeypatch.setattr(init_file, "_write", at_once)
    mains = [start(node_rank=0, init_file=file) for _ in range(2)]
    until(lambda: any(main.decided.is_set() for main in mains))
    lost = next(main for main in mains if main.decided.is_set())
    (won,) = (main for main in mains if main is not lost)
    assert "belongs to another run" in lost.refused()
    assert start(node_rank=1, init_file=file).admitted().key == won.admitted().key


def test_a_deleted_file_is_written_again(start, file, monkeypatch):
    monkeypatch.setattr(join, "_KEEP_S", 0.1)
    main = start(node_rank=0, init_file=file)
    until(file.exists)
    file.unlink()
    until(file.exists)
    assert start(node_rank=1, init_file=file).admitted().key == main.admitted().key


def test_contradictions_are_reported_by_both(start, file, monkeypatch):
    flags = {"init_file": file}
    main, other = start(node_rank=0, **flags), start(node_rank=1, identity={"config": "two"}, **flags)
    assert main.refused() == other.refused()
    assert not file.exists()
    monkeypatch.setattr(server, "_SETTLE_S", 0.2)
    main, other = start(node_rank=0, token="a", **flags), start(node_rank=1, token="b", **flags)
    assert "sent this one away" in other.refused()
    assert "was sent away" in main.refused()


def test_a_file_that_never_comes_is_named(start, file, monkeypatch):
    message = start(node_rank=1, init_file=file, join_timeout_s=1.0).refused()
    assert f"node 0 to write {file}" in message
    monkeypatch.setattr(init_file, "_NO_DIRECTORY_S", 0.2)
    message = start(node_rank=1, init_file=file.parent / "nowhere" / "run7").refused()
    assert "nowhere does not exist on host" in message


def test_with_a_file_each_node_needs_its_rank(start, file):
    assert "--init-file tells nobody which node is the main one" in start(init_file=file).refused()
    assert "--node-rank 3 does not exist with --nnodes 2" in start(init_file=file, node_rank=3).refused()
