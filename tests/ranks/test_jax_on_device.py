"""PPO with its environments on the device: the same bits on any layout, resumed or not; bad numbers are named."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("jax")

from jax_running import train_all
from running import ROBOTS, job, lines, runs_of_selected_tests, slow_tests_selected, small, timeless

from lockstep.jax.export import load_policy
from lockstep.run import override
from quick import others_slow

EVERY = {"check_every": 4, "network.hidden": [8], "checkpoint_every": 6 * 128}
RUNS = {
    "cartpole": small("jax/CartPole-v1", num_shards=4, **EVERY),
    "other seed": small("jax/CartPole-v1", num_shards=4, seed=1, **EVERY),
    "continuous": small(
        "device_envs:Drift", num_shards=4, total_steps=12 * 128, log_every=3 * 128, **ROBOTS, **EVERY,
        **{"env.kwargs": {"continuous": True}},
    ),
    "groups": small(
        "device_envs:GroupedDrift", num_shards=4, total_steps=12 * 128, log_every=3 * 128, **EVERY,
        **ROBOTS | {"env.clip_observation": 200.0, "env.kwargs": {"continuous": True}},
    ),
    "pong": small(
        "lockstep/PixelPong-v0", num_shards=4, encoder="small", features=16, check_every=4, checkpoint_every=6 * 128,
        startup_timeout_s=300.0,  # its convolutions are compiled for each shard
        **{"env.placement": "device", "env.max_episode_steps": 7, "env.kwargs": {"size": 21}},
    ),
    "pictures": small(
        "device_envs:SeenDrift", num_shards=4, total_steps=4 * 128, log_every=128, normalize_return=True,
        **EVERY | {"network.features": 16},
    ),
    "memory": small(
        "device_envs:GroupedDrift", num_shards=4, total_steps=12 * 128, log_every=3 * 128, sequence_length=4, **EVERY,
        **ROBOTS | {"env.clip_observation": 200.0, "env.kwargs": {"continuous": True}, "network.recurrent": "lstm"},
    ),
    "looked at often": small("jax/CartPole-v1", num_shards=4, **EVERY | {"check_every": 1}),
}  # fmt: skip
LAYOUTS = {"1 device": (1, 1), "4 devices": (1, 4), "2 processes": (2, 1)}
QUICK_LAYOUTS = ("1 device", "2 processes")
ON = {"other seed": ("1 device",), "looked at often": ("1 device",)}
SPOILED = {"spoil_at": 7, "max_episode_steps": 20, "push": 0.0}


@pytest.fixture(scope="module")
def trained(request, tmp_path_factory):
    """Every run that is asked for, on every layout: what each process saw."""
    folder, found = tmp_path_factory.mktemp("runs"), {}
    everything = slow_tests_selected(request)
    always = ("cartpole", "memory", *(("other seed", "looked at often") if everything else ()))
    selected = runs_of_selected_tests(request, RUNS, always)
    for layout in LAYOUTS if everything else QUICK_LAYOUTS:
        processes, devices = LAYOUTS[layout]
        names = [name for name in selected if layout in ON.get(name, LAYOUTS)]
        jobs = {name: job(RUNS[name], folder, f"{name} {layout}") for name in names}
        told = train_all(processes, jobs, devices)
        found |= {(name, layout): (jobs[name], told[name]) for name in jobs}
    return found


def fingerprints(trained, name):
    """Of every rank of every layout."""
    found = []
    for (of, layout), (_, outcomes) in trained.items():
        if of == name:
            assert [o.error for o in outcomes] == [""] * LAYOUTS[layout][0], (name, layout)
            found += [rank["params_fingerprint"] for o in outcomes for rank in o.summary["ranks"]]
    return set(found)


@pytest.mark.parametrize(
    "name",
    others_slow(["cartpole", "continuous", "groups", "memory", "pictures", "pong"], "cartpole", "memory"),
)
def test_any_layout_gives_the_same_bits(trained, name):
    assert len(fingerprints(trained, name)) == 1, "parameters depend on the layout"
    logs = [timeless(one.folder) for (of, _), (one, _) in trained.items() if of == name]
    assert len(logs) >= len(QUICK_LAYOUTS)
    assert len(logs[0]) >= 4
    assert all(log == logs[0] for log in logs), "metrics depend on the layout"


@pytest.mark.slow  # on 2 devices of one process; 4 of them, and 2 processes, are quick
def test_two_devices_give_the_same_bits_too(trained, tmp_path):
    one = job(RUNS["cartpole"], tmp_path, "two")
    (outcome,) = train_all(1, {"two": one}, 2)["two"]
    assert outcome.error == ""
    assert outcome.counts["compiled _run_updates"] == 1
    found = {rank["params_fingerprint"] for rank in outcome.summary["ranks"]}
    assert found == fingerprints(trained, "cartpole")
    assert timeless(one.folder) == timeless(trained["cartpole", "1 device"][0].folder)
    assert len({rank["first_rollout_fingerprint"] for rank in outcome.summary["ranks"]}) == 2
    assert sum(rank["env_steps"] for rank in outcome.summary["ranks"]) == RUNS["cartpole"].total_steps


@pytest.mark.slow
def test_another_seed_gives_other_bits(trained):
    assert fingerprints(trained, "cartpole") != fingerprints(trained, "other seed")


@pytest.mark.slow
def test_how_often_the_host_looks_changes_nothing(trained):
    assert fingerprints(trained, "looked at often") == fingerprints(trained, "cartpole")
    often, rarely = (timeless(trained[name, "1 device"][0].folder) for name in ("looked at often", "cartpole"))
    assert often == rarely


def test_each_run_is_compiled_once_and_every_rank_collects_for_itself(trained):
    for (name, layout), (_, outcomes) in trained.items():
        for outcome in outcomes:
            assert outcome.counts["compiled _run_updates"] == 1, (name, layout)
        ranks = [rank for outcome in outcomes[:1] for rank in outcome.summary["ranks"]]
        firsts = {rank["first_rollout_fingerprint"] for rank in ranks}
        assert len(firsts) == len(ranks) == np.prod(LAYOUTS[layout]), (name, layout)
        assert sum(rank["env_steps"] for rank in ranks) == RUNS[name].total_steps


def test_what_is_logged_is_what_happened(trained):
    found = lines(trained["cartpole", "1 device"][0].folder)
    assert [line["step"] for line in found] == [640, 1280, 1920, 2560]
    assert [line["progress/updates"] for line in found] == [5, 10, 15, 20]
    episodes = [line["progress/episodes"] for line in found]
    assert sum(line["episode/count"] for line in found) == episodes[-1] > 50
    for line in found:
        assert line["episode/return_mean"] == pytest.approx(line["episode/length_mean"], rel=1e-6)
        assert 8 < line["episode/return_mean_100"] < 60
        assert line["optim/skipped"] == 0
        assert 0 < line["policy/entropy"] < 0.7
    # Steps of episodes that ended, and of those still going on: at most 16 of them.
    lengths = sum(line["episode/count"] * line["episode/length_mean"] for line in found)
    assert 2560 - 16 * 100 < lengths <= 2560
    rates = [line["optim/learning_rate"] for line in found]
    assert rates == pytest.approx([1e-3 * (1 - u / 20) for u in (2, 7, 12, 17)], rel=1e-5)


def test_resumed_it_ends_with_the_bits_of_a_run_that_never_stopped(trained, tmp_path):
    jobs, wholes = {}, {}
    for name in {"cartpole", "continuous", "groups", "memory", "pong"} & {name for name, _ in trained}:
        whole = Path(trained[name, "1 device"][0].folder)
        copy = shutil.copytree(whole, tmp_path / name)
        steps = sorted(copy.glob("checkpoints/step_*"), key=lambda path: int(path.name.partition("_")[2]))
        assert len(steps) >= 2
        for late in steps[1:]:
            shutil.rmtree(late)
        jobs[name], wholes[name] = job(RUNS[name], tmp_path, "unused", resume=str(copy)), whole
    told = train_all(2, jobs)
    for name, whole in wholes.items():
        assert [o.error for o in told[name]] == ["", ""]
        assert told[name][0].summary["resumed_from"] is not None
        assert {r["params_fingerprint"] for o in told[name] for r in o.summary["ranks"]} == fingerprints(trained, name)
        assert timeless(jobs[name].resume) == timeless(str(whole)), "other metrics"


def spoiled(what, **changes):
    kwargs = {"env.kwargs": {"spoil": what, **SPOILED}}
    return small("device_envs:Drift", num_shards=2, total_steps=6 * 128, log_every=128, **EVERY, **kwargs, **changes)


def check_named(outcomes, what):
    for outcome in outcomes:
        assert outcome.error.startswith("NonFiniteError: environment 0 gave"), outcome.error
        assert f"{what} that is not finite" in outcome.error
        assert "step 6 of the rollout of update 1" in outcome.error


@pytest.mark.slow  # quick in tests/unit/jax/test_jax_env_collect.py, on one process
def test_a_number_that_is_not_finite_is_named_on_every_rank(tmp_path):
    told = train_all(2, {"observation": job(spoiled("observation"), tmp_path, "observation")})
    check_named(told["observation"], "observation")
    assert json.loads((tmp_path / "observation" / "summary.json").read_text())["status"] == "failed"


@pytest.mark.slow  # on the host it is quick
def test_an_update_with_a_number_that_is_not_finite_is_skipped_on_every_rank(tmp_path):
    runs = {
        "reward": spoiled("reward", non_finite="skip"),
        "memory": spoiled("observation", non_finite="skip", **{"network.recurrent": "gru"}),
    }
    jobs = {name: job(run, tmp_path, name) for name, run in runs.items()}
    told = train_all(2, jobs)
    for name, one in jobs.items():
        assert [o.error for o in told[name]] == ["", ""]
        found = lines(one.folder)
        assert found[0]["optim/skipped"] == 1.0
        assert found[1]["optim/skipped"] == 0.0, "a rollout is spoiled by its own numbers alone"
        assert len({r["params_fingerprint"] for o in told[name] for r in o.summary["ranks"]}) == 1


@pytest.mark.slow  # as an observation is named, which is quick
def test_a_reward_that_is_not_finite_is_named_on_every_rank(tmp_path):
    outcomes = train_all(2, {"reward": job(spoiled("reward"), tmp_path, "reward")})["reward"]
    assert len(outcomes) == 2
    check_named(outcomes, "reward")


@pytest.mark.slow  # on the host it is quick
def test_what_never_changes_and_what_is_too_large_are_normalized_or_named(tmp_path):
    def observed(**kwargs):
        return spoiled(
            "", normalize_observation=True, **{f"env.kwargs.{name}": value for name, value in kwargs.items()}
        )

    runs = {
        "constant": observed(constant=2.6752),
        "skip": override(observed(scale=1e25), {"non_finite": "skip"}),
        "stop": observed(scale=1e25),
    }
    jobs = {name: job(run, tmp_path, name) for name, run in runs.items()}
    told = train_all(2, jobs)
    for name in ("constant", "skip"):
        assert [o.error for o in told[name]] == ["", ""]
        assert len({r["params_fingerprint"] for o in told[name] for r in o.summary["ranks"]}) == 1
        skipped = [line["optim/skipped"] for line in lines(jobs[name].folder)]
        assert set(skipped) == {1.0 if name == "skip" else 0.0}
    _, observations = load_policy(tmp_path / "constant" / "policy.safetensors")
    assert observations is not None
    assert observations.count == 6 * 128
    assert observations.mean[1] == pytest.approx(2.6752, rel=1e-7)
    assert observations.variance[1] == 0.0
    for outcome in told["stop"]:
        assert outcome.error.startswith("NormalizerError: the running mean and variance of number 1 of the observation")
        assert "with the rollout of update 1" in outcome.error
