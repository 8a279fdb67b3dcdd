"""A number that is not finite, on one rank: all ranks stop and name it, or all leave out the same updates."""

import json
from pathlib import Path

import numpy as np
import pytest
from bad_numbers import ENVS, SHARDS, STEPS, UPDATES, Task, broken, learn_each
from running import job, lines, slow_tests_selected, train_all
from safetensors.numpy import load_file

from lockstep import spawn
from quick import others_slow

BOTH = {"normalize_observation": True, "normalize_return": True}
# In step 20 of the environment, step 3 of update 3; or, so that one row alone is too large, in its step 0.
FAULTS = {
    "reward nan": ("reward nan", 20, {}),
    "reward -inf": ("reward -inf", 20, BOTH),
    "observation nan": ("observation nan", 20, {}),
    "observation inf": ("observation inf", 20, BOTH),
    "huge": ("reward 1e30", 17, {"normalize_advantage": False, "gae_lambda": 0.0, "max_grad_norm": None}),
}
MODES = ("stop", "skip")
QUICK = ("reward nan", "observation inf", "huge")


@pytest.fixture(scope="module")
def learned(request, tmp_path_factory):
    """Every fault that the selected tests need, in both modes on 1 and 2 ranks: what each rank saw."""
    found = {}
    names = FAULTS if slow_tests_selected(request) else QUICK
    for ranks in (1, 2):
        folder = tmp_path_factory.mktemp(f"ranks{ranks}")
        tasks = {
            f"{name} {mode}": Task(broken(fault, mode, at, **changes), str(folder / f"{name} {mode}"))
            for name, (fault, at, changes) in ((name, FAULTS[name]) for name in names)
            for mode in MODES
        }
        tasks["healthy"] = Task(broken("", "skip"), str(folder / "healthy"))
        told = spawn(learn_each, ranks, (tasks,), timeout_s=120)
        found |= {(name, ranks): ([one[name] for one in told], Path(tasks[name].folder)) for name in tasks}
    return found


def same(ones, others):
    return all(ones[name].tobytes() == others[name].tobytes() for name in ones) and ones.keys() == others.keys()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", others_slow(FAULTS, *QUICK))
def test_all_ranks_do_the_same_and_nothing_is_poisoned(learned, name, mode):
    (alone,), _ = learned[f"{name} {mode}", 1]
    for told in learned[f"{name} {mode}", 2][0]:
        assert told["error"].replace("rank 1", "rank 0") == alone["error"], "ranks stopped with other words"
        assert len(told["parameters"]) == len(alone["parameters"]), "ranks took different numbers of updates"
        assert all(map(same, told["parameters"], alone["parameters"])), "parameters depend on the number of ranks"
        assert told["metrics"] == alone["metrics"]
        assert told["returns"] == alone["returns"]
    assert all(np.isfinite(a).all() for state in alone["parameters"] for a in state.values()), "poisoned"
    assert np.isfinite(alone["returns"]).all()
    assert all(np.isfinite(list(line.values())).all() for line in alone["metrics"])


@pytest.mark.parametrize(
    ("name", "skipped"),
    [
        ("reward nan", {2: 1.0}),
        pytest.param("reward -inf", {2: 1.0}, marks=pytest.mark.slow),
        # The episode goes on for 8 steps.
        pytest.param("observation nan", {2: 1.0, 3: 1.0}, marks=pytest.mark.slow),
        ("observation inf", {2: 1.0, 3: 1.0}),
        ("huge", {2: 0.5}),  # one of two minibatches of each epoch
        ("healthy", {}),
    ],
)
def test_skipping_leaves_out_what_is_bad_and_no_more(learned, name, skipped):
    (told, _), _ = learned[name if name == "healthy" else f"{name} skip", 2]
    assert told["error"] == ""
    assert [line["optim/skipped"] for line in told["metrics"]] == [skipped.get(u, 0.0) for u in range(UPDATES)]
    for update in range(1, UPDATES):
        kept = same(told["parameters"][update], told["parameters"][update - 1])
        assert kept == (skipped.get(update) == 1.0)
    if name != "huge":
        healthy = learned["healthy", 2][0][0]
        whole = [u for u in range(UPDATES) if u not in skipped]
        assert all(told["metrics"][u].keys() == healthy["metrics"][u].keys() for u in whole)


