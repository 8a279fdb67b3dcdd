"""The rendezvous of nodes: all are admitted, or all report the same reason why not, soon."""

import contextlib
import dataclasses
import json
import re
import socket
import threading

import pytest
from rendezvous_nodes import IDENTITY, OUTER_S, listens, serve, until

from lockstep.distributed.network import framing, interfaces, store_server
from lockstep.errors import ConfigError, RunError
from lockstep.launch.nodes import Nodes
from lockstep.launch.rank_environment import free_port
from lockstep.launch.rendezvous import Cancelled, client, handshake, join, server, waiting

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.mark.parametrize("ranks", [(0, 1), (None, None)])
def test_nodes_are_admitted_and_share_the_main_nodes_store(start, at, ranks):
    main, other = start(node_rank=ranks[0], **at), start(node_rank=ranks[1], **at)
    found = sorted((main.admitted(), other.admitted()), key=lambda info: not info.main)
    host, node = found
    assert (host.main, node.main) == (True, False)
    assert host.key == node.key
    assert len(host.key) == 32
    assert host.address == host.main_address == node.address == node.main_address == "127.0.0.1"
    assert host.interface == node.interface == "lo"
    node.store.set("a", "1")
    assert host.store.get("a") == b"1"
    assert host.connected() == [host.process, node.process]


def test_the_main_node_may_start_last(start, at, monkeypatch):
    monkeypatch.setattr(client, "_PATIENCE_S", OUTER_S)
    flags = {"minimum": 4, "maximum": 4, **at}
    nodes = [start(node_rank=rank, **flags) for rank in (3, 1, 2)]
    assert not nodes[0].decided.wait(0.5)
    nodes.append(start(node_rank=0, **flags))
    assert len({node.admitted().key for node in nodes}) == 1


def test_the_run_key_depends_on_token_and_salt():
    assert handshake.run_key("secret", "00" * 32) != handshake.run_key("", "00" * 32)
    assert handshake.run_key("secret", "00" * 32) != handshake.run_key("secret", "01" * 32)


CONTRADICTIONS = {
    "rank out of range": ({"node_rank": 0}, {"node_rank": 5}, r"--node-rank 5 of .* does not exist with --nnodes 2"),
    "other number of nodes": (
        {"node_rank": 0},
        {"node_rank": 1, "minimum": 3, "maximum": 3},
        r"--nnodes differs: 2 on .*, 3 on .*; start all nodes with the same",
    ),
    "rank on one of them": ({"node_rank": 0}, {}, r"--node-rank is given on .*, but not on "),
    "other run": (
        {"node_rank": 0, "token": "t", "run_id": "one"},
        {"node_rank": 1, "token": "t", "run_id": "two"},
        r"--rdzv-id differs: one on .*, two on ",
    ),
    "other restarts": (
        {"node_rank": 0},
        {"node_rank": 1, "max_restarts": 2},
        r"--max-restarts differs: 0 on .*, 2 on .*; start all nodes with the same",
    ),
    "other config": (
        {"node_rank": 0},
        {"node_rank": 1, "identity": {"config": "two"}},
        r"node 1 \(.*\) differs from node 0 \(.*\) in config",
    ),
    "other version": (
        {"node_rank": 0, "identity": {"lockstep": "1.0"}},
        {"node_rank": 1, "identity": {"lockstep": "1.1"}},
        r"node 1 \(.*\) differs from node 0 \(.*\) in lockstep \(1\.1 instead of 1\.0\)",
    ),
}


