"""DQN, SAC and TD3 on JAX: a number that is not finite stops all ranks and is named, or is left out by all.

A transition with such a number must never reach the replay: it would be drawn again and again.
"""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("jax")

from bad_numbers import ENVS, LENGTH, SHARDS
from jax_running import train_all
from running import job, lines, small_actor_critic, small_dqn, timeless
from safetensors.numpy import load_file

from lockstep.record.checkpoint import find

pytestmark = pytest.mark.slow  # whole runs on several layouts; PPO's are quick ones

AT = 30  # step of the environment, and iteration of the run
FAULTS = ("reward nan", "observation nan", "reward 1e30")
MODES = ("stop", "skip")
LAYOUTS = {"1 process": (1, 1), "2 devices": (1, 2), "2 processes": (2, 1)}


def broken(algo, fault, mode):
    base = {"num_shards": SHARDS, "num_envs": ENVS, "num_steps": 1, "log_every": ENVS, "max_grad_norm": None}
    changes = {**base, "env.kwargs": {"fault": fault, "at": AT}, "non_finite": mode}
    if algo == "dqn":
        return small_dqn("bad_numbers:BrokenChoice", loss="mse", **changes)
    return small_actor_critic(algo, "bad_numbers:BrokenForce", **changes)


@pytest.fixture(scope="module", params=["dqn", "sac", "td3"])
def trained(request, tmp_path_factory):
    """Every fault in both modes on every layout: what each process saw, and where."""
    found = {}
    for layout, (processes, devices) in LAYOUTS.items():
        folder = tmp_path_factory.mktemp(layout.replace(" ", ""))
        jobs = {
            f"{fault} {mode}": job(broken(request.param, fault, mode), folder, f"{fault} {mode}")
            for fault in FAULTS
            for mode in MODES
        }
        outcomes = train_all(processes, jobs, devices)
        found |= {(name, layout): (outcomes[name], Path(jobs[name].folder)) for name in jobs}
    return found


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


@pytest.mark.parametrize("layout", ["2 devices", "2 processes"])
@pytest.mark.parametrize("name", [f"{fault} {mode}" for fault in FAULTS for mode in MODES])
def test_any_layout_does_the_same(trained, name, layout):
    (alone,), folder = trained[name, "1 process"]
    outcomes, other = trained[name, layout]
    for one in outcomes:
        assert one.error.replace("rank 1", "rank 0") == alone.error, "ranks ended with different errors"
    assert timeless(str(other)) == timeless(str(folder)), "metrics depend on the layout"
    if not alone.error:
        assert summary(folder)["params_fingerprint"] == summary(other)["params_fingerprint"]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("reward nan", "environment 13 gave a reward that is not finite (nan)"),
        ("observation nan", "environment 13 gave an observation that is not finite (nan)"),
    ],
)
def test_stop_names_rank_environment_and_step(trained, fault, words):
    outcomes, folder = trained[f"{fault} stop", "2 processes"]
    assert len(outcomes) == 2
    for one in outcomes:
        for word in (words, f"update {AT}", f"environment step {AT * ENVS}", "rank 1", "shard 1", "non_finite=skip"):
            assert word in one.error, one.error
    assert summary(folder)["status"] == "failed"
    assert words in summary(folder)["error"]
    assert json.loads((folder / "logs/failure.json").read_text())["rank"] == 1
    saved = {path.name: load_file(path) for path in (folder / "non_finite").iterdir()}
    assert saved.keys() == {"shard_1.safetensors"}
    column = saved["shard_1.safetensors"][f"rollout.{fault.split()[0]}"]
    assert not np.isfinite(column[:, 13 - ENVS // SHARDS]).all(), "what is saved is not what was wrong"


@pytest.mark.parametrize("fault", FAULTS)
def test_skip_trains_to_the_end_with_finite_parameters(trained, fault):
    outcomes, folder = trained[f"{fault} skip", "2 processes"]
    assert [one.error for one in outcomes] == ["", ""]
    assert summary(folder)["status"] == "finished"
    assert all(one.moved for one in outcomes)
    kept = load_file(find(folder)[-1] / "learner.safetensors")
    assert any("square" in name for name in kept)
    bad = [name for name, value in kept.items() if not np.isfinite(value).all()]
    assert bad == [], "parameters or optimizer states that are not finite"
    logged = lines(str(folder))
    assert all(value is not None and np.isfinite(value) for line in logged for value in line.values())
    skipped = [line.get("optim/skipped", 0.0) + line["replay/skipped"] for line in logged]
    assert not any(skipped[: AT - 1]), "something was left out before anything was wrong"
    assert any(skipped[AT - 1 :]), "nothing was left out"
    if fault != "reward 1e30":  # that one is a number, and stays
        over = AT + LENGTH * fault.startswith("observation")  # such an observation stays until its episode ends
        assert not any(skipped[over:]), "the fault was drawn from the replay later"


def test_infinite_loss_stops_all_ranks_and_names_its_transition(trained):
    outcomes, folder = trained["reward 1e30 stop", "2 processes"]
    for one in outcomes:
        for word in ("from the replay is not finite", "rank 1, shard 1", "non_finite/shard_1", "non_finite=skip"):
            assert word in one.error, one.error
    assert summary(folder)["status"] == "failed"
    assert all(np.isfinite(list(line.values())).all() for line in lines(str(folder)))
    saved = load_file(folder / "non_finite/shard_1.safetensors")
    assert any(np.abs(column).max() > 1e29 for column in saved.values()), "what is saved is not what was wrong"
