"""DQN: 1 == 2 == 4 ranks, bit for bit after 200 gradient steps, and honestly so: each rank learns from its part."""

import pytest
from running import job, lines, runs_of_selected_tests, slow_tests_selected, small_dqn, timeless, train_all

from lockstep.run import Run
from quick import others_slow

OWN = {"num_shards": 4, "dueling": True}
RUNS: dict[str, Run] = {
    "prioritized": small_dqn("CartPole-v1", **OWN),
    "other seed": small_dqn("CartPole-v1", **OWN, seed=1),
    "same step": small_dqn("lockstep/Corridor-v0", **OWN),
    "quantile": small_dqn("CartPole-v1", num_shards=4, value_distribution="quantile", num_quantiles=5),
    "noisy": small_dqn("CartPole-v1", num_shards=4, value_distribution="categorical", noisy=True, target_rate=0.02),
    "uniform": small_dqn("CartPole-v1", num_shards=4, prioritized=False, double=False, loss="mse", max_grad_norm=None),
    "uneven": small_dqn("CartPole-v1", num_shards=3, num_envs=12, batch_size=24, capacity=510),
}
WORLDS = (1, 2, 4)
NAMES = others_slow(["prioritized", "noisy", "uniform", "same step", "quantile"], "prioritized")
ON_FOUR = ("prioritized", "noisy")


@pytest.fixture(scope="module")
def trained(request, tmp_path_factory):
    """Every run that is asked for, on every number of ranks: what each rank saw."""
    folder, found = tmp_path_factory.mktemp("runs"), {}
    slow = ("uniform", "uneven") if slow_tests_selected(request) else ()
    selected = runs_of_selected_tests(request, RUNS, ("prioritized", "other seed", *slow))
    for ranks in WORLDS:
        jobs = {n: job(run, folder, f"{n}-{ranks}") for n, run in selected.items() if ranks < 4 or n in ON_FOUR}
        if ranks > 1:
            jobs.pop("other seed", None)
        if ranks == 2:
            jobs["gloo"] = job(RUNS["prioritized"], folder, "gloo", shared_memory=False)
        told = train_all(ranks, jobs)
        found |= {(name, ranks): (jobs[name], told[name]) for name in jobs}
    return found


def fingerprints(trained, name: str) -> set[str]:
    """Of every rank of every world."""
    found = []
    for ranks in [ranks for of, ranks in trained if of == name]:
        _, outcomes = trained[name, ranks]
        assert [o.error for o in outcomes] == [""] * ranks
        found += [rank["params_fingerprint"] for o in outcomes for rank in o.summary["ranks"]]
    return set(found)


@pytest.mark.parametrize("name", NAMES)
def test_any_number_of_ranks_gives_the_same_bits(trained, name):
    assert len(fingerprints(trained, name)) == 1, "parameters depend on the number of ranks"
    folders = [one.folder for (of, _), (one, _) in trained.items() if of == name]
    logs = [timeless(folder) for folder in folders]
    assert len(logs[0]) >= 2
    assert all(log == logs[0] for log in logs), "metrics depend on the number of ranks"
    played = [lines(folder, "evaluations.jsonl") for folder in folders]
    assert all(one == played[0] for one in played), "evaluations depend on the number of ranks"


@pytest.mark.slow
def test_shards_dealt_unevenly_give_the_same_bits(trained):
    assert len(fingerprints(trained, "uneven")) == 1


def test_messages_give_the_same_bits_as_shared_memory(trained):
    assert fingerprints(trained, "gloo") == fingerprints(trained, "prioritized")


def test_parameters_moved_and_elsewhere_with_another_seed(trained):
    assert all(outcome.moved for _, outcomes in trained.values() for outcome in outcomes)
    assert fingerprints(trained, "prioritized") != fingerprints(trained, "other seed")


@pytest.mark.slow
def test_uniform_sampling_gives_other_bits(trained):
    assert fingerprints(trained, "prioritized") != fingerprints(trained, "uniform")


@pytest.mark.parametrize("ranks", WORLDS)
def test_every_rank_does_its_part_of_the_work_and_no_more(trained, ranks):
    for outcome in trained["prioritized", ranks][1]:
        assert outcome.counts["steps"] == 960 // ranks
        assert outcome.counts["acted"] == 960 // ranks
        assert outcome.counts["differentiated"] == 208 * 32 // ranks


def test_a_gradient_step_sends_one_message_and_an_iteration_one_more(trained):
    for outcome in trained["prioritized", 2][1]:
        # 30 rollouts of 32 steps; 26 of them after the first 160 steps, each followed by 8 gradient steps.
        assert outcome.messages["statistics"] == 30
        assert outcome.messages["average_gradients"] == 26 * 8
        assert outcome.messages["max"] == 0