@pytest.mark.parametrize(("first", "second", "text"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_a_contradiction_is_reported_by_both_nodes(start, at, first, second, text):
    main = start(**at, **first)
    until(lambda: listens("127.0.0.1", at["port"]))
    other = start(**at, **second)
    with pytest.raises(ConfigError, match=text):
        raise main.error if main.refused() == other.refused() else AssertionError((main.error, other.error))


def test_a_duplicate_node_rank_is_reported_by_all_nodes(start, at):
    flags = {"minimum": 3, "maximum": 3, **at}
    nodes = [start(node_rank=rank, **flags) for rank in (0, 1, 1)]
    messages = {node.refused() for node in nodes}
    assert len(messages) == 1
    assert "--node-rank 1 is given on 2 nodes: " in messages.pop()


def test_a_second_main_node_elsewhere_is_reported_by_both(start, monkeypatch):
    port = free_port()
    monkeypatch.setattr(join, "is_local", lambda address: address != "127.0.0.8")
    monkeypatch.setattr(client, "_PATIENCE_S", OUTER_S)
    monkeypatch.setattr(client, "_REPORT_S", OUTER_S)
    second = start(node_rank=0, host="127.0.0.8", port=port)
    assert not second.decided.wait(0.5), "it may be the first to start"
    first = start(node_rank=0, host="localhost", port=port)
    assert first.refused() == second.refused()
    assert "--node-rank 0 is given on 2 nodes: " in first.refused()


def test_a_main_node_that_is_not_at_the_endpoint_is_refused(start, monkeypatch):
    monkeypatch.setattr(join, "is_local", lambda address: False)
    node = start(node_rank=0, host="127.0.0.8", port=free_port())
    assert (
        "--node-rank 0 is the main node, but 127.0.0.8 of --rdzv-endpoint is not an address of this" in node.refused()
    )


def test_a_node_rank_out_of_range_is_refused_without_a_main_node(start, at):
    assert (
        "--node-rank 7 does not exist with --nnodes 2; node ranks go from 0 to 1" in start(node_rank=7, **at).refused()
    )


def test_a_contradiction_is_refused_once_the_other_nodes_have_come(start, at, monkeypatch):
    monkeypatch.setattr(server, "_SETTLE_S", OUTER_S)
    flags = {"minimum": 3, "maximum": 3, **at}
    main, wrong = start(node_rank=0, **flags), start(node_rank=2, identity={"config": "two"}, **flags)
    assert not main.decided.wait(1.0)
    last = start(node_rank=1, **flags)
    assert main.refused() == wrong.refused() == last.refused()
    assert "node 2" in main.refused()


def test_waiting_for_others_after_a_contradiction_is_bounded(start, at):
    flags = {"minimum": 3, "maximum": 3, **at}
    main, wrong = start(node_rank=0, **flags), start(node_rank=2, identity={"config": "two"}, **flags)
    assert main.refused() == wrong.refused()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"token": "right"}, {"token": "wrong"}),
        ({"token": "right"}, {}),
        ({}, {"token": "wrong"}),
        ({"run_id": "7"}, {"run_id": "8"}),
        ({"token": "7"}, {"run_id": "7"}),
    ],
)
def test_a_node_without_the_secret_is_rejected_and_both_report_why(start, at, first, second):
    main = start(node_rank=0, **at, **first)
    other = start(node_rank=1, **at, **second)
    why = "LOCKSTEP_TOKEN or --token-file, and --rdzv-id, must be the same on all nodes"
    assert other.refused() == f"the main node sent this one away: {why}"
    assert main.refused() == f"a node at 127.0.0.1 was sent away: {why} (node 1 is missing)"


def test_a_rejected_node_does_not_block_the_right_ones(start, at, monkeypatch):
    monkeypatch.setattr(server, "_SETTLE_S", OUTER_S)
    main = start(node_rank=0, token="right", **at)
    start(node_rank=1, token="wrong", **at).refused()
    right = start(node_rank=1, token="right", **at)
    assert main.admitted().key == right.admitted().key


class RawClient:
    """Sends messages by hand."""

    def __init__(self, port):
        until(lambda: self._connects(port))
        self.file = self.socket.makefile("rw")

    def _connects(self, port):
        try:
            self.socket = socket.create_connection(("127.0.0.1", port), timeout=OUTER_S)
        except ConnectionRefusedError:
            return False
        return True

    def receive(self):
        line = self.file.readline()
        return json.loads(line) if line else None

    def send(self, **message):
        self.file.write(json.dumps(message) + "\n")
        self.file.flush()

    def close(self):
        self.file.close()
        self.socket.close()


