"""Checkpoint files: what is read is what was written, or it is refused; nothing in them is ever run."""

import errno
import json
import math
import os
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import load_file

from lockstep.errors import ConfigError
from lockstep.record import checkpoint
from lockstep.record.checkpoint import FORMAT, DamagedError, read_manifest, read_state, snapshot, write_state
from lockstep.record.partial_files import remove_partial_files

STATE = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "generator": np.random.default_rng(3).bit_generator.state,
    "philox": np.random.Generator(np.random.Philox(key=1)).bit_generator.state,
    "list": [1, 2.5, None, "x", True, [np.zeros(0), np.array(7, np.int64)]],
    "bool": np.array([True, False]),
    "bits": np.array([-0.0, np.nan, np.inf]),
}


def same(a, b):
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray):
        return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    return type(a) is type(b) and a == b


def fake(run_dir, step, *, num_kept=3, **more):
    """A checkpoint of one small shard, whole."""
    beside = checkpoint.partial(run_dir, step)
    beside.mkdir(parents=True)
    files = {
        name: write_state(beside / name, {"step": step}) for name in ("learner.safetensors", "shard_0.safetensors")
    }
    manifest = {"format": FORMAT, "step": step, "num_shards": 1, "world_size": 1, "run": {}, "files": files, **more}
    checkpoint.commit(run_dir, manifest, num_kept)
    return run_dir / "checkpoints" / f"step_{step}"


def test_a_tree_comes_back_as_it_was(tmp_path):
    entry = write_state(tmp_path / "x.safetensors", STATE)
    assert entry["size"] == os.path.getsize(tmp_path / "x.safetensors")
    assert same(read_state(tmp_path / "x.safetensors", entry), STATE)


@settings(deadline=None, max_examples=50)
@given(
    arrays=st.lists(
        hnp.arrays(
            st.sampled_from(["f4", "f8", "f2", "i8", "u8", "i4", "u1", "?", ">f4", ">i8"]),
            hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
        ),
        max_size=4,
    )
)
def test_any_array_comes_back(arrays, tmp_path_factory):
    path = tmp_path_factory.mktemp("any") / "x"
    back = read_state(path, write_state(path, {"arrays": arrays}))["arrays"]
    for was, now in zip(arrays, back, strict=True):
        assert now.shape == was.shape
        assert now.tobytes() == was.astype(was.dtype.newbyteorder("<")).tobytes()


def test_arrays_whose_paths_are_alike_come_back(tmp_path):
    one, two, three = (np.full(2, value) for value in (1.0, 2.0, 3.0))
    state = {"a/b": one, "a": {"b": two, "b+": three}, "__metadata__": one}
    assert same(read_state(tmp_path / "x", write_state(tmp_path / "x", state)), state)


def test_the_library_reads_our_files(tmp_path):
    write_state(tmp_path / "x.safetensors", {"deep": {"a": STATE["a"].T}})
    assert (load_file(tmp_path / "x.safetensors")["deep/a"] == STATE["a"].T).all()


@pytest.mark.parametrize("value", [object(), {1, 2}, np.array(["text"]), 1j], ids=lambda v: type(v).__name__)
def test_what_cannot_be_kept_is_named(value, tmp_path):
    with pytest.raises(TypeError, match="env/thing"):
        write_state(tmp_path / "x", {"env": {"thing": value}})


def test_a_snapshot_does_not_follow_its_original():
    state = {"a": [np.zeros(3)], "n": np.float32(2)}
    copy = snapshot(state)
    state["a"][0][:] = 1
    assert (copy["a"][0] == 0).all()
    assert copy["n"] == 2.0


def test_a_snapshot_takes_over_the_memory_of_an_earlier_one_and_nothing_else_of_it():
    first = snapshot({"a": np.zeros(3), "b": np.zeros(2), "gone": np.zeros(1), "list": [np.zeros(1)]})
    state = {"a": np.ones(3), "b": np.ones(4), "new": np.ones(1), "list": [np.ones(1)]}
    second = snapshot(state, first)
    assert second["a"] is first["a"]
    assert same(second, state)
    assert second["a"] is not state["a"]


@pytest.mark.parametrize("place", [0, 9, 200, -1], ids=["length", "header", "middle", "end"])
@pytest.mark.parametrize("bit", [0, 7])
def test_any_flipped_bit_is_noticed(place, bit, tmp_path):
    path = tmp_path / "x"
    entry = write_state(path, STATE)
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << bit
    path.write_bytes(data)
    with pytest.raises(DamagedError, match="SHA-256"):
        read_state(path, entry)


@pytest.mark.parametrize("cut", [0, 7, 100, -1])
def test_a_file_cut_short_is_noticed(cut, tmp_path):
    path = tmp_path / "x"
    entry = write_state(path, STATE)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DamagedError, match="bytes, its manifest says"):
        read_state(path, entry)


def test_a_pickle_in_a_file_runs_nothing(tmp_path):
    """Also with a manifest that vouches for it."""
    import hashlib

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "executed"),)

    path, data = tmp_path / "x", pickle.dumps(Evil())
    path.write_bytes(data)
    with pytest.raises(DamagedError, match="not a file of a checkpoint"):
        read_state(path, {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()})
    (tmp_path / "step_1").mkdir()
    (tmp_path / "step_1" / "manifest.json").write_bytes(data)
    with pytest.raises(DamagedError, match="not the manifest"):
        read_manifest(tmp_path / "step_1")
    assert not (tmp_path / "executed").exists()


