"""Checkpoints of two ranks, each a thread of this process: what one of them finds out holds for both."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from lockstep.errors import ConfigError
from lockstep.record import checkpoint
from lockstep.record.checkpoint_writer import CheckpointWriter
from lockstep.world import World

RANKS = 2


def together(run_dir, act, warnings=None):
    """What `act(keeper, rank)` returns, or the error it ends with, for each rank."""
    meet, told = threading.Barrier(RANKS, timeout=5), [None] * RANKS

    def on(rank):
        def gather(value, tag):
            told[rank] = value
            meet.wait()
            every = list(told)
            meet.wait()
            return every

        warn = (warnings if warnings is not None and rank == 0 else []).append
        try:
            return act(CheckpointWriter(run_dir, World(rank=rank, size=RANKS), gather, warn, 3), rank)
        except (ConfigError, threading.BrokenBarrierError) as error:
            return error

    with ThreadPoolExecutor(RANKS) as threads:
        return list(threads.map(on, range(RANKS)))


def keep(*steps):
    def act(keeper, rank):
        for step in steps:
            manifest = {"format": checkpoint.FORMAT, "step": step, "num_shards": RANKS, "world_size": RANKS, "run": {}}
            keeper.take(manifest, {"v": np.full(3, step)}, {rank: {"at": step}})
            keeper.finish(lambda: None)

    return act


def load(keeper, rank):
    manifest, learner, shards = keeper.load(None)
    return manifest["step"], learner["v"].tolist(), shards


def damage(run_dir, step, name):
    path = run_dir / "checkpoints" / f"step_{step}" / name
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_each_rank_writes_its_own_and_reads_its_own(tmp_path):
    together(tmp_path, keep(10, 20))
    files = {path.name for path in (tmp_path / "checkpoints" / "step_20").iterdir()}
    assert files == {"manifest.json", "learner.safetensors", "shard_0.safetensors", "shard_1.safetensors"}
    assert together(tmp_path, load) == [(20, [20] * 3, {rank: {"at": 20}}) for rank in range(RANKS)]


@pytest.mark.parametrize("shard", range(RANKS))
def test_what_is_damaged_for_one_rank_is_left_out_by_all(tmp_path, shard):
    warnings = []
    together(tmp_path, keep(10, 20))
    damage(tmp_path, 20, f"shard_{shard}.safetensors")
    expected = [(10, [10] * 3, {rank: {"at": 10}}) for rank in range(RANKS)]
    assert together(tmp_path, load, warnings) == expected, "the ranks went on from different checkpoints"
    assert len(warnings) == 1
    assert f"step_20 is damaged and skipped: {tmp_path}/checkpoints/step_20/shard_{shard}.safetensors" in warnings[0]


def test_when_none_is_whole_every_rank_refuses(tmp_path):
    together(tmp_path, keep(10, 20))
    damage(tmp_path, 20, "shard_0.safetensors")
    damage(tmp_path, 10, "shard_1.safetensors")
    for error in together(tmp_path, load):
        assert isinstance(error, ConfigError)
        assert "no whole checkpoint to resume from" in str(error)
        assert "step_10/shard_1.safetensors is not what was written" in str(error)