def test_the_main_node_sends_nothing_before_the_proof(start, at):
    main = start(node_rank=0, token="right", **at)
    with contextlib.closing(RawClient(at["port"])) as raw:
        first = raw.receive()
        assert set(first) == {"lockstep", "nonce", "place"}
        raw.send(lockstep=store_server.PROTOCOL, nonce="", proof="00")
        assert set(raw.receive()) == {"error", "code"}
        assert raw.receive() is None, "the connection stays open"
    with contextlib.closing(RawClient(at["port"])) as raw:
        raw.receive()
        hello = handshake.NodeInfo(
            process="p", host="h", address="a", node_rank=1, minimum=2, maximum=2, nproc=1, run_id="", identity=IDENTITY
        )
        raw.send(**{name: getattr(hello, name) for name in hello.__slots__})
        assert "error" in raw.receive()
        assert raw.receive() is None
    main.refused()


@pytest.mark.parametrize("line", [b"[" * 100_000, b"{}" * 9, b"\xff", b'"text"', b"[1]", b"9" * 9999], ids=len)
def test_what_a_stranger_sends_ends_its_connection_only(start, at, line):
    main = start(node_rank=0, token="right", minimum=2, maximum=2, **at)
    with contextlib.closing(RawClient(at["port"])) as raw:
        raw.receive()
        raw.socket.sendall(line + b"\n")
        assert raw.receive() is None, "the connection stays open"
    start(node_rank=1, token="right", minimum=2, maximum=2, **at).admitted()
    main.admitted()


def test_the_store_is_served_to_admitted_nodes_only(start, at):
    """Neither to a client without the secret, nor to a node that still waits."""
    main = start(node_rank=0, token="right", minimum=3, maximum=3, **at)
    request = {"op": "compare_set", "keys": ["0/end"], "expected": "", "value": "x"}
    with contextlib.closing(RawClient(at["port"])) as raw:
        raw.receive()
        raw.send(**request)
        assert "error" in raw.receive()
        assert raw.receive() is None, "the connection stays open"
    with contextlib.closing(RawClient(at["port"])) as waiting_node:
        nonce = waiting_node.receive()["nonce"]
        proof = handshake._proof(b"token right", "node", nonce, "bb")
        waiting_node.send(lockstep=store_server.PROTOCOL, nonce="bb", proof=proof)
        assert "proof" in waiting_node.receive()
        node = join._node_info(Nodes(node_rank=1, minimum=3, maximum=3), IDENTITY)
        waiting_node.send(**dataclasses.asdict(node))
        waiting_node.send(**request)
        start(node_rank=2, token="right", minimum=3, maximum=3, **at).admitted()
        messages = iter(waiting_node.receive, None)
        assert next(message for message in messages if "waiting" not in message).keys() == {"admitted"}
        assert not main.admitted().store.check(["0/end"])
        waiting_node.send(**request)
        assert waiting_node.receive() == {"value": "x"}


