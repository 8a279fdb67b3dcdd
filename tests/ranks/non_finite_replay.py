"""Runs that learn from a replay buffer while an environment gives a number that is not finite, and their checks."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from bad_numbers import ENVS, LENGTH, SHARDS
from running import Job, Outcome, job, lines, small_actor_critic, small_dqn, timeless
from safetensors.numpy import load_file

from lockstep.record.checkpoint import find
from lockstep.run import Run

AT = 30  # step of the environment, and iteration of the run
MODES = ("stop", "skip")
Trained = tuple[list[Outcome], Path]
"""The outcome of each rank, and the run directory."""


def broken(algo: str, fault: str, mode: str) -> Run:
    """A run whose environment 13, on the last rank, has the fault in step `AT`."""
    changes: dict[str, Any] = {
        "num_shards": SHARDS,
        "num_envs": ENVS,
        "num_steps": 1,
        "log_every": ENVS,
        "max_grad_norm": None,
        "env.kwargs": {"fault": fault, "at": AT},
        "non_finite": mode,
    }
    if algo != "dqn":
        return small_actor_critic(algo, "bad_numbers:BrokenForce", **changes)
    if fault == "reward 1e30":
        changes["loss"] = "mse"  # which overflows
    return small_dqn("bad_numbers:BrokenChoice", **changes)


def jobs_of(algo: str, faults: tuple[str, ...], folder: Path) -> dict[str, Job]:
    """Every fault in both modes."""
    names = [(fault, mode) for fault in faults for mode in MODES]
    return {f"{fault} {mode}": job(broken(algo, fault, mode), folder, f"{fault} {mode}") for fault, mode in names}


def summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())


def check_equal(alone: Trained, trained: Trained) -> None:
    """One process and several devices or ranks end alike."""
    ((one,), folder), (outcomes, other) = alone, trained
    for outcome in outcomes:
        assert outcome.error.replace("rank 1", "rank 0") == one.error, "ranks ended with different errors"
    assert timeless(str(other)) == timeless(str(folder)), "metrics depend on the layout"
    if not one.error:
        assert summary(folder)["params_fingerprint"] == summary(other)["params_fingerprint"]


def check_stop(trained: Trained, fault: str) -> None:
    """Two ranks stop, and name rank, environment and step."""
    outcomes, folder = trained
    column, _, number = fault.partition(" ")
    words = f"environment 13 gave a{'n' * (column == 'observation')} {column} that is not finite ({number})"
    assert len(outcomes) == 2
    for outcome in outcomes:
        for word in (words, f"update {AT}", f"environment step {AT * ENVS}", "rank 1", "shard 1", "non_finite=skip"):
            assert word in outcome.error, outcome.error
    assert summary(folder)["status"] == "failed"
    assert words in summary(folder)["error"]
    assert json.loads((folder / "logs/failure.json").read_text())["rank"] == 1
    saved = {path.name: load_file(path) for path in (folder / "non_finite").iterdir()}
    assert saved.keys() == {"shard_1.safetensors"}
    values = saved["shard_1.safetensors"][f"rollout.{column}"]
    assert not np.isfinite(values[:, 13 - ENVS // SHARDS]).all(), "the saved rollout lacks the fault"


def check_skip(trained: Trained, fault: str) -> None:
    """Two ranks train to the end with finite parameters, and never draw the fault."""
    outcomes, folder = trained
    assert [outcome.error for outcome in outcomes] == ["", ""]
    assert summary(folder)["status"] == "finished"
    assert all(outcome.moved for outcome in outcomes)
    saved = load_file(find(folder)[0] / "learner.safetensors")
    assert any("square" in name for name in saved)
    bad = [name for name, value in saved.items() if not np.isfinite(value).all()]
    assert bad == [], "parameters or optimizer states that are not finite"
    logged = lines(str(folder))
    assert all(value is not None and np.isfinite(value) for line in logged for value in line.values())
    skipped = [line.get("optim/skipped", 0.0) + line["replay/skipped"] for line in logged]
    assert not any(skipped[: AT - 1]), "something was left out before the fault"
    assert any(skipped[AT - 1 :]), "nothing was left out"
    if fault != "reward 1e30":  # that one is finite, and stays
        over = AT + LENGTH * fault.startswith("observation")  # such an observation stays until its episode ends
        assert not any(skipped[over:]), "the fault was drawn from the replay buffer later"


def check_infinite_loss(trained: Trained) -> None:
    """All ranks stop, and name the transition whose loss is not finite."""
    outcomes, folder = trained
    for outcome in outcomes:
        for word in ("from the replay is not finite", "rank 1, shard 1", "non_finite/shard_1", "non_finite=skip"):
            assert word in outcome.error, outcome.error
    assert summary(folder)["status"] == "failed"
    assert all(np.isfinite(list(line.values())).all() for line in lines(str(folder)))
    saved = load_file(folder / "non_finite/shard_1.safetensors")
    assert any(np.abs(column).max() > 1e29 for column in saved.values()), "the saved transitions lack the fault"
