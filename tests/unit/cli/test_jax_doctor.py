"""What the doctor says of JAX, where torch need not be."""

import sys

import pytest

from lockstep.cli import doctor
from lockstep.errors import ConfigError, RunError
from lockstep.launch import gpus
from lockstep.system import nvidia

pytest.importorskip("jax")


def test_it_names_versions_and_measures_what_training_does(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "_SIZES", (10, 1000))
    find = doctor.find_spec
    monkeypatch.setattr(doctor, "find_spec", lambda name: None if name == "torch" else find(name))
    assert doctor.examine(2) == 0
    said = capsys.readouterr().out
    for words in ("torch is not installed", "jax 0.", "jaxlib 0.", "between processes: gloo", "optax "):
        assert words in said, said
    _, _, measured = said.partition("all-reduce between 2 ranks of this machine, jax")
    assert "1,000 floats" in measured and "us  (gloo, cpu)" in measured, said
    assert "torch (the PyTorch backend): pip install 'lockstep-rl[torch]'" in said


def test_a_measurement_that_fails_is_told_and_is_a_failure(capsys, monkeypatch):
    from lockstep.launch import local

    find = doctor.find_spec
    monkeypatch.setattr(doctor, "find_spec", lambda name: None if name == "torch" else find(name))

    def spawn(function, *_args, **_kwargs):
        if function is doctor.measure_jax_all_reduce:
            raise RunError("rank 1 was killed")
        return [{"seconds": {10: 1e-5}, "backend": "gloo", "device": "cpu"}]

    monkeypatch.setattr(local, "spawn", spawn)
    assert doctor.examine(2) == 1
    assert "jax (CPU ranks: through shared memory)\n  FAILED: rank 1 was killed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("visible", "count"), [(None, 3), ("0,1", 2), ("", 0), ("-1", 0), ("1,-1,2", 1), ("GPU-5d2, GPU-7e1", 2)]
)
def test_gpus_for_jax_are_counted_without_starting_it(monkeypatch, tmp_path, visible, count):
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    monkeypatch.setattr(gpus, "nvidia_gpu_present", lambda: True)
    monkeypatch.setattr(gpus, "jax_plugins", lambda: ["jax-cuda13-plugin 0.10.2"])
    monkeypatch.setattr(nvidia, "_DEVICES", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    jax = sys.modules.get("jax")
    assert gpus.visible_gpus("jax") == count
    assert sys.modules.get("jax") is jax
    monkeypatch.setattr(gpus, "jax_plugins", list)
    assert gpus.visible_gpus("jax") == 0, "JAX for CPUs drives no GPU"


def test_a_gpu_that_jax_does_not_use_is_a_warning_with_the_way_out(monkeypatch):
    monkeypatch.setattr(gpus, "nvidia_gpu_present", lambda: True)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    (warning,) = [line for line in doctor._jax_devices() if line.startswith("WARNING")]
    assert "pip install 'jax[cuda13]'" in warning
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    (warning,) = [line for line in doctor._jax_devices() if line.startswith("WARNING")]
    assert "JAX_PLATFORMS=cpu is set" in warning


def test_ranks_per_gpu_of_the_framework_that_is_asked_for(monkeypatch):
    from lockstep.launch.node_flags import nproc_of

    monkeypatch.setattr(gpus, "visible_gpus", lambda framework: {"jax": 4, "torch": 0}[framework])
    assert nproc_of("auto", "jax") == 4
    assert nproc_of(None, "torch") == 1
    with pytest.raises(ConfigError, match="no GPU that torch can use"):
        nproc_of("gpu", "torch")