def test_a_node_sends_nothing_about_itself_before_the_main_nodes_proof(start):
    """Whoever cannot prove the secret must not receive what a node sends about itself."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        node = start(node_rank=1, token="right", host="127.0.0.1", port=server.getsockname()[1])
        with server.accept()[0] as connection, connection.makefile("rw") as file:
            file.write(
                json.dumps({"lockstep": store_server.PROTOCOL, "nonce": "aa"})
                + "\n"
                + json.dumps({"proof": "00"})
                + "\n"
            )
            file.flush()
            assert "the main node does not know this run's secret" in node.refused()
            messages = [json.loads(line) for line in file]
            assert len(messages) == 1, "it sent who it is"


@pytest.mark.parametrize("message", [b"GET / HTTP/1.0\r\n\r\n", b"x" * (1 << 21), b'[1]\n{"a":\n', b""])
def test_malformed_messages_do_not_disturb_the_rendezvous(start, at, message):
    main = start(node_rank=0, **at)
    raw = RawClient(at["port"])
    with contextlib.suppress(ConnectionError):
        raw.socket.sendall(message)
    other = start(node_rank=1, **at)
    assert main.admitted().key == other.admitted().key
    raw.close()


def test_another_protocol_version_is_reported_by_both(start, at):
    main = start(node_rank=0, **at)
    with contextlib.closing(RawClient(at["port"])) as raw:
        raw.receive()
        raw.send(lockstep=99, nonce="", proof="")
        assert "versions of Lockstep differ" in raw.receive()["error"]
    assert "versions of Lockstep differ" in main.refused()
    with socket.create_server(("127.0.0.1", 0)) as server:
        node = start(node_rank=1, host="127.0.0.1", port=server.getsockname()[1])
        with server.accept()[0] as connection, connection.makefile("rw") as file:
            file.write('{"lockstep": 99, "nonce": "aa"}\n')
            file.flush()
            assert "protocol 2, another by 99" in node.refused()
            assert json.loads(file.readline())["lockstep"] == store_server.PROTOCOL, (
                "the other side must report it, too"
            )


@pytest.mark.parametrize(
    ("greeting", "why"),
    [
        (b"", "it said nothing for 0.5 s"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "it does not speak Lockstep's protocol"),
        (b'{"hello": 1}\n', "it does not speak Lockstep's protocol"),
        (None, "it closes connections at once"),
    ],
)
def test_another_program_on_the_port_is_named(start, monkeypatch, greeting, why):
    monkeypatch.setattr(client, "HANDSHAKE_S", 0.5)
    monkeypatch.setattr(client, "_PORT_TAKEN_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = serve(server, greeting)
        port = server.getsockname()[1]
        other = start(node_rank=1, host="127.0.0.1", port=port)
        assert f"what answers there is not the main node of a Lockstep run ({why})" in other.refused()
        for rank in (0, None):
            main = start(node_rank=rank, host="127.0.0.1", port=port)
            assert f"port {port} is in use by another program; end that one, or choose another port" in main.refused()
        server.shutdown(socket.SHUT_RDWR)
    thread.join(OUTER_S)


def test_the_port_of_another_run_is_in_use(start, at):
    alone = {"minimum": 1, "maximum": 1}
    first = start(**alone, **at)
    first.admitted()
    second = start(**alone, **at)
    assert "is in use by another program" in second.refused()
    assert first.error is None


def test_an_address_that_cannot_be_reached_is_named(start):
    node = start(node_rank=1, host="127.255.255.255", port=5555)  # a broadcast address: no way to it
    message = (
        "127.255.255.255:5555: the main node cannot be reached: 127.255.255.255:5555 (Network is unreachable); check"
    )
    assert message in node.refused()


def test_a_name_without_an_address_is_named(start):
    assert f"--rdzv-endpoint {'x' * 70}:5555: host" in start(node_rank=1, host="x" * 70, port=5555).refused()


def test_a_name_that_does_not_resolve_in_time_names_its_flag(start, monkeypatch):
    monkeypatch.setattr(client, "_PATIENCE_S", OUTER_S)
    message = start(node_rank=1, host="x" * 70, port=5555, join_timeout_s=1.0).refused()
    assert message.endswith("; correct --rdzv-endpoint, or give the address as a number")


def test_in_kubernetes_a_name_may_resolve_late(start, monkeypatch, at):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    known = threading.Event()

    def resolve(host):
        if not known.is_set():
            raise ConfigError(f"host {host!r} cannot be resolved")
        return ["127.0.0.1"]

    monkeypatch.setattr(client, "resolve", resolve)
    node = start(node_rank=1, host="pod-0", port=at["port"])
    assert not node.decided.wait(2.0)
    known.set()
    start(node_rank=0, **at).admitted()
    node.admitted()


def test_an_own_address_without_a_main_node_is_refused_with_advice(start, at):
    message = start(node_rank=1, host="localhost", port=at["port"]).refused()
    assert (
        "localhost is 127.0.0.1 on this machine. 127.0.0.1 is this machine's loopback address, and no main" in message
    )
    assert f"use the address of the main node: --rdzv-endpoint IP_OF_MAIN:{at['port']}" in message


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ((1, 1), "--node-rank 1 is given on 2 nodes: "),
        ((1, 2), "--node-rank 1 is given on .*, where the nodes meet: it must be node 0"),
    ],
)
def test_without_a_main_node_at_the_endpoint_all_nodes_report_it(start, at, monkeypatch, ranks, text):
    """The endpoint's machine is not node 0, and another node looks for the main one there."""
    monkeypatch.setattr(client, "is_local", lambda address: address != "127.0.0.9")
    here = start(node_rank=ranks[0], minimum=3, maximum=3, **at)
    other = start(node_rank=ranks[1], minimum=3, maximum=3, **{**at, "host": "127.0.0.9"})
    assert re.search(text, here.refused())
    assert here.refused() == other.refused()


