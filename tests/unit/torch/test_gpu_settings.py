"""Settings of GPUs, as far as a CPU shows them: what they set, and what they refuse."""

import os
from unittest import mock

import pytest
import torch

from lockstep.errors import ConfigError
from lockstep.launch import gpus
from lockstep.launch.world_checks import check_world
from lockstep.run import NetworkConfig, Run
from lockstep.torch import encoders, gradient, hardware
from lockstep.torch.collectives.group import set_nccl_variables
from lockstep.torch.networks import Policy
from lockstep.world import World
from pixels import PIXELS
from small_learners import make

pytestmark = pytest.mark.slow


@pytest.fixture
def modes(monkeypatch):
    """A pretended GPU. Returns the modes of arithmetic, which are as before afterwards."""
    threads = torch.get_num_threads()
    parts = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)
    before = [part.fp32_precision for part in parts]
    fill = torch.utils.deterministic.fill_uninitialized_memory
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    yield lambda: [part.fp32_precision for part in parts]
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
    for part, precision in zip(parts, before, strict=True):
        part.fp32_precision = precision
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = fill
    torch.set_num_threads(threads)


PINNED = World().with_shards(1)


@pytest.mark.parametrize(
    ("world", "tf32", "expected"),
    [(World(), True, "tf32"), (World(), False, "ieee"), (PINNED, None, "ieee"), (PINNED, True, "tf32")],
)
def test_tf32_is_that_of_the_setting_and_not_used_in_pinned_runs(modes, world, tf32, expected):
    hardware.pin(Run(task="t", tf32=tf32, num_shards=1 if world.pinned else None), world)
    assert modes() == [expected] * 3


def test_tf32_stays_the_default_of_torch_without_a_setting(modes):
    before = modes()
    hardware.pin(Run(task="t"), World())
    hardware.pin(Run(task="t", device="cpu", tf32=True), World())
    assert modes() == before


def test_pinned_runs_have_deterministic_kernels(modes):
    hardware.pin(Run(task="t", num_shards=1), PINNED)
    assert torch.are_deterministic_algorithms_enabled()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert not torch.utils.deterministic.fill_uninitialized_memory
    assert not torch.backends.cudnn.benchmark


@pytest.mark.parametrize("encoder", ["nature", "impala"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_images_have_the_layout_of_the_setting(monkeypatch, encoder, channels_last):
    layouts = []
    scaled = encoders._scaled

    def recorded(x, **options):
        made = scaled(x, **options)
        layouts.append(made.is_contiguous(memory_format=torch.channels_last))
        return made

    monkeypatch.setattr(encoders, "_scaled", recorded)
    network = NetworkConfig(encoder=encoder, features=8, channels_last=channels_last)
    made = Policy(PIXELS, network).to("meta")  # tensors without numbers, on a device that is no CPU
    made(torch.zeros(2, 4, 84, 84, dtype=torch.uint8, device="meta"))
    assert layouts == [channels_last]


@pytest.mark.parametrize("mode", ["default", "max-autotune"])
@pytest.mark.parametrize("name", ["ppo", "dqn", "sac", "td3", "offline dqn", "iql"])
def test_compile_mode_is_that_of_the_setting(monkeypatch, tmp_path, name, mode):
    modes = []

    def compile(function, *, dynamic, mode):
        modes.append(mode)
        return function

    monkeypatch.setattr(torch, "compile", compile)
    make(name, tmp_path, compile=True, compile_mode=mode)
    assert modes and set(modes) == {gradient._MODES[mode]}


class TestSharedGpus:
    @pytest.fixture
    def two_gpus(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)

    def test_ranks_are_dealt_to_the_gpus_in_turn(self, two_gpus):
        worlds = [World(rank=i, size=3, local_rank=i, local_size=3) for i in range(3)]
        devices = [hardware.device_of(world, "auto", share_gpus=True) for world in worlds]
        assert [device.index for device in devices] == [0, 1, 0]
        with pytest.raises(ConfigError, match=r"3 processes .* 2 GPU.*share_gpus=true"):
            hardware.device_of(worlds[0], "auto")

    @pytest.mark.parametrize(
        ("launcher", "hint"), [("SLURM", "--gpu-bind=none"), ("MPICH", "VISIBLE"), ("lockstep", "")]
    )
    def test_a_launcher_that_shows_each_rank_one_gpu_is_told_how_to_show_all(self, two_gpus, launcher, hint):
        with pytest.raises(ConfigError, match="3 processes on a machine where torch sees 2 GPU") as caught:
            hardware.device_of(World(size=3, local_size=3, launcher=launcher), "auto")
        assert hint in str(caught.value) and ("VISIBLE" in str(caught.value)) == (launcher == "MPICH")

    def test_collectives_are_those_of_gloo(self):
        device = torch.device("cuda", 0)
        assert hardware.backend_of(device, "auto", share_gpus=True) == "gloo"
        assert hardware.backend_of(device, "auto") == "nccl"
        with pytest.raises(ConfigError, match="share_gpus=true with backend=nccl"):
            hardware.backend_of(device, "nccl", share_gpus=True)

    def test_the_launcher_allows_more_ranks_than_gpus(self, monkeypatch):
        monkeypatch.setattr(gpus, "installed_gpus", lambda framework: 1)
        world = World(size=2, local_size=2)
        check_world(Run(task="CartPole-v1", share_gpus=True), world)
        with pytest.raises(ConfigError, match=r"--ranks 2 is more than the 1 GPU of this machine.*share_gpus=true"):
            check_world(Run(task="CartPole-v1"), world)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"share_gpus": True, "backend": "nccl"}, ["share_gpus=true", "backend=nccl", "backend=gloo"]),
        ({"share_gpus": True, "ml_framework": "jax"}, ["share_gpus=true", "ml_framework=jax", "leave it out"]),
        ({"compile_mode": "max-autotune"}, ["compile_mode=max-autotune", "compile=true"]),
        (
            {"compile_mode": "max-autotune", "ml_framework": "jax"},
            ["compile_mode=max-autotune", "in any case, leave it"],
        ),
        ({"compile": True, "ml_framework": "jax"}, ["compile=true", "ml_framework=jax compiles in any case, leave it"]),
        (
            {"ml_framework": "jax", "network": NetworkConfig(channels_last=True)},
            ["network.channels_last=true", "ml_framework=torch"],
        ),
    ],
)
def test_contradictions_name_both_settings(settings, words):
    with pytest.raises(ConfigError) as caught:
        Run(task="t", **settings)
    assert all(word in str(caught.value) for word in words), caught.value


def test_variables_of_nccl_end_a_run_in_time_unless_the_user_decides():
    with mock.patch.dict(os.environ, {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}, clear=True):
        set_nccl_variables(30.0)
        assert dict(os.environ) == {
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
            "TORCH_NCCL_ENABLE_MONITORING": "1",
            "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
            "TORCH_NCCL_BLOCKING_WAIT": "0",
            "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "90",
        }
