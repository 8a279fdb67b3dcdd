"""How many GPUs are counted, from files that stand for a driver and its devices."""

import pytest

from lockstep.errors import ConfigError
from lockstep.launch import gpus
from lockstep.launch.world_checks import check_gpus
from lockstep.run import Run
from lockstep.system import nvidia
from lockstep.world import World


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A folder for devices, without any and without a driver."""
    monkeypatch.setattr(nvidia, "_DEVICES", tmp_path)
    monkeypatch.setattr(nvidia, "_WSL", tmp_path / "wsl" / "libcuda.so.1")
    monkeypatch.setattr(nvidia, "DRIVER", tmp_path / "proc" / "version")
    monkeypatch.setattr(gpus, "nvidia_gpu_present", nvidia.nvidia_gpu_present)
    monkeypatch.setattr(gpus, "_torch_has_cuda", lambda: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


def with_file(path):
    path.parent.mkdir(exist_ok=True)
    path.touch()


def test_devices_are_counted(machine):
    assert gpus.installed_gpus() == 0
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (machine / name).touch()
    assert gpus.installed_gpus() == 2


def test_the_gpu_of_windows_has_no_device(machine, monkeypatch):
    with_file(nvidia._WSL)
    assert gpus.installed_gpus() == 1
    check_gpus(Run(task="CartPole-v1", device="cuda"), World(size=1))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert gpus.installed_gpus() == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpus.installed_gpus() == 0


def test_a_container_without_gpus_sees_the_driver_of_the_machine(machine):
    with_file(nvidia.DRIVER)
    assert gpus.installed_gpus() == 0
    with pytest.raises(ConfigError, match="no GPU that torch can use"):
        check_gpus(Run(task="CartPole-v1", device="cuda"), World(size=1))


def test_more_ranks_than_gpus_need_a_word(machine):
    (machine / "nvidia0").touch()
    with pytest.raises(ConfigError, match="--ranks 2 is more than the 1 GPU of this machine"):
        check_gpus(Run(task="CartPole-v1"), World(size=2, local_size=2))
    check_gpus(Run(task="CartPole-v1", share_gpus=True), World(size=2, local_size=2))