def test_the_join_timeout_names_the_missing_nodes_on_all(start, at):
    flags = {"minimum": 3, "maximum": 3, **at}
    other = start(node_rank=2, **flags)
    main = start(node_rank=0, **{**flags, "join_timeout_s": 2.0})
    message = main.refused()
    assert message.startswith("--join-timeout 2 s is over while waiting for 1 of 3 nodes at ")
    assert ": node 1 is missing; start each missing one with --rdzv-endpoint " in message
    assert message.endswith(f":{at['port']} and its --node-rank")
    assert other.refused() == message


def test_the_join_timeout_holds_without_a_main_node(start, at, monkeypatch):
    monkeypatch.setattr(client, "_PATIENCE_S", OUTER_S)
    message = start(node_rank=1, **at, join_timeout_s=1.0).refused()
    assert message.startswith(f"--join-timeout 1 s is over while waiting for the main node at 127.0.0.1:{at['port']}")
    assert message.endswith("; start node 0 there, or correct the address")


def test_where_the_main_node_answers_nobody_is_told_to_start_it(start, at, monkeypatch):
    monkeypatch.setattr(server, "_FREE_S", OUTER_S)
    start(node_rank=0, **at)
    start(node_rank=1, **at).admitted()
    message = start(node_rank=1, **at, join_timeout_s=1.0).refused()
    assert "--node-rank 1 is taken by " in message and message.endswith("; end that one first")


def test_waiting_is_reported_on_stderr(start, at, monkeypatch, capfd):
    monkeypatch.setattr(waiting, "_FIRST_REPORT_S", 0.1)
    main = start(node_rank=0, **at)
    output = []
    until(lambda: output.append(capfd.readouterr().err) or "node 1 is missing" in "".join(output))
    assert "lockstep: waiting for 1 of 2 nodes at " in "".join(output)
    main.leave()


def test_a_node_that_ends_while_it_waits_frees_its_place(start, at):
    flags = {"minimum": 3, "maximum": 3, **at}
    main, first = start(node_rank=0, **flags), start(node_rank=1, **flags)
    assert not first.decided.wait(0.5)
    first.leave()
    assert isinstance(first.error, Cancelled)
    nodes = [main, start(node_rank=1, **flags), start(node_rank=2, **flags)]
    assert len({node.admitted().key for node in nodes}) == 1


