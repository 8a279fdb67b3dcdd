"""Rank, world size and address from the variables of each launcher."""

import pytest

from lockstep.errors import ConfigError
from lockstep.system.launchers import hosts, rank_fields
from lockstep.world import World

SRUN = {
    "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NODEID": "1",
    "SLURM_NTASKS": "7", "SLURM_TASKS_PER_NODE": "4,3", "SLURM_JOB_NODELIST": "gpu[07-08]",
}  # fmt: skip
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_NODE_RANK": "1", "PMIX_NAMESPACE": "123.1", "PMIX_RANK": "3",
}  # fmt: skip
HYDRA = {"PMI_RANK": "2", "PMI_SIZE": "6", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2", "PMI_FD": "6"}


def place(world):
    return world.rank, world.size, world.local_rank, world.local_size, world.node_rank


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("n1", ["n1"]),
        ("n[01-03,7],m2", ["n01", "n02", "n03", "n7", "m2"]),
        ("rack[1-2]n[09-10]", ["rack1n09", "rack1n10", "rack2n09", "rack2n10"]),
        ("a[1,3]-ib,b", ["a1-ib", "a3-ib", "b"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("node-a.cluster.local,10.0.0.1", ["node-a.cluster.local", "10.0.0.1"]),
        ("", []),
    ],
)
def test_node_lists_are_expanded(text, expanded):
    assert hosts(text) == expanded


@pytest.mark.parametrize("text", ["n[1-", "n[a-b]", "n]1[", "n[1-99999999]", "n m", "n[]"])
def test_malformed_node_lists_are_rejected(text):
    with pytest.raises(ConfigError, match="MASTER_ADDR"):
        hosts(text)


def test_srun_over_two_hosts_uses_the_first_as_address():
    world = World.from_environment(SRUN)
    assert place(world) == (5, 7, 1, 3, 1)
    assert (world.address, world.launcher) == ("gpu07", "SLURM")
    assert 10_000 <= world.port < 30_000
    others = [World.from_environment(SRUN | change) for change in ({"SLURM_STEP_ID": "1"}, {"SLURM_JOB_ID": "78"})]
    assert len({world.port, *(other.port for other in others)}) == 3  # two steps at once do not meet
    assert len({world.token, *(other.token for other in others)}) == 3
    assert (
        World.from_environment(SRUN | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}).port
        == world.port
    )


def test_srun_step_variables_take_precedence():
    step = {"SLURM_STEP_NUM_TASKS": "6", "SLURM_STEP_TASKS_PER_NODE": "3(x2)", "SLURM_STEP_NODELIST": "gpu[10-11]"}
    world = World.from_environment(SRUN | step)
    assert (*place(world), world.address) == (5, 6, 1, 3, 1, "gpu10")


def test_srun_on_one_host_uses_loopback():
    one = {"SLURM_NTASKS": "8", "SLURM_TASKS_PER_NODE": "8", "SLURM_NODEID": "0", "SLURM_LOCALID": "5"}
    world = World.from_environment(SRUN | one)
    assert (*place(world), world.address) == (5, 8, 5, 8, 0, "127.0.0.1")


