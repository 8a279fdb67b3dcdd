"""SAC and TD3 with environments on the device: the same bits on any layout, resumed or not; bad numbers are named."""

import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("jax")

from jax_running import train_all
from running import job, lines, slow_tests_selected, small_actor_critic, timeless

from lockstep.run import override
from quick import others_slow

DRIFT = {"env.kwargs": {"continuous": True, "max_episode_steps": 20}, "prioritized": False, "check_every": 4}
RUNS = {
    "sac": small_actor_critic("sac", "device_envs:Drift", num_shards=4, checkpoint_every=160, dropout=0.1, **DRIFT),
    "td3": small_actor_critic(
        "td3", "device_envs:Drift", num_shards=4, checkpoint_every=160, num_critics=3, target_critics=2,
        learning_rate_schedule="linear", **DRIFT,
    ),
}  # fmt: skip
LAYOUTS = {"1 device": (1, 1), "4 devices": (1, 4), "2 processes": (2, 1)}
QUICK_LAYOUTS = ("1 device", "2 processes")


@pytest.fixture(scope="module")
def trained(request, tmp_path_factory):
    """Every run that is asked for, on every layout: what each process saw."""
    folder, found = tmp_path_factory.mktemp("runs"), {}
    everything = slow_tests_selected(request)
    runs = RUNS if everything else {"sac": RUNS["sac"]}
    for layout in LAYOUTS if everything else QUICK_LAYOUTS:
        processes, devices = LAYOUTS[layout]
        jobs = {name: job(run, folder, f"{name} {layout}") for name, run in runs.items()}
        told = train_all(processes, jobs, devices)
        found |= {(name, layout): (jobs[name], told[name]) for name in jobs}
    return found


def fingerprints(trained, name):
    """Of every rank of every layout."""
    found = set()
    for layout in layouts_of(trained):
        _, outcomes = trained[name, layout]
        assert [o.error for o in outcomes] == [""] * LAYOUTS[layout][0], (name, layout)
        found |= {rank["params_fingerprint"] for o in outcomes for rank in o.summary["ranks"]}
    return found


def layouts_of(trained):
    found = [layout for layout in LAYOUTS if ("sac", layout) in trained]
    assert set(found) >= set(QUICK_LAYOUTS)
    return found


@pytest.mark.parametrize("name", others_slow(RUNS, "sac"))
def test_any_layout_gives_the_same_bits(trained, name):
    assert len(fingerprints(trained, name)) == 1, "parameters depend on the layout"
    logs = [timeless(trained[name, layout][0].folder) for layout in layouts_of(trained)]
    assert len(logs[0]) == 4
    assert all(log == logs[0] for log in logs), "metrics depend on the layout"


@pytest.mark.parametrize("name", others_slow(RUNS, "sac"))
def test_it_is_compiled_once_and_every_rank_collects_for_itself(trained, name):
    for layout in layouts_of(trained):
        one, outcomes = trained[name, layout]
        for outcome in outcomes:
            assert outcome.counts["compiled _run_updates"] == 1
        ranks = outcomes[0].summary["ranks"]
        assert len({rank["first_rollout_fingerprint"] for rank in ranks}) == np.prod(LAYOUTS[layout])
    found = lines(one.folder)
    # Means over updates 1 to 5, 6 to 10, ... of 32 transitions each, of which the newest two steps wait for the third.
    assert [line["replay/size"] for line in found] == pytest.approx([64, 224, 384, (480 + 4 * 512) / 5])
    assert all(line["optim/grad_norm"] > 0 and line["optim/skipped"] == 0 for line in found)


@pytest.mark.slow  # 1 device and 2 processes are quick
@pytest.mark.parametrize("name", RUNS)
def test_four_devices_give_the_same_bits_too(trained, name):
    assert (name, "4 devices") in trained
    assert len(fingerprints(trained, name)) == 1


@pytest.mark.parametrize("name", others_slow(RUNS, "sac"))
def test_resumed_it_ends_with_the_bits_of_a_run_that_never_stopped(trained, name, tmp_path):
    whole = Path(trained[name, "1 device"][0].folder)
    copy = shutil.copytree(whole, tmp_path / "copy")
    steps = sorted(copy.glob("checkpoints/step_*"), key=lambda path: int(path.name.partition("_")[2]))
    for late in steps[-2:]:
        shutil.rmtree(late)
    one = job(RUNS[name], tmp_path, "unused", resume=str(copy))
    outcomes = train_all(2, {name: one})[name]
    assert [o.error for o in outcomes] == ["", ""]
    found = {rank["params_fingerprint"] for o in outcomes for rank in o.summary["ranks"]}
    assert found == fingerprints(trained, name), "other parameters"
    assert timeless(one.resume) == timeless(str(whole)), "other metrics"


@pytest.mark.slow  # compiled for itself
def test_resumed_with_other_rollouts_the_rate_goes_on_where_it_was(trained, tmp_path):
    """What was done is counted in environment steps: the number of updates says nothing when their size changes."""
    copy = shutil.copytree(trained["td3", "1 device"][0].folder, tmp_path / "copy")
    steps = sorted(copy.glob("checkpoints/step_*"), key=lambda path: int(path.name.partition("_")[2]))
    for late in steps[1:]:
        shutil.rmtree(late)
    run = override(RUNS["td3"], {"num_steps": 2 * RUNS["td3"].algorithm.num_steps})
    (outcome,) = train_all(1, {"td3": job(run, tmp_path, "unused", resume=str(copy))})["td3"]
    assert outcome.error == ""
    *_, before, last = lines(str(copy))
    done = np.arange(before["step"], 640, 64) / 640  # before each update of two rollouts that are logged last
    assert len(done) >= 2 and last["optim/learning_rate"] == pytest.approx(1e-3 * np.mean(1 - done), rel=1e-4)


def test_a_number_that_is_not_finite_stops_every_rank_or_is_not_stored(tmp_path):
    spoiled = {"continuous": True, "max_episode_steps": 20, "push": 0.0, "spoil": "reward", "spoil_at": 7}
    stop = override(RUNS["sac"], {"env.kwargs": spoiled})
    runs = {"stop": stop, "skip": override(stop, {"non_finite": "skip"})}
    jobs = {name: job(run, tmp_path, name) for name, run in runs.items()}
    told = train_all(2, jobs)
    for outcome in told["stop"]:
        assert outcome.error.startswith("NonFiniteError: environment 0 gave a reward that is not finite"), outcome.error
        assert "step 0 of the rollout of update 4" in outcome.error
    assert [o.error for o in told["skip"]] == ["", ""]
    found = lines(jobs["skip"].folder)
    assert found[0]["replay/skipped"] > 0
    assert found[-1]["optim/skipped"] == 0, "what was not stored cannot spoil a step"
    assert len({r["params_fingerprint"] for o in told["skip"] for r in o.summary["ranks"]}) == 1