def test_a_node_that_reconnects_keeps_its_place(start, at):
    """The main node has not noticed yet that the first connection leads nowhere."""
    flags = {"minimum": 3, "maximum": 3, **at}
    main, nodes = start(node_rank=0, **flags), Nodes(**flags)
    node = join._node_info(Nodes(**flags, node_rank=1), IDENTITY)
    until(lambda: listens("127.0.0.1", at["port"]))
    lost = framing.MessageConnection(socket.create_connection(("127.0.0.1", at["port"])))
    greeting, secret = handshake.receive_greeting(lost), handshake.run_secret(nodes)
    handshake.introduce(lost, greeting, dataclasses.replace(node, address="127.0.0.1"), secret)
    assert "node 2 is missing" in lost.receive(OUTER_S)["waiting"]

    joined = []
    again = client.RendezvousClient(nodes, node, waiting.Waiting(lambda: False, OUTER_S))
    thread = threading.Thread(target=lambda: joined.append(again.join()))
    thread.start()
    assert not main.decided.wait(0.5), main.error
    start(node_rank=2, **flags).admitted()
    key = main.admitted().key
    thread.join(OUTER_S)
    ((connection, admission),) = joined
    assert handshake.run_key(nodes.token, admission["salt"]) == key
    connection.close()
    with pytest.raises(framing.DisconnectedError):
        lost.receive(OUTER_S)
    lost.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_exception_in_the_server_thread_ends_the_rendezvous(start, at, monkeypatch):
    monkeypatch.setattr(server, "contradiction", lambda _: 1 / 0)
    assert "receiving other nodes failed: ZeroDivisionError" in start(node_rank=0, **at).refused(RunError)


def test_stopping_the_main_node_ends_the_others(start, at):
    flags = {"minimum": 3, "maximum": 3, **at}
    main, other = start(node_rank=0, **flags), start(node_rank=1, **flags)
    assert not other.decided.wait(0.5)
    main.leave()
    assert isinstance(main.error, Cancelled)
    assert "the main node has exited" in other.refused(RunError)


def test_looking_for_a_main_node_can_be_cancelled(start, at, monkeypatch):
    monkeypatch.setattr(client, "_PATIENCE_S", OUTER_S)
    node = start(node_rank=1, **at)
    assert not node.decided.wait(0.3)
    node.leave()
    assert isinstance(node.error, Cancelled)


def test_elastic_nodes_come_and_go(start, at):
    flags = {"minimum": 1, "maximum": 3, **at}
    main = start(**flags)
    key = main.admitted().key
    first, second = start(node_rank=None, **{**flags, "host": "127.0.0.1"}), start(**flags)
    assert first.admitted().key == second.admitted().key == key
    fourth = start(**flags)
    assert "the run has its 3 nodes: " in fourth.refused()
    first.leave()
    assert start(**flags).admitted().key == key


def test_elastic_nodes_wait_for_the_minimum(start, at):
    flags = {"minimum": 2, "maximum": 3, **at}
    main = start(node_rank=0, **flags)
    assert not main.decided.wait(0.5)
    assert start(node_rank=2, **flags).admitted().key == main.admitted().key


def test_later_nodes_are_judged_one_by_one(start, at):
    flags = {"minimum": 1, "maximum": 3, **at}
    main = start(node_rank=0, **flags)
    main.admitted()
    first = start(node_rank=1, **flags)
    first.admitted()
    assert "in config" in start(node_rank=2, identity={"config": "two"}, **flags).refused()
    assert "--nnodes differs: 1:3 on " in start(node_rank=2, **{**flags, "minimum": 2}).refused()
    assert "--node-rank 1 is taken by " in start(node_rank=1, **flags).refused()
    assert "--node-rank 0 is given on 2 nodes" in start(node_rank=0, **flags).refused()
    assert "sent this one away" in start(node_rank=2, token="wrong", **flags).refused()
    assert start(node_rank=2, **flags).admitted().key == main.info.key
    assert main.is_alive()
    assert first.is_alive()


def test_a_place_that_becomes_free_goes_to_a_waiting_node(start, at, monkeypatch, capfd):
    """As after a machine vanished: its connection is open until the kernel notices."""
    monkeypatch.setattr(server, "_FREE_S", OUTER_S)
    monkeypatch.setattr(waiting, "_FIRST_REPORT_S", 0.3)
    main, first = start(node_rank=0, **at), start(node_rank=1, **at)
    first.admitted()
    again = start(node_rank=1, **at)
    output = []
    until(lambda: output.append(capfd.readouterr().err) or "--node-rank 1 is taken by " in "".join(output))
    assert "; end that one first" in "".join(output), "there is no other place"
    assert not again.decided.is_set()
    first.leave()
    assert again.admitted().key == main.info.key


