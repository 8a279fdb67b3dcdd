"""SAC and TD3: 1 == 2 == 4 ranks, bit for bit after 120 gradient steps, with one message per gradient step."""

import pytest
from running import job, lines, runs_of_selected_tests, slow_tests_selected, small_actor_critic, timeless, train_all

from lockstep.run import Run
from quick import others_slow

REDQ = {"num_critics": 3, "target_critics": 2, "policy_delay": 2}
DROQ = {"layer_norm": True, "dropout": 0.1, "target_critics": 2}
RUNS: dict[str, Run] = {
    "sac": small_actor_critic("sac", num_shards=4, **REDQ, **{k: DROQ[k] for k in ("layer_norm", "dropout")}),
    "td3": small_actor_critic("td3", num_shards=4),
    "plain sac": small_actor_critic("sac", num_shards=4, prioritized=False, n_step=1, alpha=0.2),
    "droq": small_actor_critic("sac", num_shards=4, max_grad_norm=1.0, **DROQ),
    "ddpg": small_actor_critic("td3", num_shards=4, num_critics=1, policy_delay=1, target_noise=0.0, prioritized=False),
    "other seed": small_actor_critic("sac", num_shards=4, seed=1),
}
NAMES = others_slow(["sac", "td3", "plain sac", "droq", "ddpg"], "sac", "td3")


@pytest.fixture(scope="module")
def trained(request, tmp_path_factory):
    """Every run that is asked for, on every number of ranks: its job, and the outcome of each rank."""
    folder, found = tmp_path_factory.mktemp("runs"), {}
    slow = slow_tests_selected(request)
    selected = runs_of_selected_tests(request, RUNS, ("sac", "other seed") if slow else ("sac",))
    for ranks in (1, 2, 4) if slow else (1, 2):
        jobs = {name: job(run, folder, f"{name}-{ranks}") for name, run in selected.items()}
        if ranks > 1:
            jobs.pop("other seed", None)
        if ranks == 2 and slow:
            jobs["gloo"] = job(RUNS["sac"], folder, "gloo", shared_memory=False)
        outcomes = train_all(ranks, jobs)
        found |= {(name, ranks): (jobs[name], outcomes[name]) for name in jobs}
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


def test_all_parameters_are_learned(trained):
    assert all(outcome.moved for _, outcomes in trained.values() for outcome in outcomes)


def test_gradient_step_sends_one_message_and_iteration_one_more(trained):
    for outcome in trained["sac", 2][1]:
        # 20 rollouts of 32 steps; 16 of them after the first 160 steps, each followed by 8 gradient steps.
        assert outcome.messages["statistics"] == 20
        assert outcome.messages["average_gradients"] == 16 * 8
        assert outcome.messages["max"] == 0


@pytest.mark.slow
def test_messages_give_the_same_bits_as_shared_memory(trained):
    assert fingerprints(trained, "gloo") == fingerprints(trained, "sac")


@pytest.mark.slow
def test_another_seed_gives_other_bits(trained):
    assert fingerprints(trained, "sac") != fingerprints(trained, "other seed")
