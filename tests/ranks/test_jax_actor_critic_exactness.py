"""SAC and TD3 in JAX: the same bits on 1, 2 and 4 devices of one process and on 1, 2 and 4 processes."""

import pytest

pytest.importorskip("jax")

from jax_running import train_all
from running import job, lines, small_actor_critic, timeless

from quick import others_slow

slow = pytest.mark.slow  # many runs on several layouts

ENSEMBLE = {"num_critics": 3, "target_critics": 2, "layer_norm": True, "dropout": 0.1, "policy_delay": 2}
RUNS = {
    "sac": small_actor_critic("sac", num_shards=4),
    "td3": small_actor_critic("td3", num_shards=4),
    "other seed": small_actor_critic("sac", num_shards=4, seed=1),
    "sac ensemble": small_actor_critic("sac", num_shards=4, max_grad_norm=0.5, prioritized=False, **ENSEMBLE),
    "td3 ensemble": small_actor_critic("td3", num_shards=4, learning_rate_schedule="linear", **ENSEMBLE),
    "fixed temperature": small_actor_critic("sac", num_shards=4, alpha=0.1, evaluate_every=320, evaluate_episodes=5),
}  # fmt: skip
LAYOUTS = {"1 device": (1, 1), "2 devices": (1, 2), "4 devices": (1, 4), "2 processes": (2, 1), "4 processes": (4, 1)}
EQUAL = ("sac", "td3", "sac ensemble", "td3 ensemble", "fixed temperature")
GRADIENT_STEPS = (640 - 160 + 32) // 4
"""Of a run without `policy_delay`."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Every run on every layout: the outcomes of its processes."""
    folder, found = tmp_path_factory.mktemp("runs"), {}
    for layout, (processes, devices) in LAYOUTS.items():
        jobs = {name: job(run, folder, f"{name} {layout}") for name, run in RUNS.items()}
        outcomes = train_all(processes, jobs, devices)
        found |= {(name, layout): (jobs[name], outcomes[name]) for name in jobs}
    return found


def fingerprints(outcomes):
    """Of the parameters of every rank."""
    return {rank["params_fingerprint"] for outcome in outcomes for rank in outcome.summary["ranks"]}


def all_fingerprints(trained, name):
    found = set()
    for (run, layout), (_, outcomes) in trained.items():
        if run == name:
            assert [outcome.error for outcome in outcomes] == [""] * LAYOUTS[layout][0], (name, layout)
            found |= fingerprints(outcomes)
    return found


@pytest.mark.parametrize("name", others_slow(["sac", "td3"], "sac"))
def test_two_processes_give_the_bits_of_one(tmp_path, name):
    (one,) = train_all(1, {name: job(RUNS[name], tmp_path, "1 process")})[name]
    two = train_all(2, {name: job(RUNS[name], tmp_path, "2 processes")})[name]
    assert [outcome.error for outcome in (one, *two)] == [""] * 3
    assert one.moved, "not all parameters were trained"
    assert len(fingerprints([one, *two])) == 1, "parameters depend on the number of processes"
    warmup = min(RUNS[name].algorithm.policy_delay, 2)  # steps with and without the policy
    for outcome in two:
        assert outcome.messages["average_gradients"] == GRADIENT_STEPS + warmup, "not one message per gradient step"
        assert outcome.counts["learned"] == GRADIENT_STEPS * 16


@slow
@pytest.mark.parametrize("name", EQUAL)
def test_all_layouts_give_the_same_bits(trained, name):
    assert len(all_fingerprints(trained, name)) == 1, "parameters depend on the layout"
    folders = [one.folder for (run, _), (one, _) in trained.items() if run == name]
    logs = [timeless(folder) for folder in folders]
    assert len(logs) == 5 and len(logs[0]) >= 3
    assert all(log == logs[0] for log in logs), "metrics depend on the layout"
    evaluations = [lines(folder, "evaluations.jsonl") for folder in folders]
    assert all(one == evaluations[0] for one in evaluations), "evaluations depend on the layout"


@slow
@pytest.mark.parametrize("layout", [(1, 2), (2, 1)])
def test_unevenly_assigned_shards_give_the_same_bits(tmp_path, layout):
    # 24 rows of a minibatch: a division by them is not the product with their inverse.
    run = small_actor_critic("sac", num_shards=3, num_envs=12, batch_size=24, capacity=510)
    found = [train_all(p, {"run": job(run, tmp_path, f"{p} {d}")}, d)["run"] for p, d in ((1, 1), layout)]
    assert len(fingerprints([outcome for outcomes in found for outcome in outcomes])) == 1


@slow
def test_parameters_change_and_depend_on_the_seed(trained):
    assert all(outcome.moved for _, outcomes in trained.values() for outcome in outcomes)
    assert all_fingerprints(trained, "sac") != all_fingerprints(trained, "other seed")


@slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_process_does_its_part_of_the_work(trained, layout):
    processes, _ = LAYOUTS[layout]
    for name in ("sac", "td3"):
        for outcome in trained[name, layout][1]:
            assert outcome.counts["steps"] == 640 // processes
            assert outcome.counts["acted"] == 640 // processes
            assert outcome.counts["learned"] == GRADIENT_STEPS * 32 // processes
            assert outcome.counts["compiled step"] == 1, "the gradient step was compiled more than once"