def test_connections_to_vanished_hosts_are_closed_by_keepalive(start, at, monkeypatch):
    seen = []
    monkeypatch.setattr(
        store_server, "enable_keepalive", lambda connection: seen.append(framing.enable_keepalive(connection))
    )
    monkeypatch.setattr(client, "enable_keepalive", seen.append)
    start(node_rank=0, **at)
    start(node_rank=1, **at).admitted()
    assert len(seen) >= 2, "each side enables it"
    with socket.socket() as connection:
        framing.enable_keepalive(connection)
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        idle, interval, count = (
            connection.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert 10 < idle + interval * count <= 25, "longer than a link that is cut for 5 s, shorter than half a minute"
        assert 1000 * 10 < connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 1000 * 25


def test_the_main_node_listens_at_the_endpoint_only(start, monkeypatch):
    monkeypatch.setattr(join, "is_loopback", lambda address: False)
    port = free_port()
    main, _ = start(node_rank=0, host="127.0.0.5", port=port), start(node_rank=1, host="127.0.0.5", port=port)
    main.admitted()
    assert listens("127.0.0.5", port)
    assert not listens("127.0.0.6", port)


def test_torchs_store_listens_at_the_endpoint_only(start, monkeypatch):
    monkeypatch.setattr(join, "is_loopback", lambda address: False)
    main = start(node_rank=0, host="127.0.0.5", port=free_port(), minimum=1, maximum=2)
    port = main.admitted().torch_port
    assert listens("127.0.0.5", port)
    assert not listens("127.0.0.6", port)


def test_localhost_listens_on_all_interfaces_only_with_other_nodes(start, at):
    port = at["port"]
    start(node_rank=0, host="localhost", port=port)
    until(lambda: listens("127.0.0.6", port))
    alone = start(minimum=1, maximum=1, host="localhost", port=free_port())
    alone.admitted()
    assert listens("127.0.0.1", alone.nodes.port)
    assert not listens("127.0.0.6", alone.nodes.port)


@pytest.mark.skipif(not interfaces.is_local("::1"), reason="this machine has no IPv6")
@pytest.mark.parametrize("addresses", [["::1"], ["::1", "127.0.0.1"]])
def test_ipv6(start, at, monkeypatch, addresses):
    """Where a name has addresses of both kinds, another node may come by either."""
    monkeypatch.setattr(client, "resolve", lambda host: addresses if host == "alpha" else [host])
    flags = {**at, "minimum": 3, "maximum": 3}
    main = start(node_rank=0, **{**flags, "host": "alpha"})
    by_ipv6, by_ipv4 = start(node_rank=1, **{**flags, "host": "::1"}), start(node_rank=2, **flags)
    assert main.admitted().key == by_ipv6.admitted().key == by_ipv4.admitted().key
    assert by_ipv6.info.main_address == by_ipv6.info.address == "::1"
    assert by_ipv4.info.main_address == by_ipv4.info.address == "127.0.0.1"
    by_ipv6.info.store.set("a", "1")
    assert by_ipv4.info.store.get("a") == b"1"


def test_a_single_node_needs_no_endpoint(start):
    info = start(minimum=1, maximum=1).admitted()
    assert (info.main, info.address, info.main_address) == (True, "127.0.0.1", "127.0.0.1")
    assert "--node-rank 1 does not exist with --nnodes 1" in start(minimum=1, maximum=1, node_rank=1).refused()


def test_local_addr_overrides_the_address(start, at):
    main = start(node_rank=0, **at, local_address="127.0.0.5")
    other = start(node_rank=1, **{**at, "host": "127.0.0.5"}, local_address="127.0.0.7")
    assert main.admitted().address == "127.0.0.5"
    assert other.admitted().address == "127.0.0.7"
    assert other.info.main_address == "127.0.0.5"
    message = start(node_rank=1, **at, local_address="10.255.255.1").refused()
    assert "--local-addr 10.255.255.1 is not an address of this machine, which has " in message
