"""The doctor says what is there, what is missing, and measures."""

import builtins
import re
import sys

import pytest

from lockstep.cli import doctor
from lockstep.launch import gpus
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


def test_a_cpu_build_beside_a_gpu_is_a_warning(monkeypatch, capsys):
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
