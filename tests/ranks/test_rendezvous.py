"""The rendezvous of ranks under every launcher, and its errors: real processes, real launchers."""

import contextlib
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lockstep.launch.rank_environment import free_port

HERE = Path(__file__).parent
RANK = [sys.executable, str(HERE / "rendezvous_rank.py")]
BOUND_S = 120
LAUNCHERS = ("LOCKSTEP_", "TORCHELASTIC_", "OMPI_", "PMI", "SLURM_", "MPI_", "GLOO_", "NCCL_", "MASTER_", "RANK")


def environment(**more):
    """The environment without variables of a launcher."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)}
    return clean | {"OMP_NUM_THREADS": "1"} | more


def start(words, **variables):
    return subprocess.Popen(
        words, env=environment(**variables), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def results(*processes):
    """The results that the ranks of these processes print, by rank."""
    lines = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=BOUND_S)
            found = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
            assert found, f"{process.args}: {out}\n{err}"
            lines += [line | {"code": process.returncode, "stderr": err} for line in found]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
    return sorted(lines, key=lambda line: (line["start"], line["rank"]))


def ranks(*worlds, timeout_s=60):
    """Processes of these worlds, started by hand."""
    return results(*(start([*RANK, json.dumps(world), str(timeout_s)]) for world in worlds))


def check_complete(lines, size):
    """All ranks have joined, once each."""
    assert [line["rank"] for line in lines] == list(range(size)), lines
    assert [line.get("sum") for line in lines] == [float("1" * size)] * size, lines


def check_errors(lines, kind, *words, within_s=30):
    """Every rank reports the same error, soon."""
    assert lines
    for line in lines:
        assert line.get("kind") == kind, lines
        assert all(word in line["error"] for word in words), lines
        assert line["seconds"] < within_s, lines


# -- contradictions ----------------------------------------------------------------------------------------------------


def test_a_duplicate_rank_ends_all():
    port = free_port()
    twice = ranks(*({"rank": rank, "size": 3, "port": port} for rank in (0, 1, 1)))
    check_errors(twice, "ConfigError", "rank 1 came twice", "--node-rank")
    assert [line["code"] for line in twice] == [2, 2, 2]


def test_a_second_rank_0_is_reported_by_all():
    port, first = free_port(), {"rank": 0, "size": 3}
    processes = [start([*RANK, json.dumps({"rank": rank, "size": 3, "port": port})]) for rank in (0, 1)]
    with contextlib.ExitStack() as probes:
        until = time.monotonic() + BOUND_S
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                probes.enter_context(socket.create_connection(("127.0.0.1", port)))
                break
            time.sleep(0.05)
    processes.append(start([*RANK, json.dumps(first | {"port": port})]))
    check_errors(results(*processes), "ConfigError", "rank 0 came twice")


def test_different_world_sizes_end_all():
    port = free_port()
    lines = ranks({"rank": 0, "size": 2, "port": port}, {"rank": 1, "size": 4, "port": port})
    check_errors(lines, "ConfigError", "disagree", "WORLD_SIZE=4", "WORLD_SIZE=2")


# Errors that appear only after a timeout: all of these are waited for at once.
SLOW = {
    "token": [{"rank": 0, "size": 2, "token": "a"}, {"rank": 1, "size": 2}],
    "missing": [{"rank": 0, "size": 5}, {"rank": 2, "size": 5}],
    "elsewhere": [{"rank": 0, "size": 2, "address": "192.0.2.77"}],
    "unknown": [{"rank": 1, "size": 2, "address": "no-such-host.invalid"}],
    "loopback": [{"rank": 0, "size": 2, "local_rank": 0, "local_size": 1}],
}


@pytest.fixture(scope="module")
def slow():
    """`slow(name)`: the results of the ranks of `SLOW[name]`. All of them start with the first call."""
    started = {}

    def lines(name):
        if not started:
            for each, worlds in SLOW.items():
                timeout_s, port = "8" if each == "missing" else "60", free_port()
                words = [[*RANK, json.dumps(world | {"port": port}), timeout_s] for world in worlds]
                started[each] = [start(word) for word in words]
        return results(*started[name])

    yield lines
    for process in (process for processes in started.values() for process in processes):
        process.kill()
        process.communicate()


def test_a_rank_with_another_token_is_reported_by_all(slow):
    check_errors(slow("token"), "ConfigError", "token", "rank 1", "LOCKSTEP_TOKEN")


def test_missing_ranks_are_named(slow):
    lines = slow("missing")
    check_errors(lines, "PeerError", "ranks 1, 3-4 did not come within startup_timeout_s=8")
    assert [line["code"] for line in lines] == [1, 1]


def test_the_address_of_another_machine_is_refused_by_rank_0(slow):
    check_errors(slow("elsewhere"), "ConfigError", "MASTER_ADDR=192.0.2.77", "not an address of host")


def test_a_name_that_does_not_resolve_is_named(slow):
    check_errors(slow("unknown"), "ConfigError", "no-such-host.invalid")


def test_loopback_between_hosts_is_refused(slow):
    check_errors(slow("loopback"), "ConfigError", "MASTER_ADDR=127.0.0.1 is loopback", "address of rank 0's host")


def test_a_port_in_use_is_named():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        lines = ranks({"rank": 0, "size": 2, "port": other.getsockname()[1]})
        check_errors(lines, "ConfigError", "MASTER_PORT", "in use")


def test_several_hosts_on_one_machine_may_use_loopback():
    world = {"size": 2, "local_rank": 0, "local_size": 1, "port": free_port()}
    lines = ranks(*(world | {"rank": rank} for rank in (0, 1)))
    check_complete(lines, 2)
    assert {line["interface"] for line in lines} == {"lo"}  # chosen as the interface towards rank 0


@pytest.mark.slow
def test_an_extra_process_is_refused_and_does_not_disturb_the_others():
    world = {"size": 2, "port": free_port()}
    first = [start([*RANK, json.dumps(world | {"rank": rank})], STAYS="1") for rank in (0, 1)]
    try:
        assert all("sum" in json.loads(process.stdout.readline()) for process in first)
        check_errors(ranks(world | {"rank": 1}), "ConfigError", "complete without this process", "rank 1")
        assert [process.poll() for process in first] == [None, None]  # the others continue
    finally:
        for process in first:
            process.kill()
            process.communicate()


# -- a file ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [None, "", "stale"])
def test_ranks_find_each_other_through_a_file(tmp_path, before):
    path = tmp_path / "run7"
    if before == "stale":
        from lockstep.distributed.network import init_file

        init_file.publish(path, ["127.0.0.1"], free_port(), "gone", alive=lambda _: False)
    elif before is not None:
        path.write_text(before)
    check_complete(ranks(*({"rank": rank, "size": 2, "init_file": str(path)} for rank in (0, 1))), 2)
    assert not path.exists()


def test_a_stale_file_does_not_lead_into_another_run(tmp_path):
    """The port in it may now be that of a live run which waits for the same rank."""
    from lockstep.distributed.network import init_file

    path, port = tmp_path / "run7", free_port()
    other = start([*RANK, json.dumps({"rank": 0, "size": 2, "port": port}), "15"])
    init_file.publish(path, ["127.0.0.1"], port, "gone", alive=lambda _: False)
    world = {"size": 2, "init_file": str(path)}
    first = start([*RANK, json.dumps(world | {"rank": 1})])
    (alone,) = results(other)  # both have waited: this rank, and the one with the stale file
    assert "rank 1 did not come" in alone["error"]
    assert "waiting for rank 1 of 2" in alone["stderr"]
    check_complete(results(first, start([*RANK, json.dumps(world | {"rank": 0})])), 2)


# -- launchers ---------------------------------------------------------------------------------------------------------

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["--standalone", "--master-port={port}"], ids=["c10d", "static"])
def test_every_restart_under_torchrun_has_its_own_rendezvous(kind):
    lines = results(
        start(
            [*TORCHRUN, kind.format(port=free_port()), "--max-restarts=5", str(HERE / "rendezvous_rank.py")], DIES="5"
        )
    )
    assert [(line["start"], line["rank"], line.get("sum")) for line in lines] == [
        (number, rank, 11.0) for number in range(6) for rank in (0, 1)
    ]


def test_torch_distributed_launch_joins():
    words = [sys.executable, "-W", "ignore", "-m", "torch.distributed.launch", "--use-env", "--nproc-per-node=2"]
    check_complete(results(start([*words, f"--master-port={free_port()}", str(HERE / "rendezvous_rank.py")])), 2)


SRUN = """#!/bin/sh
# Stands in for srun: 2 nodes with 2 tasks each, all on this machine. SLURM's variables, and nothing else.
for rank in 0 1 2 3; do
    SLURM_JOB_ID=$JOB SLURM_STEP_ID=0 SLURM_PROCID=$rank SLURM_LOCALID=$((rank % 2)) SLURM_NODEID=$((rank / 2)) \\
    SLURM_NTASKS=4 SLURM_STEP_NUM_TASKS=4 SLURM_NNODES=2 SLURM_TASKS_PER_NODE='2(x2)' \\
    SLURM_STEP_TASKS_PER_NODE='2(x2)' SLURM_STEP_NODELIST='127.0.0.1,127.0.0.2' "$@" &
