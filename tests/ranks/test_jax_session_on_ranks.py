"""What surrounds a run of JAX among real processes: ranks that differ, devices as ranks, restarts, evidence."""

import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("jax")

import jax_flights
from safetensors.numpy import load_file

from lockstep import spawn
from lockstep.launch.rank_environment import free_port

WITHIN_S = 400


def both(folder, *, processes=2, resume=False, start_record="", **changes):
    arguments = (free_port(), str(folder), changes, resume, str(start_record))
    return spawn(jax_flights.trained, processes, arguments, timeout_s=WITHIN_S)


def test_who_differs_is_named_on_every_rank():
    names = ("nothing", "version", "torch", "config")
    for rank in spawn(jax_flights.preflights, 2, ({name: free_port() for name in names},), timeout_s=WITHIN_S):
        assert rank["nothing"]["hosts"][0]["ranks"] == [0, 1]
        assert set(rank["nothing"]["versions"]) == {"python", "jax", "jaxlib", "lockstep", "numpy"}
        assert rank["version"].startswith("ConfigError: rank 1 differs from rank 0 in jaxlib (0.0.1 instead of ")
        assert rank["config"].startswith("ConfigError: rank 1 differs from rank 0 in seed (5 instead of 0)")
        assert rank["torch"] == rank["nothing"], "what JAX does not use may differ"


@pytest.fixture(scope="module")
def four_devices(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    return folder, both(folder, devices_per_process=2)


@pytest.mark.slow
def test_devices_of_all_processes_are_ranks(four_devices):
    folder, (first, second) = four_devices
    assert first["ranks"] == second["ranks"]
    assert [rank["rank"] for rank in first["ranks"]] == [0, 1, 2, 3]
    assert len({rank["first_rollout_fingerprint"] for rank in first["ranks"]}) == 4
    assert sum(rank["env_steps"] for rank in first["ranks"]) == first["env_steps"] == 256
    assert first["world_size"] == json.loads((folder / "summary.json").read_text())["world_size"] == 4


@pytest.mark.slow
def test_a_run_goes_on_in_another_number_of_processes(four_devices, tmp_path):
    folder, (first, _) = four_devices
    (whole,) = both(tmp_path / "whole", processes=1, total_steps=4 * 128)
    (gone_on,) = both(folder, processes=1, resume=True, total_steps=4 * 128)
    assert gone_on["resumed_from"] == "checkpoints/step_256"
    assert gone_on["params_fingerprint"] == whole["params_fingerprint"] != first["params_fingerprint"]
    assert gone_on["world_size"] == 1


@pytest.mark.slow
def test_processes_that_are_started_again_go_on_with_their_run(tmp_path):
    first = both(tmp_path / "run", start_record=tmp_path / "start.json")
    again = both(tmp_path / "elsewhere", start_record=tmp_path / "start.json", total_steps=4 * 128)
    assert [summary["restarts"] for summary in first] == [0, 0]
    assert [summary["restarts"] for summary in again] == [1, 1]
    assert {summary["resumed_from"] for summary in again} == {"checkpoints/step_256"}
    assert not (tmp_path / "elsewhere").exists()


def test_parameters_that_differ_are_named_and_left_for_inspection(tmp_path):
    told = spawn(jax_flights.differs, 2, (free_port(), str(tmp_path / "run")), timeout_s=WITHIN_S)
    assert len(set(told)) == 1
    assert told[0].startswith("MismatchError: ranks 0 and 1 hold different policy."), told[0]
    left = [load_file(tmp_path / "run" / "mismatch" / f"rank_{rank}.safetensors") for rank in (0, 1)]
    assert set(left[0]) == set(left[1])
    assert any((left[0][name] != left[1][name]).any() for name in left[0])
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "failed"


@pytest.mark.slow
def test_all_ranks_begin_with_the_policy_file_of_the_first(tmp_path):
    files = [str(tmp_path / f"{seed}") for seed in range(2)]
    for seed, file in enumerate(files):
        both(file, processes=1, seed=seed, algorithm=replace(jax_flights.RUN.algorithm, normalize_observation=True))
    first, second = spawn(jax_flights.starts, 2, (free_port(), str(tmp_path / "run"), files), timeout_s=WITHIN_S)
    assert first.keys() == second.keys()
    unequal = [name for name in first if not np.array_equal(first[name], second[name])]
    assert not unequal, "ranks begin with different numbers"
    saved = load_file(tmp_path / "0" / "policy.safetensors")
    for name, array in saved.items():
        mine = [name] if name.startswith("normalizer.") else [f"policy.{name}", f"held.{name}"]
        assert all(np.array_equal(first[key], array) for key in mine), name
