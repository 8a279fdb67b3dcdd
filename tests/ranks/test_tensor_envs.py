"""Environments on torch tensors over ranks: the same bits on any number of them, and each with data of its own."""

import json
import shutil
from pathlib import Path

import pytest
from running import job, lines, slow_tests_selected, small, timeless, train_all

from quick import others_slow

TASKS = {
    "walk": f"{Path(__file__).parents[1] / 'unit/torch/envs/tensor_envs.py'}:Walk",
    "arm": f"{Path(__file__).parents[1] / 'unit/torch/envs/tensor_envs.py'}:Arm",
    "cartpole": "lockstep/Cartpole-v0",
    "pong": "lockstep/PixelPong-v0",
}
NORMALIZED = {"normalize_observation": True, "normalize_return": True}
CHANGES = {
    "walk": {"env.kwargs.autoreset": "next_step", **NORMALIZED},
    "arm": {"features": 4, **NORMALIZED},
    "cartpole": {
        "env.placement": "device", "env.max_episode_steps": 7, "learning_rate_schedule": "adaptive", **NORMALIZED,
    },
    "pong": {
        "env.placement": "device", "env.max_episode_steps": 7, "env.kwargs.size": 21, "encoder": "small",
        "features": 16,
    },
}  # fmt: skip
QUICK = ("walk", "cartpole")
NAMES = others_slow(TASKS, *QUICK)
EVERY = {"num_shards": 4, "checkpoint_every": 4 * 128}


def run_of(name):
    return small(TASKS[name], **EVERY, **CHANGES[name])


@pytest.fixture(scope="module")
def trained(request, tmp_path_factory):
    """Each task that the selected tests need on 1 and 2 ranks, and on 2 ranks until it raises in update 12."""
    folder, found = tmp_path_factory.mktemp("tensor"), {}
    tasks = TASKS if slow_tests_selected(request) else QUICK
    for ranks in (1, 2):
        jobs = {name: job(run_of(name), folder, f"{name}-{ranks}") for name in tasks}
        if ranks == 2:
            jobs |= {f"{name} cut": job(run_of(name), folder, f"{name}-cut", fails_at=11) for name in tasks}
        outcomes = train_all(ranks, jobs)
        found |= {(name, ranks): (Path(jobs[name].folder), outcomes[name]) for name in jobs}
    return found


def fingerprints(outcomes):
    assert {o.error for o in outcomes} == {""}
    return {rank["params_fingerprint"] for o in outcomes for rank in o.summary["ranks"]}


@pytest.mark.parametrize("name", NAMES)
def test_any_number_of_ranks_gives_the_same_bits_and_metrics(trained, name):
    (one, alone), (two, both) = trained[name, 1], trained[name, 2]
    assert len(fingerprints(alone) | fingerprints(both)) == 1, "parameters depend on the number of ranks"
    assert len(timeless(one)) >= 4
    assert timeless(one) == timeless(two), "metrics depend on the number of ranks"


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_four_ranks_give_the_same_bits(trained, name, tmp_path):
    outcomes = train_all(4, {name: job(run_of(name), tmp_path, name)})[name]
    assert fingerprints(outcomes) == fingerprints(trained[name, 1][1])


@pytest.mark.parametrize("name", NAMES)
def test_every_rank_has_environments_of_its_own(trained, name):
    (_, alone), (_, both) = trained[name, 1], trained[name, 2]
    first, second = (outcome.env_seeds for outcome in both)
    assert len(first) == len(second) == 8
    assert not set(first) & set(second), "two ranks have the same seeds"
    assert alone[0].env_seeds == first + second
    assert [o.counts["steps"] for o in both] == [alone[0].counts["steps"] // 2] * 2
    ranks = both[0].summary["ranks"]
    assert ranks[0]["first_rollout_fingerprint"] != ranks[1]["first_rollout_fingerprint"]


@pytest.mark.parametrize("name", NAMES)
def test_one_message_precedes_the_gradients_of_an_update(trained, name):
    messages = trained[name, 2][1][0].messages
    assert messages["moments"] == 20 and messages["average_gradients"] == 20 * 4
    assert messages["first_moments"] == (1 if run_of(name).algorithm.normalize_observation else 0)


@pytest.mark.parametrize("name", NAMES)
def test_resumed_on_another_number_of_ranks_it_ends_with_the_same_bits(trained, name, tmp_path):
    folder, outcomes = trained[f"{name} cut", 2]
    assert all("the test ends this run" in outcome.error for outcome in outcomes)
    copy = str(shutil.copytree(folder, tmp_path / folder.name))
    (resumed,) = train_all(1, {name: job(run_of(name), tmp_path, "unused", resume=copy)})[name]
    whole, outcomes = trained[name, 2]
    assert resumed.error == ""
    assert resumed.summary["resumed_from"] is not None
    assert fingerprints([resumed]) == fingerprints(outcomes), "a resumed run ends with other bits"
    assert timeless(copy) == timeless(whole)
    expected = json.loads((whole / "summary.json").read_text())
    assert resumed.summary["return_mean_100"] == expected["return_mean_100"]
    assert lines(copy)[-1]["episode/count"] > 0