def test_master_addr_takes_precedence():
    override = {"MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "4242", "LOCKSTEP_TOKEN": "secret"}
    for launcher in (SRUN, MPIRUN, HYDRA):
        world = World.from_environment(launcher | override)
        assert (world.address, world.port, world.token) == ("10.0.0.9", 4242, "secret")
    assert "secret" not in repr(world)


@pytest.mark.parametrize("step", ["4294967290", "4294967291", "4294967292"])
def test_allocation_shell_is_not_a_rank(step):
    assert rank_fields(SRUN | {"SLURM_STEP_ID": step}) is None


@pytest.mark.parametrize(
    "alone",
    [
        SRUN | {"SLURM_NTASKS": "1", "SLURM_PROCID": "0"},
        SRUN | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},
        MPIRUN | {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"},
        HYDRA | {"PMI_SIZE": "1", "PMI_RANK": "0"},
    ],
)
def test_the_only_process_of_a_launcher_is_not_a_rank(alone):
    """It may start ranks itself: as the shell of `srun --pty bash`, or under `mpirun -n 1`."""
    assert rank_fields(alone) is None
    torchrun = {"RANK": "0", "WORLD_SIZE": "1"}
    assert World.from_environment(alone | torchrun).launcher == "torchrun", "whose number of ranks may grow"


def test_open_mpi_node_rank_is_derived():
    world = World.from_environment(MPIRUN | {"OMPI_COMM_WORLD_NODE_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "1"})
    assert (*place(world), world.launcher, world.port) == (3, 4, 1, 2, 1, "Open MPI", 0)


def test_mpich_variables_are_read():
    world = World.from_environment(HYDRA)
    assert (*place(world), world.launcher) == (2, 6, 0, 2, 1, "MPICH")


def test_srun_with_pmi_is_slurm():
    world = World.from_environment(SRUN | {"PMI_RANK": "5", "PMI_SIZE": "7", "PMI_FD": "9"})
    assert (*place(world), world.launcher) == (5, 7, 1, 3, 1, "SLURM")


def test_innermost_launcher_takes_precedence():
    torchrun = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}
    assert place(World.from_environment(SRUN | MPIRUN | torchrun)) == (1, 2, 1, 2, 0)
    assert place(World.from_environment(SRUN | MPIRUN)) == (3, 4, 1, 2, 1)  # mpirun starts its daemons through srun
    assert place(World.from_environment(SRUN | HYDRA)) == (2, 6, 0, 2, 1)


def test_pytorchjob_pods_are_separate_hosts():
    pod = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}
    assert place(World.from_environment(pod | {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})) == (3, 4, 0, 1, 3)
    assert place(World.from_environment(pod)) == (3, 4, 3, 4, 0)  # by hand, on one machine


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"SLURM_PROCID": "five"}, "SLURM_PROCID"),
        ({"SLURM_LOCALID": ""}, "SLURM_LOCALID"),
        ({"SLURM_TASKS_PER_NODE": "4(y2)"}, "SLURM_TASKS_PER_NODE"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT"),
    ],
)
def test_error_names_the_invalid_variable(change, name):
    with pytest.raises(ConfigError, match=name):
        World.from_environment(SRUN | change)


JAX = {
    "JAX_RANK": "3", "JAX_WORLD_SIZE": "4", "JAX_LOCAL_RANK": "1",
    "JAX_COORDINATOR_ADDR": "10.0.0.1", "JAX_COORDINATOR_PORT": "5555",
}  # fmt: skip


def test_jax_launcher_variables_are_read():
    world = World.from_environment(JAX)
    assert (world.rank, world.size, world.local_rank) == (3, 4, 1)
    assert (world.address, world.port, world.launcher) == ("10.0.0.1", 5555, "a JAX launcher")
    assert place(World.from_environment(JAX | {"LOCAL_WORLD_SIZE": "2"})) == (3, 4, 1, 2, 1)
    assert World.from_environment({"JAX_RANK": "0", "JAX_WORLD_SIZE": "2"}).address == "127.0.0.1"


def test_jax_launcher_precedence():
    assert World.from_environment(SRUN | JAX).rank == 3
    inner = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29501"}
    world = World.from_environment(JAX | inner)
    assert (world.rank, world.size, world.address, world.port) == (1, 2, "127.0.0.1", 29501)


@pytest.mark.parametrize("pair", [("RANK", "WORLD_SIZE"), ("JAX_RANK", "JAX_WORLD_SIZE")])
def test_a_rank_without_a_world_size_or_the_reverse_is_refused(pair):
    """Each of several ranks that are started so would train alone, and write the same files."""
    for name, other in (pair, pair[::-1]):
        with pytest.raises(ConfigError, match=f"^{name}=1 is set, but {other} is not; .* or unset {name}$"):
            World.from_environment({name: "1"})
        assert World.from_environment(MPIRUN | {name: "1"}).launcher == "Open MPI", "its own variables say which rank"


def test_invalid_jax_rank_is_rejected():
    with pytest.raises(ConfigError, match="JAX_RANK='x' is not a number"):
        World.from_environment(JAX | {"JAX_RANK": "x"})