done
wait
"""


@pytest.mark.real_start
def test_tasks_of_srun_join(tmp_path):
    srun = tmp_path / "srun"
    srun.write_text(SRUN)
    srun.chmod(srun.stat().st_mode | stat.S_IXUSR)
    lines = results(start([str(srun), *RANK], JOB=str(os.getpid())))
    check_complete(lines, 4)
    assert [(line["local_rank"], line["node"]) for line in lines] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert {line["launcher"] for line in lines} == {"SLURM"}


@pytest.mark.parametrize(
    "flags",
    [
        {},
        *(
            pytest.param(flags, marks=pytest.mark.slow)
            for flags in ({"init_file": "met"}, {"master_addr": "127.0.0.1"})
        ),
    ],
)
def test_ranks_of_mpirun_join(tmp_path, flags):
    mpirun = shutil.which("mpirun.openmpi")
    if mpirun is None:
        pytest.skip("Open MPI is not installed (apt-get install openmpi-bin)")
    if "master_addr" in flags:
        flags = flags | {"master_port": str(free_port())}
    words = [mpirun, "--allow-run-as-root", "--oversubscribe", "--wdir", str(tmp_path), "-n", "3", *RANK]
    lines = results(start([*words, json.dumps(flags)]))
    check_complete(lines, 3)
    assert [line["local_rank"] for line in lines] == [0, 1, 2]
    assert {line["launcher"] for line in lines} == {"Open MPI"}


@pytest.mark.slow
def test_ranks_of_mpich_join():
    mpiexec = shutil.which("mpiexec.hydra")
    if mpiexec is None:
        pytest.skip("MPICH is not installed (apt-get install mpich)")
    lines = results(start([mpiexec, "-n", "3", *RANK]))
    check_complete(lines, 3)
    assert {(line["launcher"], line["code"]) for line in lines} == {("MPICH", 0)}
