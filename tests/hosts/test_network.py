"""The hosts themselves: apart like machines, and gone without a trace."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from network import NAMES, wait_for

SERVER = """
import socket
server = socket.create_server(("", 5000))
print("listening", flush=True)
connection, (peer, _) = server.accept()
print("connected", peer, flush=True)
while data := connection.recv(100):
    print(data.decode(), flush=True)
print("closed", flush=True)
"""
CLIENT = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], 5000))
connection.send(b"first")
while True:
    time.sleep(0.2)
    connection.send(b"again")
"""


def connected(client, server):
    listening = server.start([sys.executable, "-c", SERVER])
    listening.tells("listening")
    sending = client.start([sys.executable, "-c", CLIENT, server.name])
    wait_for(lambda: "again" in listening.said, lambda: listening.said + sending.said)
    return listening, sending


def test_hosts_are_apart_like_machines(network):
    hosts = network(4).hosts
    assert [host.run("hostname").strip() for host in hosts] == list(NAMES)
    hosts[0].run("touch /dev/shm/mine shared-file")
    assert hosts[1].run("ls /dev/shm") == ""
    assert hosts[1].run("ls") == "shared-file\n", "the working directory is the same one, as on NFS"
    sleeping = hosts[0].start("sleep 1000")
    seen = hosts[1].run(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"])
    assert "sleep 1000" not in seen, "processes of another host must not be seen"
    assert sleeping.running
    assert "eth0" in hosts[0].run("ls /sys/class/net")
    assert socket.gethostname() not in NAMES, "the machine that runs the tests keeps its own name"


def test_names_resolve_to_the_address_or_to_loopback_as_asked(network):
    for own_name, own in (("address", "10.77.0.1"), ("127.0.1.1", "127.0.1.1"), ("localhost", "127.0.0.1")):
        alpha = network(2, own_name=own_name).hosts[0]
        assert alpha.run("getent ahostsv4 alpha").split()[0] == own
        assert alpha.run("getent ahostsv4 beta").split()[0] == "10.77.0.2"
        fqdn = alpha.run([sys.executable, "-c", "import socket; print(socket.getfqdn())"]).strip()
        assert fqdn == ("localhost" if own_name == "localhost" else "alpha")


def test_a_cut_link_loses_nothing_once_it_is_back(network):
    alpha, beta = network(2).hosts
    listening, sending = connected(alpha, beta)
    alpha.cut()
    before = alpha.start("sleep 1")
    before.wait()
    silent = listening.said
    alpha.start("sleep 1").wait()
    assert listening.said == silent, "a cut link carries something"
    alpha.restore()
    wait_for(lambda: len(listening.said) > len(silent))
    assert sending.running
    assert listening.running


def test_a_host_that_vanishes_closes_nothing_and_comes_back(network):
    alpha, beta = network(2).hosts
    listening, sending = connected(alpha, beta)
    alpha.vanish()
    assert sending.wait() == 137
    beta.start("sleep 1").wait()
    assert listening.running, "a power cut tells nobody"
    assert "closed" not in listening.said
    alpha.up()
    connected(beta, alpha)


def test_nothing_stays_behind_not_even_after_sigkill(tmp_path, network):
    network(1)  # skips where there can be none
    program = f"""
import sys, time
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from network import Network
network = Network(2, Path({str(tmp_path)!r}) / "killed")
started = network.hosts[0].start("sleep 4321")
print(started.process.pid, network.hosts[0]._namespaces.pid, network._switch.pid, flush=True)
time.sleep(1000)
"""
    killed = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert killed.stdout is not None
    pids = killed.stdout.readline().split()
    assert len(pids) == 3
    killed.kill()
    killed.wait()
    killed.stdout.close()
    wait_for(lambda: not any(is_alive(pid) for pid in pids), within_s=20)


def is_alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("number", [15, 9])
def test_exit_codes_and_signals_are_those_of_the_command(network, number):
    alpha = network(1).hosts[0]
    assert alpha.start("sh -c 'exit 7'").wait() == 7
    sleeping = alpha.start("sleep 1000")
    sleeping.signal(number)
    assert sleeping.wait() == 128 + number
