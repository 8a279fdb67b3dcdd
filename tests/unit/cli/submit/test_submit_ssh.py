"""One ssh per host: what is printed is what runs; the first failure ends all; nothing lives on where nobody listens."""

import shlex
import signal
import subprocess
import sys
import threading
import time

import pytest
from submitting import program, refusal, text_of

from lockstep.cli import main as cli
from lockstep.cli.submit import ssh_group

pytestmark = pytest.mark.usefixtures("here")
GIVEN = ("cartpole", "--on", "ssh", "--hosts", "alpha,me@beta", "--name", "two", "--lockstep", "lockstep")
WITHIN_S = 60
# Runs the command here, as a login shell on HOST would; `gone` is a host that cannot be reached, which is known once
# the launcher on alpha runs.
SSH = """\
for last; do host=$before; before=$last; done
echo "$host" >> hosts
case $host in gone)
for _ in $(seq 300); do [ -e up_alpha ] && break; sleep 0.1; done
echo "ssh: connect to host gone port 22: No route to host" >&2; exit 255;; esac
HOST=$host exec bash -c "$last"
"""
# Writes down who it is, what it is told, and how it ends; `script_HOST` says what else it does.
LAUNCHER = """
import os, pathlib, signal, sys, time
host = os.environ["HOST"]
caught = []
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda number, _: caught.append(number))
pathlib.Path("words_" + host).write_text(chr(10).join(sys.argv[1:]))
assert sys.stdin.read() == "", "the launcher's input is for nobody"
print("hello from", host, flush=True)
print("trouble at", host, file=sys.stderr, flush=True)
script = pathlib.Path("script_" + host)
code = script.read_text() if script.exists() else ""
pathlib.Path("up_" + host).touch()
end = time.monotonic() + 30
while not code.isdigit() and not caught and time.monotonic() < end:
    time.sleep(0.01)
    code = script.read_text() if script.exists() else ""
pathlib.Path("caught_" + host).write_text(" ".join(str(int(n)) for n in caught))
sys.exit(128 + caught[0] if caught else int(code))
"""


@pytest.fixture
def hosts(here, programs):
    program(programs, "ssh", SSH, "/bin/bash")
    program(programs, "lockstep", LAUNCHER)
    return here