def test_nothing_of_a_checkpoint_is_seen_before_it_is_whole(tmp_path):
    checkpoint.partial(tmp_path, 5).mkdir(parents=True)
    assert checkpoint.find(tmp_path) == []
    assert checkpoint.find(tmp_path / "nowhere") == []


def test_a_checkpoint_whose_replacement_was_cut_short_is_found_and_continued(tmp_path):
    fake(tmp_path, 10)
    newest = fake(tmp_path, 20)
    moved = newest.rename(newest.with_name(".replaced_step_20"))  # a kill between the two renames of `commit`
    checkpoint.partial(tmp_path, 20).mkdir()
    assert [path.name for path in checkpoint.find(tmp_path)] == [moved.name, "step_10"]
    assert read_manifest(checkpoint.find(tmp_path)[0])["step"] == 20
    remove_partial_files(tmp_path)
    assert [path.name for path in checkpoint.find(tmp_path)] == ["step_20", "step_10"]


def test_the_newest_and_the_best_stay(tmp_path):
    for step, score in ((10, 1.0), (20, 9.0), (30, 9.0), (40, 2.0), (50, 3.0), (60, None)):
        fake(tmp_path, step, num_kept=2, eval_return_mean=score)
    assert [path.name for path in checkpoint.find(tmp_path)] == ["step_60", "step_50", "step_20"]
    assert (tmp_path / "checkpoints" / "LATEST").read_text() == "step_60\n"
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"LATEST", "step_20", "step_50", "step_60"}


def test_a_score_that_is_no_number_is_not_the_best(tmp_path):
    for step, score in ((10, math.nan), (20, 9.0), (30, 1.0), (40, 2.0)):
        fake(tmp_path, step, num_kept=1, eval_return_mean=score)
    assert [path.name for path in checkpoint.find(tmp_path)] == ["step_40", "step_20"]


def test_an_old_checkpoint_that_cannot_be_removed_does_not_spoil_a_new_one(tmp_path, monkeypatch):
    def busy(path, **_):  # as NFS keeps the name of a file that a reader has open
        raise OSError(errno.ENOTEMPTY, "Directory not empty", str(path))

    fake(tmp_path, 10, num_kept=1)
    monkeypatch.setattr(os, "rmdir", busy)
    fake(tmp_path, 20, num_kept=1)
    assert [path.name for path in checkpoint.find(tmp_path)] == ["step_20"]


def test_without_evaluations_the_newest_stay(tmp_path):
    for step in (10, 20, 30):
        fake(tmp_path, step, num_kept=2)
    assert [path.name for path in checkpoint.find(tmp_path)] == ["step_30", "step_20"]


def test_what_lies_after_latest_belongs_to_another_future(tmp_path):
    for step in (10, 20, 30):
        fake(tmp_path, step)
    checkpoint.set_latest(tmp_path, "step_10")
    assert [path.name for path in checkpoint.find(tmp_path)] == ["step_10"]
    fake(tmp_path, 15)
    assert [path.name for path in checkpoint.find(tmp_path)] == ["step_15", "step_10"]
    fake(tmp_path, 20, mark="new")  # in place of the old one
    assert read_manifest(tmp_path / "checkpoints" / "step_20")["mark"] == "new"
    fake(tmp_path, 40)
    assert [path.name for path in checkpoint.find(tmp_path)] == ["step_40", "step_20", "step_15"]


def test_a_copy_under_another_name_stays(tmp_path):
    kept = [fake(tmp_path, 10).rename(tmp_path / "checkpoints" / name) for name in ("step_10_keep", "step_best")]
    for step in (20, 30):
        fake(tmp_path, step, num_kept=1)
    assert all((path / "manifest.json").is_file() for path in kept)
    assert [path.name for path in checkpoint.find(tmp_path)] == ["step_30"]


@pytest.mark.parametrize("text", [None, "", "step_99", "../step_1", "\0"], ids=str)
def test_a_damaged_latest_costs_nothing(text, tmp_path):
    fake(tmp_path, 10), fake(tmp_path, 20)
    latest = tmp_path / "checkpoints" / "LATEST"
    latest.unlink() if text is None else latest.write_text(text)
    assert [path.name for path in checkpoint.find(tmp_path)] == ["step_20", "step_10"]


def test_another_format_is_refused_with_the_version_that_reads_it(tmp_path):
    path = fake(tmp_path, 10)
    manifest = json.loads((path / "manifest.json").read_text()) | {"format": 0, "versions": {"lockstep": "0.0.9"}}
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ConfigError, match=rf"format 0.*reads format {FORMAT}; resume it with lockstep-rl 0\.0\.9"):
        read_manifest(path)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", f'{{"format": {FORMAT}}}', f'{{"format": {FORMAT}, "step": "x"}}', "\x80"]
)
def test_a_damaged_manifest_is_named(text, tmp_path):
    path = fake(tmp_path, 10)
    (path / "manifest.json").write_text(text)
    with pytest.raises(DamagedError, match=r"manifest\.json"):
        read_manifest(path)
