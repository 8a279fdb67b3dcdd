"""Checkpoints beside training, on one rank; with several ranks: tests/ranks/test_resume.py."""

import errno
import os
import threading
import time

import numpy as np
import pytest

from lockstep.errors import ConfigError
from lockstep.record import checkpoint
from lockstep.record.checkpoint_writer import CheckpointWriter
from lockstep.record.run_dir import RunDir
from lockstep.world import World


def keeper(run_dir, warnings=None, world=None, num_kept=3):
    world = world or World(num_shards=2)
    return CheckpointWriter(
        run_dir, world, lambda value, tag: [value], (warnings if warnings is not None else []).append, num_kept
    )


def manifest(step):
    return {"format": checkpoint.FORMAT, "step": step, "num_shards": 2, "world_size": 1, "run": {}}


def keep(one, step, value=0.0):
    one.take(manifest(step), {"v": np.full(3, value)}, {0: {"k": 0}, 1: {"k": 1}})
    return one.finish(lambda: None)


def names(run_dir):
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir())


def test_what_was_taken_is_loaded(tmp_path):
    assert keep(keeper(tmp_path), 10, 2.5) == 10
    told, learner, shards = keeper(tmp_path).load(None)
    assert (told["step"], learner["v"].tolist(), shards) == (10, [2.5] * 3, {0: {"k": 0}, 1: {"k": 1}})
    assert names(tmp_path) == ["LATEST", "step_10"]


