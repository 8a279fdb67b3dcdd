"""What a replay takes, and what is free: as the system and control groups of both versions tell it."""

from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from films import film_spec

from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.errors import ConfigError
from lockstep.experience.memory import check_memory, replay_bytes
from lockstep.experience.replay import Replay
from lockstep.system import control_groups
from lockstep.system.cores import usable_cores
from lockstep.system.memory import usable_memory

MB = 2**20


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with 1000 MB free; `machine(path, text)` writes a file of a control group."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000 * MB))
    monkeypatch.setattr(control_groups, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(control_groups, "_OWN_GROUPS", tmp_path / "own")

    def write(path, text):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"{text}\n")

    return write


def group(machine, folder, limit, used, cache):
    machine(f"groups/{folder}memory.max", limit)
    machine(f"groups/{folder}memory.current", used * MB)
    machine(f"groups/{folder}memory.stat", f"anon 5\ninactive_file {cache * MB}\nactive_file 7")


def test_what_the_system_has_free(machine):
    assert usable_memory() == 1000 * MB


def test_a_control_group_of_version_2(machine):
    machine("own", "0::/jobs/mine")
    group(machine, "jobs/mine/", "max", 400, 0)
    assert usable_memory() == 1000 * MB
    group(machine, "jobs/mine/", 600 * MB, 400, 100)
    assert usable_memory() == 300 * MB  # what it caches of files can be had again
    group(machine, "jobs/", 900 * MB, 800, 50)  # the group around it has less left
    assert usable_memory() == 150 * MB


def test_a_container_sees_only_its_own_group(machine):
    machine("own", "0::/docker/0123456789")
    group(machine, "", 500 * MB, 100, 0)
    assert usable_memory() == 400 * MB


def test_a_control_group_of_version_1(machine):
    machine("own", "9:name=systemd:/\n4:cpu,memory:/mine\n0::/")
    machine("groups/memory/mine/memory.limit_in_bytes", 9223372036854771712)
    machine("groups/memory/mine/memory.usage_in_bytes", 400 * MB)
    machine("groups/memory/mine/memory.stat", f"cache 5\ntotal_inactive_file {30 * MB}")
    assert usable_memory() == 1000 * MB
    machine("groups/memory/mine/memory.limit_in_bytes", 500 * MB)
    assert usable_memory() == 130 * MB


def test_unknown_memory_refuses_nothing(machine, monkeypatch):
    def unknown():
        raise FileNotFoundError("/proc/meminfo")

    monkeypatch.setattr(psutil, "virtual_memory", unknown)
    machine("own", "strange")
    assert usable_memory() is None
    check_memory(10, 10**18, copy=10**18)


def test_a_group_above_its_limit_has_no_usable_memory(machine):
    machine("own", "0::/")
    group(machine, "", 100 * MB, 200, 0)
    assert usable_memory() == 0


def test_a_replay_that_does_not_fit_is_refused_with_one_that_does(machine):
    check_memory(1000, 1000 * MB, copy=0)
    check_memory(1000, 500 * MB, copy=500 * MB)
    with pytest.raises(ConfigError) as caught:
        check_memory(1000, 800 * MB, copy=800 * MB)
    assert str(caught.value) == (
        "algorithm.capacity=1000 needs 1.68 GB of memory on this host with the copy for checkpoints, and 1.05 GB are "
        "free; use algorithm.checkpoint_replay=false, or algorithm.capacity=625 or less, or algorithm.replay_path for "
        "files instead, with checkpoint_replay=false"
    )
    with pytest.raises(ConfigError, match=r"needs 2\.10 GB of memory on this host, and .* use algorithm\.capacity=500"):
        check_memory(1000, 2000 * MB, copy=0)
    with pytest.raises(ConfigError, match=r"use algorithm\.capacity=496 or less"):
        check_memory(1000, 2000 * MB, copy=0, num_shards=16, batch_size=496)
    with pytest.raises(ConfigError, match=r"are free; use algorithm\.replay_path"):  # a minibatch would not fit
        check_memory(1000, 2000 * MB, copy=0, num_shards=16, batch_size=500)
    with pytest.raises(ConfigError) as caught:
        check_memory(1000, 2000 * MB, copy=2000 * MB)
    assert "use algorithm.checkpoint_replay" not in str(caught.value)  # alone it would not help


@pytest.mark.parametrize(("kept", "copy"), [(1 * MB, 1200 * MB), (1200 * MB, 0)])
def test_files_are_no_way_out_of_observations_that_are_not_in_memory(machine, kept, copy):
    with pytest.raises(ConfigError, match=r"1\.26 GB .*; use .*capacity=\d+ or less$"):
        check_memory(1000, kept, copy=copy, may_map=False)


PONG = EnvSpec(
    4 * 84 * 84, ActionSpec("discrete", (6,)), "next_step", separately_seedable=True, image=(4, 84, 84), frames=4
)
REACH = film_spec("same_step", image=False, action=ActionSpec("continuous", (2,), (-1.0, -1.0), (1.0, 1.0)))


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("spec", [film_spec("next_step"), film_spec("same_step", image=False), REACH])
def test_bytes_are_those_that_are_taken(spec, prioritized):
    options = {"n_step": 3, "prioritized": prioritized}
    replay = Replay(spec, 4, 200_000, gamma=0.9, **options)
    arrays = [value for value in vars(replay._frames).values() if isinstance(value, np.ndarray)]
    arrays += [value for value in vars(replay).values() if isinstance(value, np.ndarray)]
    arrays.append(replay._frames.to_numpy())
    arrays += replay._tree._levels if replay._tree else []
    assert sum(array.nbytes for array in arrays) == pytest.approx(replay_bytes(spec, 4, 200_000, **options), rel=0.01)


def test_100_000_frames_of_pong_fit_in_800_megabytes():
    taken = replay_bytes(PONG, 8, 100_000, n_step=3, prioritized=True)
    assert 0.7e9 < taken < 0.8e9
    assert replay_bytes(PONG, 8, 100_000, n_step=3, prioritized=True, mapped=True) < 0.003e9


@pytest.mark.parametrize(
    ("own", "files", "cores"),
    [
        ("0::/jobs/mine", {"jobs/mine/cpu.max": "200000 100000", "cpu.max": "max 100000"}, 2),
        ("0::/jobs/mine", {"jobs/mine/cpu.max": "max 100000", "jobs/cpu.max": "300000 100000"}, 3),
        ("0::/docker/0123", {"cpu.max": "400000 100000"}, 4),
        (
            "3:cpu,cpuacct:/mine",
            {"cpu/mine/cpu.cfs_quota_us": "500000", "cpu/mine/cpu.cfs_period_us": "100000"},
            5,
        ),
        ("3:cpu,cpuacct:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
    ],
)
def test_the_smallest_quota_of_all_control_groups_limits_the_cores(machine, own, files, cores):
    machine("own", own)
    for name, text in files.items():
        machine(f"groups/{name}", text)
    assert usable_cores(range(8)) == cores
