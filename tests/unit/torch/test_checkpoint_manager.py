"""Checkpoints of a loop of one's own: what comes back, and what is refused. Killed loops: tests/examples."""

import collections
import json
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from lockstep import CheckpointManager, Comm, ConfigError, RunDir, World, spawn, stream
from lockstep.errors import MismatchError
from lockstep.launch.rank_environment import free_port
from lockstep.record import run_dir

SHARED = {
    "numbers": [1, 2.5, None, True, "é", float("inf")],
    "arrays": {"empty": np.zeros((0, 3)), "scalar": np.array(7), "bytes": np.arange(4, dtype=np.uint8)},
    "tensors": [torch.tensor([1.5, -0.0]).bfloat16(), torch.tensor(3), torch.tensor([True]), torch.zeros(2, 0)],
    "tensor of 8 bits": torch.tensor([1.5]).to(torch.float8_e4m3fn),
    "keys": {0: "int", "text": 1, "__items__": 2, (0, (1, "state")): 0.5},
    "pair": (0.9, 0.999),
}


def same(a, b):
    """Equal in type, shape and bits."""
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return type(a) is type(b) and a == b


@pytest.fixture
def comm():
    with Comm(World(), device="cpu") as alone:
        yield alone


def test_trees_come_back_as_they_were(comm, tmp_path):
    draws = stream(0, "draws")
    draws.integers(5, size=3)
    with CheckpointManager(comm, tmp_path) as checkpoints:
        assert checkpoints.restore() is None
        assert checkpoints.save(3, SHARED, {0: {"draws": draws.bit_generator.state}})
    with CheckpointManager(comm, str(tmp_path)) as checkpoints:
        found = checkpoints.restore()
    assert found is not None and found.step == 3
    assert same(found.shared, SHARED), found.shared
    other = stream(1, "other")
    other.bit_generator.state = found.shards[0]["draws"]
    assert other.integers(100, size=5).tolist() == draws.integers(100, size=5).tolist()


@pytest.mark.filterwarnings("error")
def test_arrays_that_torch_does_not_take_are_saved(comm, tmp_path):
    arrays = {
        "reversed": np.arange(4)[::-1],
        "big-endian": np.arange(3, dtype=">i4"),
        "read-only": np.broadcast_to(np.float32(2), (2, 3)),
        "scalar": np.zeros((), ">f8"),
    }
    with CheckpointManager(comm, tmp_path) as checkpoints:
        assert checkpoints.save(1, arrays, {0: arrays})
        found = checkpoints.restore()
    assert found is not None
    for restored in (found.shared, found.shards[0]):
        assert all((restored[name] == array).all() for name, array in arrays.items())


def test_an_optimizer_continues_from_its_state(comm, tmp_path):
    def step(policy, optimizer):
        optimizer.zero_grad()
        policy(torch.ones(1, 3)).sum().backward()
        optimizer.step()

    first, second = nn.Linear(3, 2), nn.Linear(3, 2)
    ours, theirs = (torch.optim.Adam(policy.parameters(), lr=0.1) for policy in (first, second))
    step(first, ours)
    with CheckpointManager(comm, tmp_path) as checkpoints:
        checkpoints.save(1, {"policy": first.state_dict(), "optimizer": ours.state_dict()})
        found = checkpoints.restore()
    assert found is not None
    second.load_state_dict(found.shared["policy"])
    theirs.load_state_dict(found.shared["optimizer"])
    for policy, optimizer in ((first, ours), (second, theirs)):
        step(policy, optimizer)
        step(policy, optimizer)
    assert torch.equal(first.weight, second.weight)


def test_the_newest_are_kept_and_a_damaged_one_is_left_out(comm, tmp_path, capfd):
    with CheckpointManager(comm, tmp_path, num_kept=2) as checkpoints:
        for step in (1, 2, 10):
            checkpoints.save(step, {"step": step})
        assert sorted(path.name for path in tmp_path.glob("checkpoints/step_*")) == ["step_10", "step_2"]
        (tmp_path / "checkpoints" / "step_10" / "learner.safetensors").write_bytes(b"torn")
        found = checkpoints.restore()
    assert found is not None and found.shared == {"step": 2}
    assert "step_10 is damaged and skipped" in capfd.readouterr().err


