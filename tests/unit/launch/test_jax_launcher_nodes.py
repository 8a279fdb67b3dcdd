"""`python -m lockstep.launch.jax --nnodes=2`: two launchers on this machine that start, fail and stop together."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from importlib.util import find_spec

import pytest

from lockstep.launch.rank_environment import free_port

BOUND_S = 90.0
# Rank 0 takes the port that the user typed, as `jax.distributed` would, and the others come to it.
MEET = """
import json, os, socket, sys, time
rank, size = int(os.environ["JAX_RANK"]), int(os.environ["JAX_WORLD_SIZE"])
where = os.environ["JAX_COORDINATOR_ADDR"], int(os.environ["JAX_COORDINATOR_PORT"])
if rank == 0:
    with socket.create_server(("", where[1])) as server:
        came = sorted(int(server.accept()[0].recv(9)) for _ in range(size - 1))
    assert came == list(range(1, size)), came
else:
    for _ in range(100):
        try:
            with socket.create_connection(where) as made:
                made.sendall(str(rank).encode())
            break
        except ConnectionRefusedError:
            time.sleep(0.1)
local, node = os.environ["JAX_LOCAL_RANK"], os.environ["JAX_NODE_RANK"]
print(json.dumps([rank, size, where[0], where[1], local, node]), flush=True)
"""
# A sum over processes with JAX alone, from the variables alone.
SUM = """
import os
import jax

jax.config.update("jax_platforms", "cpu")
where = os.environ["JAX_COORDINATOR_ADDR"] + ":" + os.environ["JAX_COORDINATOR_PORT"]
jax.distributed.initialize(where, int(os.environ["JAX_WORLD_SIZE"]), int(os.environ["JAX_RANK"]))
from jax.experimental.multihost_utils import process_allgather

print(f"{float(process_allgather(jax.numpy.ones(1)).sum()):.0f} together", flush=True)
"""


@pytest.fixture
def start(tmp_path):
    """`start(node_rank, *flags)` starts a launcher of 2 ranks of `tmp_path/script.py`, in the background."""
    port, started = free_port(), []

    def _start(node_rank, *flags, nnodes=2, nproc=2, address=f"127.0.0.1:{port}"):
        numbered = [] if node_rank is None else [f"--node_rank={node_rank}"]
        words = [f"--nnodes={nnodes}", f"--nproc_per_node={nproc}", *numbered, f"--coordinator_address={address}"]
        command = [sys.executable, "-m", "lockstep.launch.jax", *words, *flags, "script.py"]
        left = ("RANK", "WORLD_SIZE", "JAX_RANK", "JAX_WORLD_SIZE")
        own = {name: value for name, value in os.environ.items() if name not in left}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, cwd=tmp_path, env=own, **pipes))
        return started[-1]

    _start.port = port
    yield _start
    for one in started:
        one.kill()
        one.communicate()


def end(*nodes):
    """Exit codes, and what was printed and said."""
    told = [node.communicate(timeout=BOUND_S) for node in nodes]
    return [node.returncode for node in nodes], [out for out, _ in told], [err for _, err in told]


@pytest.mark.parametrize("numbered", [True, False])
def test_two_nodes_meet_and_leave_the_port_to_rank_0(start, tmp_path, numbered):
    (tmp_path / "script.py").write_text(MEET)
    one = start(0 if numbered else None)
    two = start(1 if numbered else None)
    codes, out, err = end(one, two)
    assert codes == [0, 0], err
    told = sorted(json.loads(line) for line in "".join(out).splitlines())
    assert told == [[rank, 4, "127.0.0.1", start.port, str(rank % 2), str(rank // 2)] for rank in range(4)]


@pytest.mark.skipif(find_spec("jax") is None, reason="needs JAX")
def test_jax_itself_meets_at_the_address_that_was_typed(start, tmp_path):
    (tmp_path / "script.py").write_text(SUM)
    codes, out, err = end(start(0), start(1))
    assert codes == [0, 0], err
    assert [text.count("4 together") for text in out] == [2, 2]


def test_nodes_may_have_different_numbers_of_ranks(start, tmp_path):
    (tmp_path / "script.py").write_text(MEET)
    codes, out, err = end(start(1, nproc=1), start(0, nproc=2))
    assert codes == [0, 0], err
    assert [json.loads(line)[:2] for line in out[0].splitlines()] == [[2, 3]]


def test_a_failure_on_one_node_ends_the_other_with_the_same_code(start, tmp_path):
    script = "import os, sys, time\nif os.environ['JAX_RANK'] == '3': time.sleep(1); sys.exit(7)\ntime.sleep(99)"
    (tmp_path / "script.py").write_text(script)
    began = time.monotonic()
    codes, _, err = end(start(0), start(1))
    assert codes == [7, 7]
    assert time.monotonic() - began < 30
    assert all("rank 3 exited with code 7" in text for text in err)


def test_a_signal_to_one_node_ends_both(start, tmp_path):
    script = "import pathlib, os, time; pathlib.Path(os.environ['JAX_RANK'] + '.up').touch(); time.sleep(99)"
    (tmp_path / "script.py").write_text(script)
    nodes = [start(0), start(1)]
    until(lambda: len(list(tmp_path.glob("*.up"))) == 4, nodes)
    nodes[1].send_signal(signal.SIGTERM)
    codes, _, err = end(*nodes)
    assert codes == [143, 143], err
    assert "interrupted by SIGTERM" in err[0] and "interrupted by SIGTERM" in err[1]


def until(condition, nodes):
    deadline = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < deadline and all(node.poll() is None for node in nodes), end(*nodes)
        time.sleep(0.05)


def test_all_start_again_together_after_a_failure(start, tmp_path):
    script = "import os, sys\nrestarts = int(os.environ['LOCKSTEP_RESTARTS'])\n"
    script += "sys.exit(7 if restarts == 0 and os.environ['JAX_RANK'] == '2' else 0)"
    (tmp_path / "script.py").write_text(script)
    codes, _, err = end(start(0, "--max-restarts=1"), start(1, "--max-restarts=1"))
    assert codes == [0, 0], err
    assert all("restart 1 of 1" in text for text in err)


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ({"node_rank": 0}, "--node-rank 0 is given on 2 nodes"),
        ({"node_rank": 1, "nnodes": 3}, "--nnodes differs: 2 on .*, 3 on "),
        ({"node_rank": None}, "--node-rank is given on .* but not on"),
    ],
)
def test_nodes_that_contradict_each_other_hear_the_same(start, tmp_path, second, said):
    (tmp_path / "script.py").write_text("open('began', 'w')")
    codes, _, err = end(start(0), start(**second))
    assert codes == [2, 2], err
    assert all(re.search(said, text) for text in err), err
    assert not (tmp_path / "began").exists()


def test_an_address_where_nobody_is_names_the_flag(start, tmp_path):
    (tmp_path / "script.py").touch()
    codes, _, err = end(start(1))
    assert codes == [2]
    assert f"lockstep: error: --coordinator_address 127.0.0.1:{start.port}: 127.0.0.1 is this machine's" in err[0]


def test_a_main_node_whose_port_is_in_use_says_so(start, tmp_path):
    (tmp_path / "script.py").touch()
    with socket.create_server(("127.0.0.1", start.port)):
        codes, _, err = end(start(0))
    assert codes == [2]
    assert f"--coordinator_address: port {start.port} is in use by another program" in err[0]