@pytest.mark.parametrize(
    ("name", "step", "words", "column", "value"),
    [
        ("reward nan", 3, "environment 13 gave a reward that is not finite (nan)", "rollout.reward", np.nan),
        pytest.param(
            "reward -inf",
            3,
            "environment 13 gave a reward that is not finite (-inf)",
            "rollout.reward",
            -np.inf,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "observation nan",
            3,
            "environment 13 gave an observation that is not finite",
            "rollout.observation",
            np.nan,
            marks=pytest.mark.slow,
        ),
        ("observation inf", 3, "environment 13 gave an observation that is not finite", "rollout.observation", np.inf),
        ("huge", 0, "loss or gradient of environment 13 is not finite", "batch.target", np.float32(1e30)),
    ],
)
def test_stopping_names_rank_environment_and_step_and_saves_the_batch(learned, name, step, words, column, value):
    outcomes, folder = learned[f"{name} stop", 2]
    taken = 2 * STEPS * ENVS + (step + 1) * ENVS
    for told in outcomes:
        for word in (
            words,
            f"step {step} of",
            "update 3",
            f"environment step {taken}, rank 1, shard 1",
            "non_finite=skip",
        ):
            assert word in told["error"], told["error"]
        assert told["rank"] == 1
        assert len(told["metrics"]) == 2
    assert [p.name for p in folder.rglob("*") if p.is_file()] == ["shard_1.safetensors"]
    saved = load_file(folder / "non_finite/shard_1.safetensors")
    row = saved[column][step + ("observation" in column), 13 - ENVS // SHARDS]
    np.testing.assert_allclose(row, value, rtol=1e-5)
    assert saved["batch.advantage"].shape == saved["rollout.reward"].shape == (STEPS, ENVS // SHARDS)
    before = learned[f"{name} skip", 2][0][0]["parameters"][1]
    if name != "huge":  # the step before the one that was too large has been taken
        assert same(outcomes[0]["parameters"][-1], before), "parameters changed after the number was seen"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Whole runs on 2 ranks: with their run directories, logs and evaluations."""
    folder, every = tmp_path_factory.mktemp("whole"), {"log_every": ENVS * STEPS, "evaluate_every": 3 * ENVS * STEPS}
    runs = {mode: broken("reward nan", mode, **every, **BOTH) for mode in MODES}
    runs["evaluation"] = broken("reward nan", "skip", at=5, on=-1, **every)  # only environments of evaluations
    jobs = {name: job(run, folder, name) for name, run in runs.items()}
    return {name: (told, Path(jobs[name].folder)) for name, told in train_all(2, jobs).items()}


def test_a_run_that_stops_says_so_and_saves_the_batch_in_its_directory(whole):
    outcomes, folder = whole["stop"]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert (
        "environment 13 gave a reward that is not finite (nan), in step 3 of the rollout of update 3"
        in summary["error"]
    )
    assert [one.error for one in outcomes] == [f"NonFiniteError: {summary['error']}"] * 2
    assert json.loads((folder / "logs/failure.json").read_text())["rank"] == 1
    assert np.isnan(load_file(folder / "non_finite/shard_1.safetensors")["rollout.reward"][3, 5])
    assert len(lines(str(folder))) == 2


def test_a_run_that_skips_goes_on_to_its_end(whole):
    outcomes, folder = whole["skip"]
    assert [one.error for one in outcomes] == ["", ""]
    assert outcomes[0].summary["status"] == "finished"
    assert len({rank["params_fingerprint"] for rank in outcomes[0].summary["ranks"]}) == 1
    logged = lines(str(folder))
    assert [line["optim/skipped"] for line in logged] == [0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    assert "loss/policy" not in logged[2], "an update that was left out has no loss"
    assert all(value is not None for line in logged for value in line.values())
    messages = outcomes[0].messages
    assert messages["moments"] == UPDATES
    assert messages["average_gradients"] == 4 * (UPDATES - 1)


def test_an_evaluation_without_a_finite_return_ends_no_run(whole):
    outcomes, folder = whole["evaluation"]
    assert [one.error for one in outcomes] == ["", ""]
    first, *others = lines(str(folder), "evaluations.jsonl")
    assert None in first["returns"], "the first evaluation was to meet a reward that is not a number"
    assert others
    assert all(None not in one["returns"] for one in others)
    assert json.loads((folder / "summary.json").read_text())["status"] == "finished"
    assert (folder / "policy_best.safetensors").exists(), "no later evaluation was the best"
