"""A number that is not finite, on one rank, where learning is from a replay: all stop and name it, or all leave it out.

It must never come to lie in the replay: it would be drawn again and again.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from bad_numbers import ENVS, LENGTH, SHARDS
from running import job, lines, slow_tests_selected, small_dqn, timeless, train_all
from safetensors.numpy import load_file

from lockstep.record.checkpoint import find
from quick import others_slow

AT = 30  # step of the environment, and iteration of the run
FAULTS = {"reward nan": {}, "reward -inf": {}, "observation nan": {}, "reward 1e30": {"loss": "mse"}}
MODES = ("stop", "skip")
QUICK = ("reward nan", "reward 1e30")
NAMES = [f"{fault} {mode}" for fault in FAULTS for mode in MODES]
QUICK_NAMES = [name for name in NAMES if name.rpartition(" ")[0] in QUICK]


def broken(fault, mode, **changes):
    kwargs = {"env.kwargs": {"fault": fault, "at": AT}, "non_finite": mode}
    base = {"num_shards": SHARDS, "num_envs": ENVS, "num_steps": 1, "log_every": ENVS, "max_grad_norm": None}
    return small_dqn("bad_numbers:BrokenChoice", **{**base, **kwargs, **changes})


@pytest.fixture(scope="module")
def trained(request, tmp_path_factory):
    """Every fault that the selected tests need, in both modes on 1 and 2 ranks: what each rank saw, and where."""
    found = {}
    faults = FAULTS if slow_tests_selected(request) else {fault: FAULTS[fault] for fault in QUICK}
    for ranks in (1, 2):
        folder = tmp_path_factory.mktemp(f"ranks{ranks}")
        jobs = {
            f"{fault} {mode}": job(broken(fault, mode, **changes), folder, f"{fault} {mode}")
            for fault, changes in faults.items()
            for mode in MODES
        }
        jobs["healthy"] = job(broken("", "skip"), folder, "healthy")
        told = train_all(ranks, jobs)
        found |= {(name, ranks): (told[name], Path(jobs[name].folder)) for name in jobs}
    return found


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


@pytest.mark.parametrize("name", others_slow([*NAMES, "healthy"], *QUICK_NAMES, "healthy"))
def test_any_number_of_ranks_does_the_same(trained, name):
    (alone,), folder = trained[name, 1]
    outcomes, other = trained[name, 2]
    for one in outcomes:
        assert one.error.replace("rank 1", "rank 0") == alone.error, "ranks ended with other words"
    assert timeless(str(other)) == timeless(str(folder)), "metrics depend on the number of ranks"
    if not alone.error:
        assert summary(folder)["params_fingerprint"] == summary(other)["params_fingerprint"]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("reward nan", "environment 13 gave a reward that is not finite (nan)"),
        pytest.param("reward -inf", "environment 13 gave a reward that is not finite (-inf)", marks=pytest.mark.slow),
        pytest.param(
            "observation nan", "environment 13 gave an observation that is not finite (nan)", marks=pytest.mark.slow
        ),
    ],
)
def test_stopping_names_rank_environment_and_step(trained, fault, words):
    outcomes, folder = trained[f"{fault} stop", 2]
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


@pytest.mark.parametrize("fault", others_slow(FAULTS, *QUICK))
def test_skipping_goes_on_to_the_end_and_poisons_nothing(trained, fault):
    outcomes, folder = trained[f"{fault} skip", 2]
    assert [one.error for one in outcomes] == ["", ""]
    assert summary(folder)["status"] == "finished"
    assert all(one.moved for one in outcomes)
    kept = load_file(find(folder)[-1] / "learner.safetensors")
    assert any("square" in name for name in kept)
    bad = [name for name, value in kept.items() if not np.isfinite(value).all()]
    assert bad == [], "what is not finite has come into what is learned on with"
    logged = lines(str(folder))
    assert all(value is not None and np.isfinite(value) for line in logged for value in line.values())
    skipped = [line.get("optim/skipped", 0.0) + line["replay/skipped"] for line in logged]
    assert not any(skipped[: AT - 1]), "something was left out before anything was wrong"
    assert any(skipped[AT - 1 :]), "nothing is told to be left out"
    if fault != "reward 1e30":  # that one is a number, and stays
        over = AT + LENGTH * fault.startswith("observation")  # such an observation stays until its episode ends
        assert not any(skipped[over:]), "what was wrong was learned from later: it lies in the replay"


def test_a_loss_too_large_stops_all_ranks_and_names_its_transition(trained):
    outcomes, folder = trained["reward 1e30 stop", 2]
    for one in outcomes:
        for word in ("from the replay is not finite", "rank 1, shard 1", "non_finite/shard_1", "non_finite=skip"):
            assert word in one.error, one.error
    assert summary(folder)["status"] == "failed"
    assert all(np.isfinite(list(line.values())).all() for line in lines(str(folder)))
    saved = load_file(folder / "non_finite/shard_1.safetensors")
    assert any(np.abs(column).max() > 1e29 for column in saved.values()), "what is saved is not what was wrong"
