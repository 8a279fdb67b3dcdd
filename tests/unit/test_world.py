"""Who a rank is, what it holds, where its randomness comes from."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.errors import ConfigError
from lockstep.world import World, block, stream, stream_seed


def test_a_world_of_one_needs_nothing():
    world = World.from_environment({})
    assert (world.rank, world.size, world.local_rank, world.local_size, world.num_shards) == (0, 1, 0, 1, 1)
    assert (world.launcher, world.pinned, world.shards) == ("none", False, range(1))
    with pytest.raises(dataclasses.FrozenInstanceError):
        world.rank = 1


def test_torchrun():
    variables = {
        "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1",
        "MASTER_ADDR": "node0", "MASTER_PORT": "29500",
    }  # fmt: skip
    world = World.from_environment(variables)
    assert (world.rank, world.size, world.local_rank, world.local_size, world.node_rank) == (5, 8, 1, 4, 1)
    assert (world.address, world.port, world.launcher) == ("node0", 29500, "torchrun")
    assert World.from_environment(variables | {"LOCKSTEP_LAUNCHER": "lockstep"}).launcher == "lockstep"


def test_open_mpi():
    world = World.from_environment({
        "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    })  # fmt: skip
    assert (world.rank, world.size, world.local_rank, world.local_size) == (3, 4, 1, 2)
    assert world.launcher == "Open MPI"


SLURM = {
    "SLURM_PROCID": "5", "SLURM_NTASKS": "7", "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_STEP_ID": "0",
    "SLURM_TASKS_PER_NODE": "4,3",
}  # fmt: skip


def test_slurm_takes_the_rank_from_the_global_variable_and_the_device_from_the_local_one():
    world = World.from_environment(SLURM)
    assert (world.rank, world.size, world.local_rank, world.local_size, world.node_rank) == (5, 7, 1, 3, 1)
    even = World.from_environment(SLURM | {"SLURM_NTASKS": "8", "SLURM_TASKS_PER_NODE": "4(x2)"})
    assert even.local_size == 4


def test_the_shell_of_a_batch_script_is_no_rank():
    assert World.from_environment({k: v for k, v in SLURM.items() if k != "SLURM_STEP_ID"}).size == 1


def test_a_torchrun_inside_slurm_wins():
    assert World.from_environment(SLURM | {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}).size == 2


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rank": 2, "size": 2}, ["rank=2", "size=2"]),
        ({"rank": -1, "size": 2}, ["rank=-1"]),
        ({"size": 0}, ["size=0"]),
        ({"rank": 1, "size": 2, "local_rank": 1, "local_size": 1}, ["local_rank=1", "local_size=1"]),
        ({"size": 2, "local_size": 4}, ["local_size=4"]),
        ({"size": 4, "num_shards": 2}, ["num_shards=2", "4 ranks", "--ranks 2"]),
        ({"size": 2, "port": 70000}, ["port=70000", "65535", "MASTER_PORT"]),
        ({"size": 2, "port": -1}, ["port=-1"]),
    ],
)
def test_worlds_that_cannot_be_are_refused(fields, words):
    with pytest.raises(ConfigError) as refused:
        World(**fields)
    assert all(word in str(refused.value) for word in words), refused.value


def test_a_variable_that_is_no_number_is_named():
    with pytest.raises(ConfigError, match="WORLD_SIZE='two'"):
        World.from_environment({"RANK": "0", "WORLD_SIZE": "two"})


def test_shards_are_pinned_or_one_per_rank():
    world = World(rank=1, size=2)
    assert (world.with_shards(None).num_shards, world.with_shards(None).pinned) == (2, False)
    assert (world.with_shards(6).shards, world.with_shards(6).pinned) == (range(3, 6), True)
    assert world.with_shards(2).pinned


def test_a_count_that_does_not_divide_names_its_neighbours():
    world = World(size=8)
    with pytest.raises(ConfigError, match="num_envs=100 does not divide among 8 shards; use 96 or 104"):
        world.shard_size(100, "num_envs")
    with pytest.raises(
        ConfigError, match=r"num_envs=3 does not divide among 8 shards; use 8 \(shards: equal parts of a run, "
    ):
        world.shard_size(3, "num_envs")
    assert world.shard_size(96, "num_envs") == 12


@settings(deadline=None)
@given(size=st.integers(1, 12), more=st.integers(0, 12), each=st.integers(1, 5))
def test_shards_are_dealt_once_in_order_and_evenly(size, more, each):
    shards = size + more
    worlds = [World(rank=rank, size=size, num_shards=shards) for rank in range(size)]
    assert [shard for world in worlds for shard in world.shards] == list(range(shards))
    assert max(len(w.shards) for w in worlds) - min(len(w.shards) for w in worlds) <= 1
    assert sum(world.share(each * shards) for world in worlds) == each * shards


@settings(deadline=None)
@given(total=st.integers(0, 50), parts=st.integers(1, 12))
def test_blocks_cover_a_range(total, parts):
    assert [i for part in range(parts) for i in block(total, parts, part)] == list(range(total))


def raw(generator: np.random.Generator, count: int = 5000) -> set[int]:
    return set(generator.bit_generator.random_raw(count).tolist())


def test_streams_are_reproducible_and_never_overlap():
    keys = [(seed, name, index) for seed in (0, 1, 11) for name in ("action", "minibatch") for index in (0, 1, 10)]
    drawn = [raw(stream(*key)) for key in keys]
    assert len(set().union(*drawn)) == 5000 * len(keys)
    assert drawn == [raw(stream(*key)) for key in keys]
    # The place of a separator cannot make two keys one.
    assert raw(stream(1, "a", 11)) != raw(stream(11, "a", 1)) != raw(stream(1, "1/a", 1))


def test_seeds_for_libraries_are_far_apart():
    seeds = [stream_seed(0, "env", i) for i in range(1000)]
    assert len(set(seeds)) == 1000
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert not set(seeds) & {stream_seed(1, "env", i) for i in range(1000)}
