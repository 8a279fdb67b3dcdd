"""Collectives of two ranks on GPUs, which are pretended: as with NCCL, and with gloo where ranks share one GPU."""

import pretended_gpu_ranks
import pytest

from lockstep import spawn
from lockstep.launch.rank_environment import free_port

pytestmark = pytest.mark.slow
WAYS = ("nccl plain", "nccl pinned", "gloo plain", "gloo pinned")


@pytest.fixture(scope="module")
def ranks():
    return spawn(pretended_gpu_ranks.sums, 2, ({way: free_port() for way in WAYS},), timeout_s=120)


@pytest.mark.parametrize("way", WAYS)
def test_sums_are_those_of_all_ranks(ranks, way):
    num_shards = 4 if way.endswith("pinned") else 2
    mean = sum(1.0 + shard for shard in range(num_shards)) / (2.0 * num_shards)
    for rank in ranks:
        *steps, largest, received = rank[way]["results"]
        assert steps == [[mean, step / 2.0, 2.0 * num_shards] for step in range(3)]
        assert largest == [1, 2, 3]
        assert received == [1, 2, 3]
        assert rank[way]["on device"]


@pytest.mark.parametrize("way", ["nccl plain", "nccl pinned"])
def test_a_gradient_step_of_several_ranks_does_not_wait_for_the_gpu(ranks, way):
    assert [rank[way]["waits"] for rank in ranks] == [[0] * 3] * 2


def test_different_collectives_are_detected():
    for rank, said in enumerate(spawn(pretended_gpu_ranks.different, 2, (free_port(),), timeout_s=120)):
        assert said.startswith("ranks are in different collectives"), said
        assert f"rank {rank} is in {'one' if rank else 'another'}" in said
