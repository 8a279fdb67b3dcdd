"""The doctor says what is there, what is missing, and measures."""

import builtins
import re
import sys
from types import SimpleNamespace

import pytest

from lockstep.cli import doctor
from lockstep.cli import main as cli
from lockstep.launch import commands, gpus
from quick import others_slow


def test_examine_names_devices_interfaces_measurements_and_what_is_missing(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "_SIZES", (10, 1000))
    monkeypatch.setitem(doctor._OPTIONAL, "no_such_package", ("no-such", "nothing", "pip install no-such"))
    assert doctor.examine(2) == 0
    said = capsys.readouterr().out
    assert re.search(r"GiB memory, \d+\.\d GiB of it usable now", said)
    for word in ("usable cores", "torch ", "gloo", "lo: 127.0.0.1", "no-such (nothing): pip install no-such"):
        assert word in said
    assert "all-reduce between 2 ranks" in said
    assert "1,000 floats" in said
    assert "us  (gloo, cpu)" in said


def test_failed_measurement_is_reported_and_returns_1(capsys, monkeypatch):
    from lockstep.errors import RunError
    from lockstep.launch import local

    def spawn(*_args, **_kwargs):
        raise RunError("rank 1 was killed")

    monkeypatch.setattr(local, "spawn", spawn)
    assert doctor.examine(2) == 1
    assert "FAILED: rank 1 was killed" in capsys.readouterr().out


def test_a_cpu_build_beside_a_gpu_is_a_warning(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(gpus, "nvidia_gpu_present", lambda: True)
    warning = gpus.cpu_only_torch()
    assert warning is not None
    assert "built for CPUs only" in warning
    assert "https://pytorch.org" in warning
    assert any(line == f"WARNING: {warning}" for line in doctor._devices())
    monkeypatch.setattr(gpus, "nvidia_gpu_present", lambda: False)
    assert gpus.cpu_only_torch() is None


def test_gpus_are_not_looked_for_with_torch_where_there_are_none(monkeypatch):
    monkeypatch.setattr(gpus, "nvidia_gpu_present", lambda: False)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    real = builtins.__import__

    def refuse(name, *args, **kwargs):
        assert name != "torch"
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    assert gpus.visible_gpus() == 0


@pytest.mark.parametrize("present", others_slow([True, False], True))
def test_works_without_torch(present, monkeypatch, capsys):
    real = doctor.find_spec
    monkeypatch.setattr(doctor, "find_spec", lambda name: None if name == "torch" else real(name))
    monkeypatch.setattr(gpus, "nvidia_gpu_present", lambda: present)
    assert doctor.examine(2) == 0
    said = capsys.readouterr().out
    assert ("though this machine has an NVIDIA GPU" in said) == present
    assert "pip install 'lockstep-rl[torch]'" in said
    assert gpus.visible_gpus() == 0


@pytest.mark.parametrize(
    ("found", "told"),
    [
        pytest.param(object(), "sums in C\n", marks=pytest.mark.slow),
        (None, "no C compiler is found (cc, or CC)\n"),
    ],
)
def test_reports_whether_sums_are_computed_in_c(found, told, monkeypatch, capsys):
    native = pytest.importorskip("lockstep.jax.collectives.native")
    monkeypatch.setattr(native, "library", lambda: found)
    assert doctor.examine(2) == 0
    assert f"shared memory, {told}" in capsys.readouterr().out.replace("sums in Python, 2 to 3 times the delay: ", "")


@pytest.fixture
def pretended_gpus(monkeypatch, tmp_path):
    """Three GPUs, of which the last one reaches no other and has no memory left."""
    import torch
    import torch.distributed as dist

    from lockstep.torch import transfer

    def rates(device, num_bytes):
        if device == "cuda:2":
            raise RuntimeError("CUDA error: out of memory\nMore of it.")
        return {"to_device": 6.04, "to_device_page_locked": 24.5, "to_host": 5.9}

    driver = tmp_path / "version"
    driver.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  560.35.03  Release Build  (x)\nGCC 12.2.0\n"
    )
    monkeypatch.setattr(gpus, "DRIVER", driver)
    monkeypatch.setattr(gpus, "nvidia_gpu_present", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    gpu = SimpleNamespace(name="Pretended GPU", total_memory=80 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: gpu)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda one, other: other != 2)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 5))
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(transfer, "copy_rates", rates)


def test_gpus_have_driver_copies_peers_and_nccl(pretended_gpus):
    lines = [*doctor._devices()]
    assert lines[0] == "NVIDIA driver 560.35.03"
    assert [line for line in lines if line.startswith(("cuda", "WARNING: cuda", "peer", "nccl"))] == [
        "cuda:0: Pretended GPU, 80 GiB",
        "cuda:0: copies of 64 MiB at 6.0 GB/s from the host, 24.5 from page-locked memory, 5.9 to the host",
        "cuda:1: Pretended GPU, 80 GiB",
        "cuda:1: copies of 64 MiB at 6.0 GB/s from the host, 24.5 from page-locked memory, 5.9 to the host",
        "cuda:2: Pretended GPU, 80 GiB",
        "WARNING: cuda:2 cannot be used: CUDA error: out of memory",
        "peer access: all but 0-2, 1-2, which copy through the host",
        "nccl 2.27.5",
    ]


@pytest.mark.parametrize(
    ("daemon", "control", "said"),
    [
        (True, True, r"MPS is on \(pid 7, .*\): kernels of ranks that share a GPU run at the same time"),
        (False, True, "MPS may be on: .* has a control pipe, whose daemon is outside of this container or has ended"),
        (True, False, r"MPS runs \(pid 7\), and is not used from here: CUDA_MPS_PIPE_DIRECTORY=.* has no control pipe"),
        (False, False, "MPS is off: ranks that share a GPU .share_gpus=true. take turns on it"),
    ],
)
def test_the_doctor_says_whether_mps_is_on(pretended_gpus, monkeypatch, tmp_path, daemon, control, said):
    processes = [SimpleNamespace(pid=7, info={"name": "nvidia-cuda-mps-control"})] if daemon else []
    others = [SimpleNamespace(pid=8, info={"name": "nvidia-cuda-mps-server"})]
    monkeypatch.setattr(gpus.psutil, "process_iter", lambda names: [*others, *processes])
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    if control:
        (tmp_path / "control").touch()
    assert re.match(said, [*doctor._devices()][1])


def test_copy_rates_of_a_cpu_are_measured():
    from lockstep.torch.transfer import copy_rates

    rates = copy_rates("cpu", 1 << 16, repeats=2)
    assert set(rates) == {"to_device", "to_host"} and min(rates.values()) > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nproc-per-node", "3"], "--nproc-per-node 3 is for several machines; add --nnodes N"),
        (["--init-file", "f"], "--init-file f is for several machines"),
        (["--master-addr", "a"], "--master-addr a is for several machines"),
        (["--master-port", "7"], "--master-port 7 is for several machines"),
        (["--max-restarts", "3"], "--max-restarts 3 is for several machines"),
        (["--grace-s", "3"], "--grace-s 3 is for several machines"),
        (["--ranks", "3", "--nnodes", "2", "--rdzv-endpoint", "a:1"], "--ranks 3 is for this machine"),
    ],
)
def test_flags_that_would_be_ignored_are_refused(words, said, capsys, monkeypatch):
    monkeypatch.setattr(doctor, "examine", lambda _: pytest.fail("it examines this machine"))
    monkeypatch.setattr(commands, "doctor_on_nodes", lambda _: pytest.fail("it examines several machines"))
    assert cli.main(["doctor", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
