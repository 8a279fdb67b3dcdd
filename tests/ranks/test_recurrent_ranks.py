"""PPO with memory, stacked observations, several agents or a critic's observation: same bits on all ranks, resumed."""

import json
from pathlib import Path

import pytest
from running import job, lines, small, timeless, train_all

from lockstep.run import Run

PLAIN = {
    "num_steps": 8, "total_steps": 8 * 128, "num_shards": 4, "evaluate_every": 4 * 128, "log_every": 2 * 128,
    "checkpoint_every": 128,
}  # fmt: skip
EVERY = PLAIN | {"sequence_length": 4, "network.recurrent_size": 12}
GROUPS = {"env.policy_keys": ("position",), "env.critic_keys": ("speed", "position", "step")}
RUNS: dict[str, Run] = {
    "own critic": small(
        "grouped_envs:Hidden", normalize_observation=True, **EVERY, **GROUPS, **{"network.recurrent": "gru"}
    ),
    "own critic, not recurrent": small(
        "grouped_envs:Hidden", normalize_observation=True, **PLAIN, **GROUPS
    ),
    "several agents": small(
        "agent_envs:Leaving", normalize_observation=True, normalize_return=True, **EVERY, **{"network.recurrent": "gru"}
    ),
    "same step": small(
        "lockstep/HiddenCartpole-v0", normalize_observation=True, normalize_value=True,
        **EVERY, **{"network.recurrent": "lstm", "env.kwargs.max_episode_steps": 11},
    ),
    "next step": small("CartPole-v1", normalize_return=True, **EVERY, **{"network.recurrent": "gru"}),
    "stacked observations": small(
        "lockstep/HiddenCartpole-v0", normalize_observation=True, **PLAIN,
        **{"env.frame_stack": 3, "env.kwargs.max_episode_steps": 11},
    ),
    "one body": small(
        "lockstep/RememberCue-v0", target_kl=0.01, **EVERY,
        **{"network.recurrent": "gru", "network.shared": True, "network.recurrent_layers": 2},
    ),
}  # fmt: skip
NAMES = [
    "same step",
    "several agents",
    pytest.param("own critic, not recurrent", marks=pytest.mark.slow),
    pytest.param("stacked observations", marks=pytest.mark.slow),
    pytest.param("own critic", marks=pytest.mark.slow),
    pytest.param("next step", marks=pytest.mark.slow),
    pytest.param("one body", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module")
def trained(request, tmp_path_factory):
    """Each run on 1 and 2 ranks, and on 4 for the slow test; cut short on 2 ranks and resumed on 1."""
    folder = tmp_path_factory.mktemp("recurrent")
    items = [item for item in request.session.items if item.module is request.module]
    names = sorted({item.callspec.params["name"] for item in items if "name" in item.callspec.params})
    worlds = (1, 2, 4) if any("slow" in item.keywords for item in items) else (1, 2)
    found = {}
    for ranks in sorted(worlds, reverse=True):  # the cut runs before those that resume them
        jobs = {name: job(RUNS[name], folder, f"{name}-{ranks}") for name in names}
        if ranks == 2:
            jobs |= {f"{name} cut": job(RUNS[name], folder, f"{name}-cut", fails_at=5) for name in names}
        if ranks == 1:
            cut = {name: str(folder / f"{name}-cut") for name in names}
            jobs |= {f"{name} resumed": job(RUNS[name], folder, "unused", resume=cut[name]) for name in names}
        outcomes = train_all(ranks, jobs)
        found |= {(name, ranks): (jobs[name].resume or jobs[name].folder, outcomes[name]) for name in jobs}
    return found


@pytest.mark.slow
@pytest.mark.parametrize("of_jax", [name for name in RUNS if name not in ("next step", "one body")])
def test_jax_gives_the_same_bits_on_two_and_four_ranks_and_after_a_resume(tmp_path, of_jax):
    pytest.importorskip("jax")
    import jax_running

    run = RUNS[of_jax]
    jobs = {"two": job(run, tmp_path, "two"), "cut": job(run, tmp_path, "cut", fails_at=5)}
    found = jax_running.train_all(2, jobs)
    jobs = {"one": job(run, tmp_path, "one"), "resumed": job(run, tmp_path, "unused", resume=str(tmp_path / "cut"))}
    found |= jax_running.train_all(1, jobs)
    found |= jax_running.train_all(1, {"four": job(run, tmp_path, "four")}, devices=4)
    trained = {name: (str(tmp_path / ("cut" if name == "resumed" else name)), found[name]) for name in found}
    check_same(trained, "one", "two")
    check_same(trained, "one", "four")
    check_same(trained, "one", "resumed")


def check_same(trained, one, other) -> None:
    (folder, outcomes), (other_folder, other_outcomes) = trained[one], trained[other]
    assert [o.error for o in (*outcomes, *other_outcomes)] == [""] * (len(outcomes) + len(other_outcomes))
    prints = {o.summary["params_fingerprint"] for o in (*outcomes, *other_outcomes)}
    assert len(prints) == 1, "parameters differ"
    assert timeless(folder) == timeless(other_folder)
    assert lines(folder, "evaluations.jsonl") == lines(other_folder, "evaluations.jsonl"), "evaluations differ"


@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_give_the_bits_of_one(trained, name):
    check_same(trained, (name, 1), (name, 2))
    assert all(outcome.moved for outcome in trained[name, 2][1]), "some parameters were not trained"


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_four_ranks_give_the_bits_of_one(trained, name):
    check_same(trained, (name, 1), (name, 4))


@pytest.mark.parametrize("name", NAMES)
def test_resumed_run_ends_as_if_never_stopped(trained, name):
    check_same(trained, (name, 1), (f"{name} resumed", 1))
    summary = json.loads((Path(trained[f"{name} resumed", 1][0]) / "summary.json").read_text())
    assert summary["resumed_from"] is not None
