"""A number that is not finite, on one process of JAX's: all stop and name it, or all leave out the same updates."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("jax")

from bad_numbers import STEPS, UPDATES, broken
from jax_running import train_all
from running import job, lines, runs_of_selected_tests, timeless
from safetensors.numpy import load_file

BOTH = {"normalize_observation": True, "normalize_return": True, "log_every": 16 * STEPS}
HUGE = {"normalize_advantage": False, "gae_lambda": 0.0, "max_grad_norm": None, "log_every": 16 * STEPS}
RUNS = {
    "stop": broken("reward nan", "stop", **BOTH),
    "skip": broken("reward nan", "skip", **BOTH),
    "huge": broken("reward 1e30", "stop", 17, **HUGE),
    "huge skip": broken("reward 1e30", "skip", 17, **HUGE),
}


@pytest.fixture(scope="module")
def trained(request, tmp_path_factory):
    """Every run on 1 and 2 processes: what each process saw."""
    found, folder = {}, tmp_path_factory.mktemp("runs")
    for processes in (1, 2):
        selected = runs_of_selected_tests(request, RUNS)
        jobs = {name: job(run, folder, f"{name}-{processes}") for name, run in selected.items()}
        told = {}
        for mode in ("stop", "huge"):  # one that stops on purpose is the last of its processes
            names = (f"{mode} skip".removeprefix("stop "), mode)
            if any(name in jobs for name in names):
                told |= train_all(processes, {name: jobs[name] for name in names if name in jobs})
        found |= {(name, processes): (told[name], jobs[name].folder) for name in jobs}
    return found


@pytest.mark.parametrize(
    ("name", "words", "step"),
    [
        ("stop", "environment 13 gave a reward that is not finite (nan), in step 3 of the rollout of update 3", 3),
        pytest.param(
            "huge",
            "loss or gradient of environment 13 is not finite, in step 0 of the rollout of update 3",
            0,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_stopping_names_rank_environment_and_step_and_saves_the_batch(trained, name, words, step):
    for processes in (1, 2):
        outcomes, folder = trained[name, processes]
        summary = json.loads(Path(folder, "summary.json").read_text())
        taken = 2 * STEPS * 16 + (step + 1) * 16
        assert summary["status"] == "failed"
        assert words in summary["error"], summary["error"]
        assert f"(environment step {taken}, rank {processes - 1}, shard 1)" in summary["error"]
        assert [one.error for one in outcomes] == [f"NonFiniteError: {summary['error']}"] * processes
        assert json.loads(Path(folder, "logs/failure.json").read_text())["rank"] == processes - 1
        saved = load_file(f"{folder}/non_finite/shard_1.safetensors")
        assert not np.isfinite(saved["rollout.reward"][step, 5]) or saved["rollout.reward"][step, 5] > 1e29
        assert saved["batch.advantage"].shape == saved["rollout.reward"].shape == (STEPS, 8)
        assert len(lines(folder)) == 2


@pytest.mark.parametrize("name", ["skip", pytest.param("huge skip", marks=pytest.mark.slow)])
def test_a_run_that_skips_goes_on_to_its_end(trained, name):
    fingerprints = set()
    for processes in (1, 2):
        outcomes, _ = trained[name, processes]
        assert [one.error for one in outcomes] == [""] * processes
        assert outcomes[0].summary["status"] == "finished"
        fingerprints |= {rank["params_fingerprint"] for rank in outcomes[0].summary["ranks"]}
    assert len(fingerprints) == 1, "processes left out different steps"
    alone, together = (timeless(trained[name, processes][1]) for processes in (1, 2))
    assert alone == together
    skipped = [line["optim/skipped"] for line in alone]
    assert skipped == [0.0, 0.0, 1.0 if name == "skip" else 0.5, *[0.0] * (UPDATES - 3)]
    assert ("loss/policy" in alone[2]) == (name == "huge skip"), "an update that was left out has no loss"