def start(*words):
    command = [sys.executable, "-m", "lockstep.cli", "submit", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def wait_for(paths):
    deadline = time.monotonic() + WITHIN_S
    while not all(path.exists() for path in paths):
        assert time.monotonic() < deadline, f"waited in vain for {paths}"
        time.sleep(0.02)


def caught(folder, host):
    wait_for([folder / f"caught_{host}"])
    return (folder / f"caught_{host}").read_text()


def ends(folder, **codes):
    for host, code in codes.items():
        (folder / f"script_{host}").write_text(str(code))


def test_each_host_gets_its_launcher_and_says_who_it_is(hosts):
    ends(hosts, **{"alpha": 0, "me@beta": 0})
    running = start(*GIVEN, "--nproc-per-node", "2", "--set", "env.kwargs={sutton_barto_reward: true}")
    out, err = running.communicate(timeout=WITHIN_S)
    assert running.returncode == 0, err
    assert sorted(out.splitlines()) == ["[alpha] hello from alpha", "[me@beta] hello from me@beta"]
    assert sorted(err.splitlines()) == ["[alpha] trouble at alpha", "[me@beta] trouble at me@beta"]
    for rank, host in enumerate(("alpha", "me@beta")):
        words = (hosts / f"words_{host}").read_text().split("\n")
        assert words[:4] == ["train", "cartpole", "--set", "env.kwargs={sutton_barto_reward: true}"]
        rest = (
            f"--nnodes 2 --nproc-per-node 2 --grace-s 120 --node-rank {rank} --rdzv-endpoint alpha:29500 --rdzv-id two"
        )
        assert words[4:] == rest.split()


def test_what_is_printed_can_be_typed(capsys, hosts):
    """The commands of a dry run, in one shell each; nothing of them needs this process."""
    ends(hosts, **{"alpha": 0, "me@beta": 3})
    commands = [line for line in text_of(capsys, *GIVEN).splitlines() if line.startswith("ssh ")]
    assert len(commands) == 2
    codes = []
    for command in commands:
        typed = subprocess.Popen(["bash", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        codes.append(typed.wait(WITHIN_S))
        typed.stdin.close()
    assert codes == [0, 3]


def test_the_first_failure_ends_all(hosts, monkeypatch):
    monkeypatch.setattr(ssh_group, "_PEERS_EXIT_S", 0.5)
    ends(hosts, **{"me@beta": 7})
    assert cli.main(["submit", *GIVEN]) == 7
    assert caught(hosts, "alpha") == str(int(signal.SIGTERM)), "a launcher that goes on is told to end"


def test_a_host_that_cannot_be_reached_ends_all_at_once(hosts):
    running = start(*GIVEN[:4], "alpha,gone", *GIVEN[5:])
    _, err = running.communicate(timeout=WITHIN_S)
    assert running.returncode == 1
    assert "[gone] ssh: connect to host gone" in err
    assert "lockstep: error: ssh to gone failed or lost its connection (code 255" in err
    assert "ssh -o BatchMode=yes gone true" in err
    assert caught(hosts, "alpha") == str(int(signal.SIGTERM))


def test_a_host_without_the_command_ends_all_at_once(hosts, capfd):
    ends(hosts, alpha=127)
    assert cli.main(["submit", *GIVEN[:4], "alpha", *GIVEN[5:]]) == 1
    assert "no launcher could be started on alpha (code 127" in capfd.readouterr().err


def test_a_machine_without_ssh_is_refused(capsys, here, monkeypatch):
    monkeypatch.setenv("PATH", str(here))
    assert "there is no ssh here" in refusal(capsys, *GIVEN, dry_run=False)
    assert "ssh" in text_of(capsys, *GIVEN)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1], ids=lambda number: number.name)
def test_signals_reach_every_launcher(hosts, number):
    running = start(*GIVEN)
    wait_for([hosts / "up_alpha", hosts / "up_me@beta"])
    running.send_signal(number)
    _, err = running.communicate(timeout=WITHIN_S)
    assert running.returncode == 128 + number, err
    sent = signal.SIGTERM if number == signal.SIGINT else number  # a launcher ignores SIGINT until it has started
    assert caught(hosts, "alpha") == caught(hosts, "me@beta") == str(int(sent))


def test_launchers_end_when_the_connection_closes(hosts):
    """SIGKILL, or a cable: the far side hears that its input ends."""
    running = start(*GIVEN)
    wait_for([hosts / "up_alpha", hosts / "up_me@beta"])
    running.kill()
    running.communicate(timeout=WITHIN_S)
    assert caught(hosts, "alpha") == caught(hosts, "me@beta") == str(int(signal.SIGTERM))


def test_hosts_that_come_and_go(hosts, capfd):
    ends(hosts, gamma=5)

    def finish():
        wait_for([hosts / "caught_gamma", hosts / "up_alpha"])
        time.sleep(2)  # gamma writes before it ends
        ends(hosts, alpha=0)

    main_host = threading.Thread(target=finish)
    main_host.start()
    assert cli.main(["submit", *GIVEN[:4], "alpha,gamma", *GIVEN[5:], "--nnodes", "1:2", "--set", "num_shards=2"]) == 0
    main_host.join()
    assert "gamma ended with code 5; the others continue" in capfd.readouterr().err


def test_nodes_that_come_and_go_have_no_fixed_rank(capsys):
    text = text_of(capsys, *GIVEN, "--nnodes", "1:2", "--set", "num_shards=4")
    assert "--nnodes 1:2" in text and "--node-rank" not in text


def test_where_to_meet(capsys):
    assert "--rdzv-endpoint alpha:4000" in text_of(capsys, *GIVEN, "--port", "4000")
    assert "--rdzv-endpoint 10.0.0.1:4000" in text_of(capsys, *GIVEN, "--rdzv-endpoint", "10.0.0.1:4000")
    assert "--rdzv-endpoint beta:29500" in text_of(capsys, *GIVEN[:4], "me@beta,alpha", *GIVEN[5:])
    assert "--rdzv-endpoint localhost:29500" in text_of(capsys, *GIVEN[:4], "an-alias", *GIVEN[5:]), "one host"


@pytest.mark.parametrize("address", ["fe80::1", "fd00:0:0:1::a", "fe80::1%eth0"])
def test_an_ipv6_address_is_bracketed(address, capsys):
    text = text_of(capsys, *GIVEN[:4], f"me@{address},b", *GIVEN[5:])
    for line in (line for line in text.splitlines() if line.startswith("ssh ")):
        launcher = shlex.split(shlex.split(shlex.split(line)[-1])[-1])
        assert launcher[launcher.index("--rdzv-endpoint") + 1] == f"[{address}]:29500"
    assert f" me@{address} " in text


def test_a_file_of_hosts(capsys, here):
    (here / "hosts").write_text("# mine\nalpha\n\nbeta  # the fast one\n")
    text = text_of(capsys, "cartpole", "--on", "ssh", "--hostfile", "hosts", "--lockstep", "lockstep")
    assert [shlex.split(line)[-2] for line in text.splitlines() if line.startswith("ssh ")] == ["alpha", "beta"]


def test_odd_names_survive_two_shells(hosts):
    folder = hosts / "a b'c"
    folder.mkdir()
    for name in ("alpha", "me@beta"):
        (folder / f"script_{name}").write_text("0")
    given = [*GIVEN, "--chdir", str(folder), "--setup", "export A='x y'", "--run-dir", "r'1 2"]
    running = start(*given)
    out, err = running.communicate(timeout=WITHIN_S)
    assert running.returncode == 0, out + err
    words = (folder / "words_alpha").read_text().split("\n")
    assert words[words.index("--run-dir") + 1] == "r'1 2"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--hosts", "alpha,alpha"], "once"),
        (["--hosts", "alpha,-oProxyCommand=x"], "is not HOST"),
        (["--hosts", "alpha slots=4"], "--nproc-per-node"),
        (["--hosts", "alpha,"], "is not HOST"),
        (["--hosts", "alpha:22,beta"], "'alpha:22' is no IPv6 address"),
        (["--hosts", ""], "--hostfile"),
        (["--hosts", "alpha", "--hostfile", "x"], "one of the two"),
        (["--hostfile", "nowhere"], "cannot be read"),
        (["--hosts", "alpha,beta", "--nnodes", "3"], "2 hosts are named"),
        (["--hosts", "alpha", "--nnodes", "3"], "1 host is named"),
        (["--hosts", "alpha,beta", "--rdzv-endpoint", "alpha"], "HOST:PORT"),
        (["--hosts", "alpha", "--rdzv-endpoint", "alpha:1", "--port", "4000"], "give one"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_invalid_arguments_are_refused(capsys, words, says):
    assert says in refusal(capsys, "cartpole", "--on", "ssh", "--num-envs", "12", *words)