def test_step_is_a_whole_number_of_any_kind(comm, tmp_path):
    with CheckpointManager(comm, tmp_path) as checkpoints:
        for step in (np.int64(1), torch.tensor(2), 3):
            assert checkpoints.save(step, {"a": 1}) is True
        with pytest.raises(ConfigError, match=r"step=5.0 is not a whole number"):
            checkpoints.save(5.0, {"a": 1})
        assert checkpoints.restore().step == 3


def test_what_cannot_be_saved_is_named(comm, tmp_path):
    with CheckpointManager(comm, tmp_path) as checkpoints:
        with pytest.raises(ConfigError, match=r"shared\.policy\[0\] is a Linear, which a checkpoint cannot hold"):
            checkpoints.save(1, {"policy": [nn.Linear(1, 1)]})
        with pytest.raises(ConfigError, match=r"a key of shared\.table is a frozenset"):
            checkpoints.save(1, {"table": {frozenset(): 1}})
        with pytest.raises(ConfigError, match=r"shards\[0\]\.phase is an array of complex64"):
            checkpoints.save(1, {}, {0: {"phase": torch.zeros(1, dtype=torch.complex64)}})
        with pytest.raises(ConfigError, match=r"shared\.names is an array of <U1"):
            checkpoints.save(1, {"names": np.array(["a"])})
        named = collections.namedtuple("State", "count")(1)  # as optax's states
        with pytest.raises(ConfigError, match=r"shared\.optimizer\[0\] is a State, a named tuple, .* ._asdict\(\), or"):
            checkpoints.save(1, {"optimizer": [named]})
        with pytest.raises(ConfigError, match=r"shards\[0\] is a list, not a mapping; give \{'name': state\}"):
            checkpoints.save(1, {}, {0: [1]})
        with pytest.raises(ConfigError, match=r"shards=\[1\] are saved, and this rank holds \[0\]"):
            checkpoints.save(1, {}, {1: {}})
        with pytest.raises(ConfigError, match=r"^folder=.* or another CheckpointManager of this one saves here; wait"):
            CheckpointManager(comm, tmp_path)
    with pytest.raises(ConfigError, match="the `with` of this CheckpointManager has ended; save within it"):
        checkpoints.save(1, {})
    assert not list(tmp_path.glob("checkpoints/*"))
    with pytest.raises(ConfigError, match="num_kept=0"):
        CheckpointManager(comm, tmp_path, num_kept=0)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="below cannot be written"):
        CheckpointManager(comm, tmp_path / "file" / "below")


def test_checkpoints_of_an_earlier_loop_are_not_replaced(comm, tmp_path):
    with CheckpointManager(comm, tmp_path, num_kept=1) as checkpoints:
        with pytest.raises(ConfigError, match="step=-1 must be at least 0"):
            checkpoints.save(-1, {})
        checkpoints.save(90, {})
        checkpoints.save(100, {"number": 1})
    with CheckpointManager(comm, tmp_path, num_kept=1) as checkpoints:
        with pytest.raises(ConfigError, match=r"holds a checkpoint of step 100, .* call restore\(\) first, or choose"):
            checkpoints.save(1, {})
        assert checkpoints.restore().shared == {"number": 1}
        with pytest.raises(ConfigError, match="step=99 comes before step 100"):
            checkpoints.save(99, {})
        checkpoints.save(100, {"number": 2})
        assert checkpoints.restore().shared == {"number": 2}


def test_other_shards_are_refused(comm, tmp_path):
    with CheckpointManager(comm, tmp_path) as checkpoints:
        checkpoints.save(1, {})
    with (
        Comm(World().with_shards(2), device="cpu") as two,
        CheckpointManager(two, tmp_path) as checkpoints,
        pytest.raises(
            ConfigError, match=r"step_1 has num_shards=1, and this run has 2; start it on 1 rank, or use .*1"
        ),
    ):
        checkpoints.restore()


def restored_on_more_ranks(rank: int, folder: Path) -> str:
    """What `restore` says of a checkpoint with fewer shards than there are ranks."""
    with Comm(World.from_environment(), device="cpu") as comm, CheckpointManager(comm, folder) as checkpoints:
        try:
            checkpoints.restore()
        except ConfigError as error:
            return str(error)
    return ""


def test_ranks_without_a_shard_are_not_offered(comm, tmp_path):
    with CheckpointManager(comm, tmp_path) as checkpoints:
        checkpoints.save(1, {})
    for message in spawn(restored_on_more_ranks, 2, (tmp_path,), timeout_s=120):
        assert message.endswith("and this run has 2; start it on 1 rank")