def test_a_full_disk_does_not_stop_a_resumption_from_the_newest_checkpoint(tmp_path, monkeypatch):
    keep(keeper(tmp_path), 10)
    keep(keeper(tmp_path), 20)

    def full(path, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_atomically", full)
    keeper(tmp_path).continue_after(20)
    with pytest.raises(ConfigError, match=r"LATEST cannot be written \(No space left on device\); free its disk"):
        keeper(tmp_path).continue_after(10)


def test_each_rank_loads_its_own_shards(tmp_path):
    keep(keeper(tmp_path), 10)
    other = keeper(tmp_path, world=World(rank=1, size=2))
    assert other.load(None)[2] == {1: {"k": 1}}


def test_without_checkpoint_there_is_nothing_to_load(tmp_path):
    assert keeper(tmp_path).load(None) is None
    assert keeper(tmp_path).finish(lambda: None) == -1


def test_training_goes_on_while_the_disk_is_slow_and_what_it_changes_is_not_written(tmp_path, monkeypatch):
    slow, write = threading.Event(), checkpoint.write_state
    monkeypatch.setattr(checkpoint, "write_state", lambda *args: (slow.wait(10), write(*args))[1])
    one, value = keeper(tmp_path), np.zeros(3)
    one.take(manifest(10), {"v": value}, {0: {}, 1: {}})
    value[:] = 1
    assert one.busy
    assert one.checkpoint_pending
    slow.set()
    assert one.finish(lambda: None) == 10
    assert not one.busy
    assert keeper(tmp_path).load(None)[1]["v"].tolist() == [0, 0, 0]


def test_a_full_disk_costs_one_warning_and_no_earlier_checkpoint(tmp_path, monkeypatch):
    warnings = []
    one, write = keeper(tmp_path, warnings), checkpoint.write_state
    assert keep(one, 10) == 10

    def full(path, *args):
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(checkpoint, "write_state", full)
    assert keep(one, 20) == -1
    assert keep(one, 30) == -1
    assert len(warnings) == 1
    assert "step 20 could not be written (rank 0: No space left on device" in warnings[0]
    assert names(tmp_path) == ["LATEST", "step_10"]
    assert keeper(tmp_path).load(None)[0]["step"] == 10
    monkeypatch.setattr(checkpoint, "write_state", write)
    assert keep(one, 40) == 40


def test_a_disk_that_is_full_only_for_the_manifest(tmp_path, monkeypatch):
    warnings = []
    one = keeper(tmp_path, warnings)

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_atomically", full)
    assert keep(one, 10) == -1
    assert len(warnings) == 1
    assert names(tmp_path) == []


def test_lines_are_on_the_disk_before_the_checkpoint_that_counts_on_them(tmp_path, monkeypatch):
    run_dir, synced = RunDir.create(tmp_path / "run", {}), []
    run_dir.write_metrics(10, 1.0, {"x": 1.0})
    run_dir.write_evaluation(10, [1.0], [1])
    fsync = os.fsync

    def seen(descriptor):
        name = os.readlink(f"/proc/self/fd/{descriptor}").removeprefix(f"{run_dir.path}")
        synced.append((name, (run_dir.path / "checkpoints" / "step_10").exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", seen)
    one = CheckpointWriter(
        run_dir.path, World(num_shards=2), lambda value, tag: [value], print, 3, before_commit=run_dir.sync
    )
    assert keep(one, 10) == 10
    assert {("/metrics.jsonl", False), ("/evaluations.jsonl", False), ("", False)} <= set(synced)
    run_dir.close()


def test_files_that_rank_0_does_not_see_make_no_checkpoint(tmp_path):
    """The other rank's host has a directory of the same name, on a disk of its own."""
    warnings, elsewhere = [], {"files": {"shard_1.safetensors": {"size": 1, "sha256": "0"}}}

    def gather(value, tag):
        return [value, elsewhere] if isinstance(value, dict) else [value, value]

    one = CheckpointWriter(tmp_path, World(size=2), gather, warnings.append, 3)
    one.take(manifest(10), {}, {0: {}})
    assert one.finish(lambda: None) == -1
    assert "rank 0 does not see shard_1.safetensors" in warnings[0]
    assert names(tmp_path) == []


def test_a_commit_that_fails_late_does_not_take_the_next_checkpoint_with_it(tmp_path, monkeypatch):
    warnings, begun = [], threading.Event()
    one, commit = keeper(tmp_path, warnings), checkpoint.commit

    def slow(run_dir, told, num_kept):
        if told["step"] == 10:
            begun.wait(10)
            raise OSError(errno.ENOSPC, "No space left on device")
        commit(run_dir, told, num_kept)

    monkeypatch.setattr(checkpoint, "commit", slow)
    one.take(manifest(10), {"v": np.zeros(3)}, {0: {}, 1: {}})
    while one.busy:
        time.sleep(0.01)
    one.conclude()
    one.take(manifest(20), {"v": np.ones(3)}, {0: {}, 1: {}})
    begun.set()
    assert one.finish(lambda: None) == 20
    assert "step 10 could not be written" in warnings[0]
    assert names(tmp_path) == ["LATEST", "step_20"]


def test_one_rank_that_cannot_write_is_named_and_nobody_commits(tmp_path):
    warnings, failed = [], {"error": "No space left on device"}

    def gather(value, tag):
        return [value, failed] if isinstance(value, dict) else [value, value]

    one = CheckpointWriter(tmp_path, World(size=2), gather, warnings.append, 3)
    one.take(manifest(10), {}, {0: {}})
    assert one.finish(lambda: None) == -1
    assert "(rank 1: No space left on device)" in warnings[0]
    assert names(tmp_path) == []


def test_a_damaged_checkpoint_is_left_out_for_the_one_before(tmp_path):
    warnings = []
    one = keeper(tmp_path)
    keep(one, 10), keep(one, 20), keep(one, 30)
    for step, name in ((30, "learner.safetensors"), (20, "shard_1.safetensors")):
        path = tmp_path / "checkpoints" / f"step_{step}" / name
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    resumed = keeper(tmp_path, warnings)
    assert resumed.load(None)[0]["step"] == 10
    assert [w.split(":")[0] for w in warnings] == [
        "checkpoint step_30 is damaged and skipped",
        "checkpoint step_20 is damaged and skipped",
    ]
    assert (tmp_path / "checkpoints" / "LATEST").read_text() == "step_30\n"  # the run may be refused
    resumed.continue_after(10)
    assert (tmp_path / "checkpoints" / "LATEST").read_text() == "step_10\n"


def test_when_no_checkpoint_is_whole_the_run_does_not_begin_anew_in_silence(tmp_path):
    keep(keeper(tmp_path), 10)
    (tmp_path / "checkpoints" / "step_10" / "shard_0.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"no whole checkpoint to resume from.*shard_0\.safetensors cannot be read"):
        keeper(tmp_path).load(None)


def test_the_named_checkpoint_is_the_one_to_go_on_from(tmp_path):
    one = keeper(tmp_path)
    keep(one, 10, 1.0), keep(one, 20, 2.0)
    resumed = keeper(tmp_path)
    assert resumed.load(tmp_path / "checkpoints" / "step_10")[1]["v"].tolist() == [1, 1, 1]
    resumed.continue_after(10)
    assert [path.name for path in checkpoint.find(tmp_path)] == ["step_10"]


def test_what_was_given_up_leaves_nothing(tmp_path):
    one = keeper(tmp_path)
    keep(one, 10)
    one.take(manifest(20), {}, {0: {}, 1: {}})
    one.close()
    assert names(tmp_path) == ["LATEST", "step_10"]


def test_room_for_the_copy_is_made_beside_training(tmp_path):
    one, value = keeper(tmp_path), np.ones(3)
    one.prepare({"v": value}, {0: {}, 1: {}})
    assert one.finish(lambda: None) == -1
    room = one._copy["learner.safetensors"]["v"]
    value[:] = 2
    assert keep(one, 10) == 10
    one.take(manifest(20), {"v": value}, {0: {}, 1: {}})
    assert one._copy["learner.safetensors"]["v"] is room
    assert one.finish(lambda: None) == 20
    assert keeper(tmp_path).load(None)[1]["v"].tolist() == [2, 2, 2]
