"""What ranks are told, and how failures are written down."""

import json
import os
import random
import socket
import subprocess
import sys

import pytest

from lockstep.errors import ConfigError
from lockstep.launch import local
from lockstep.launch.rank_environment import RankPlacement, free_port, rank_environments
from lockstep.record.failure import archive_failure, read_failure, record_failure
from lockstep.system.cores import threads_are_chosen
from lockstep.world import World


def test_ranks_find_their_world(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("LOCKSTEP_TERMINAL_FD", "7")
    environments = rank_environments(3, 8)
    worlds = [World.from_environment(environment) for environment in environments]
    assert [(w.rank, w.size, w.local_rank, w.local_size, w.node_rank) for w in worlds] == [
        (rank, 3, rank, 3, 0) for rank in range(3)
    ]
    assert {(w.address, w.launcher) for w in worlds} == {("127.0.0.1", "lockstep")}
    assert len({w.port for w in worlds}) == 1 and worlds[0].port > 0
    assert environments[0]["LOCKSTEP_LAUNCHER_PID"] == str(os.getpid())
    assert not {"TORCHELASTIC_USE_AGENT_STORE", "LOCKSTEP_TERMINAL_FD"} & set(environments[0])


@pytest.mark.parametrize("ranks, cores, threads", [(2, 8, "4"), (3, 8, "2"), (4, 2, "1"), (1, 5, "5")])
def test_ranks_share_the_cores_as_threads(ranks, cores, threads, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert rank_environments(ranks, cores)[0]["OMP_NUM_THREADS"] == threads


def test_threads_the_user_set_stay(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert rank_environments(2, 8)[1]["OMP_NUM_THREADS"] == "3"
    assert rank_environments(2, 8, {"OMP_NUM_THREADS": "5"})[1]["OMP_NUM_THREADS"] == "5"


def test_an_empty_number_of_threads_counts_as_not_set(monkeypatch):
    monkeypatch.delenv("LOCKSTEP_USER_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    environment = rank_environments(2, 8)[0]
    assert environment["OMP_NUM_THREADS"] == "4" and "LOCKSTEP_USER_THREADS" not in environment
    assert not threads_are_chosen()


def test_a_free_port_is_not_one_somebody_listens_on():
    with socket.socket() as listener:
        listener.bind(("", 0))
        listener.listen()
        ports = {free_port() for _ in range(20)}
        assert listener.getsockname()[1] not in ports
    assert len(ports) > 1


def test_a_free_port_leaves_the_callers_random_numbers_alone():
    random.seed(1)
    expected = random.random()
    random.seed(1)
    free_port()
    assert random.random() == expected


def test_no_rank_is_refused():
    with pytest.raises(ConfigError, match="ranks=0 must be at least 1"):
        rank_environments(0, 2)


def test_more_ranks_than_cores_is_one_warning(monkeypatch, capfd):
    monkeypatch.setattr(local, "usable_cores", lambda: 2)
    assert local.launch(["true"], ranks=3, run_dir=None) == 0
    assert capfd.readouterr().err == "lockstep: 3 ranks share 2 usable cores and will take turns\n"
    assert local.launch(["true"], ranks=2, run_dir=None) == 0
    assert capfd.readouterr().err == ""


def test_the_first_failure_stays(tmp_path):
    assert read_failure(tmp_path) is None
    assert record_failure(tmp_path, rank=1, message="first", code=3, phase="act")
    assert not record_failure(tmp_path, rank=0, message="second", code=1)
    assert read_failure(tmp_path) == {"rank": 1, "code": 3, "message": "first", "phase": "act"}


def test_a_failure_that_is_kept_makes_room_for_the_next(tmp_path):
    assert archive_failure(tmp_path) is None
    for number in (1, 2):
        assert record_failure(tmp_path, rank=number, message="m", code=3)
        kept = archive_failure(tmp_path)
        assert kept == tmp_path / "logs" / f"failure_{number}.json"
        assert json.loads(kept.read_text())["rank"] == number
        assert read_failure(tmp_path) is None
        assert archive_failure(tmp_path) is None


def test_a_failure_that_cannot_be_written_counts_as_the_first(tmp_path):
    assert record_failure(tmp_path / "missing", rank=0, message="m", code=1), "nobody has recorded another"
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "failure.json").write_text('{"rank": 1, "co')
    assert read_failure(tmp_path) is None


def test_importing_lockstep_imports_nothing_heavy():
    code = "import sys, lockstep, lockstep.launch.child; print({'numpy', 'torch', 'gymnasium'} & set(sys.modules))\n"
    code += "from lockstep import World, spawn; import lockstep.launch.local; print('torch' in sys.modules)\n"
    code += "print(set(lockstep.__all__) <= set(dir(lockstep)), hasattr(lockstep, 'nothing'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:3] == ["set()", "False", "True False"]


def test_other_systems_are_refused_in_one_line_when_launching():
    code = "import sys; sys.platform = 'darwin'; import lockstep\n"
    code += "try: import lockstep.launch.child\nexcept lockstep.ConfigError as error: print(error)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("lockstep starts ranks on Linux only, and this is 'darwin'; use ")


def test_ranks_of_jax_scripts_get_jax_variables_only(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "7")
    monkeypatch.setenv("JAX_RANK", "6")
    place = RankPlacement(node_rank=1, num_nodes=2, first_rank=2, world_size=4, address="10.0.0.1", port=5555)
    environment = rank_environments(2, 8, placement=place, ml_framework="jax")[1]
    expected = {"JAX_RANK": "3", "JAX_LOCAL_RANK": "1", "JAX_WORLD_SIZE": "4", "JAX_LOCAL_WORLD_SIZE": "2"}
    expected |= {"JAX_NODE_RANK": "1", "JAX_COORDINATOR_ADDR": "10.0.0.1", "JAX_COORDINATOR_PORT": "5555"}
    assert {name: environment.get(name) for name in expected} == expected
    assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"} & set(environment)
    world = World.from_environment(environment)
    assert (world.rank, world.size, world.local_rank, world.local_size, world.node_rank) == (3, 4, 1, 2, 1)
    assert (world.address, world.port, world.launcher) == ("10.0.0.1", 5555, "lockstep")


def test_other_ranks_get_torchrun_variables_only(monkeypatch):
    monkeypatch.setenv("JAX_RANK", "6")
    monkeypatch.setenv("JAX_WORLD_SIZE", "7")
    environment = rank_environments(2, 8)[1]
    assert (environment["RANK"], environment["WORLD_SIZE"]) == ("1", "2")
    assert not {"JAX_RANK", "JAX_WORLD_SIZE", "JAX_COORDINATOR_ADDR"} & set(environment)


def test_ranks_of_one_machine_meet_where_the_caller_says_and_not_where_an_outer_launcher_did(monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "10.9.9.9")
    monkeypatch.setenv("MASTER_PORT", "1")
    assert rank_environments(1, 1)[0]["MASTER_ADDR"] == "127.0.0.1"
    assert rank_environments(1, 1)[0]["MASTER_PORT"] != "1"
    told = rank_environments(1, 1, {"MASTER_ADDR": "127.0.0.2", "MASTER_PORT": "5555"})[0]
    assert (told["MASTER_ADDR"], told["MASTER_PORT"]) == ("127.0.0.2", "5555")
    given = {"MASTER_ADDR": "127.0.0.2", "MASTER_PORT": "5555"}
    jax = rank_environments(1, 1, given, ml_framework="jax")[0]
    assert (jax["JAX_COORDINATOR_ADDR"], jax["JAX_COORDINATOR_PORT"]) == ("127.0.0.2", "5555")