def different(rank: int) -> dict[str, dict]:
    """States that differ between ranks in plain values alone, by the place of what differs."""
    return {
        "shared.epoch": {"epoch": rank, "seed": 1},
        "shared.name": {"name": f"run {rank}"},
        "shared.history": {"history": [1.5, float(rank)]},
        "shared.betas": {"betas": (0.9, 0.99 + rank)},
        "shared.nested[1].rate": {"nested": [{"rate": 0.1}, {"rate": 0.1 + rank}]},
        "shared.table[3]": {"table": {3: "a" * (1 + rank)}},
        "shared.scalar": {"scalar": np.float32(rank)},
        "shared.kind": {"kind": 1 if rank else 1.0},
        "shared.more": {"more": None} if rank else {},
    }


def ranks_save(rank: int, port: int, folder: str) -> dict:
    """Two ranks: what is shared has to be equal, what is not comes back to its rank."""
    said = {}
    world = World(rank=rank, size=2, address="127.0.0.1", port=port)
    with Comm(world, device="cpu", timeout_s=20) as comm:
        with CheckpointManager(comm, folder) as checkpoints:
            same = {"weight": torch.ones(3), "epoch": 7, "history": [0.5, None]}
            checkpoints.save(1, dict(sorted(same.items(), reverse=rank == 1)), {rank: {"rank": rank}})
            try:
                checkpoints.save(2, {"weight": torch.full((3,), float(rank))}, {rank: {}})
            except MismatchError as error:
                said["unequal"] = str(error)
            try:
                CheckpointManager(comm, folder)
            except ConfigError as error:
                said["in use"] = str(error)
            try:
                CheckpointManager(comm, f"{folder}{rank}")
            except ConfigError as error:
                said["folders"] = str(error)
        with CheckpointManager(comm, folder) as checkpoints:
            found = checkpoints.restore()
            assert found is not None
            said["found"] = [found.step, found.shared["weight"].tolist(), found.shards]
            for place, state in different(rank).items():
                try:
                    checkpoints.save(2, state, {rank: {}})
                except MismatchError as error:
                    said[place] = str(error)
    return said


def test_ranks_save_together(tmp_path):
    folder = str(tmp_path / "run")
    for rank, said in enumerate(spawn(ranks_save, 2, (free_port(), folder), timeout_s=60)):
        assert said["unequal"].startswith("ranks 0 and 1 hold different shared.weight")
        assert said["folders"] == f"folder={folder}0 on rank 0 and {folder}1 on rank 1; give all ranks the same"
        for place in different(rank):
            told = said.get(place, f"{place} was saved")
            assert re.match(rf"ranks 0 and 1 hold different {re.escape(place)}[; ]", told), told
        assert f"folder={folder} is in use" in said["in use"]
        assert said["found"] == [1, [1.0] * 3, {rank: {"rank": rank}}]
    manifest = json.loads(Path(folder, "checkpoints", "step_1", "manifest.json").read_text())
    assert sorted(manifest["files"]) == ["learner.safetensors", "shard_0.safetensors", "shard_1.safetensors"]


def test_a_run_directory_is_made_before_the_manager_of_its_folder(comm, tmp_path, monkeypatch):
    monkeypatch.setattr(run_dir, "lock_run_dir", partial(run_dir.lock_run_dir, timeout_s=0.0))
    with RunDir.create(tmp_path / "one"), CheckpointManager(comm, tmp_path / "one") as manager:
        assert manager.save(1, {"a": 1})
    way_out = r"or a CheckpointManager of this one uses it \(make the RunDir first\)"
    with CheckpointManager(comm, tmp_path / "two"), pytest.raises(ConfigError, match=way_out):
        RunDir.create(tmp_path / "two")


def test_shards_that_are_no_mapping_are_named(comm, tmp_path):
    with (
        CheckpointManager(comm, tmp_path) as manager,
        pytest.raises(ConfigError, match=r"^shards is a list, not a mapping; give \{shard: state\} for \[0\]$"),
    ):
        manager.save(1, {}, [{"a": 1}])


def test_hidden_files_of_the_folder_are_the_users(comm, tmp_path):
    """Only what a killed manager leaves in `checkpoints` goes: the folder may be any, even a home directory."""
    for name in (".env.2", ".history.1", ".summary.json.7", "checkpoints/.step_5/learner", "checkpoints/.LATEST.7"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    with CheckpointManager(comm, tmp_path):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {".env.2", ".history.1", ".summary.json.7", "checkpoints"}
    assert not list((tmp_path / "checkpoints").iterdir())
