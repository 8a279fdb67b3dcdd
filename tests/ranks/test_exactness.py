"""1 == 2 == 4 ranks, bit for bit, and honestly so: each rank does its part of the work and no more."""

from itertools import pairwise
from pathlib import Path

import pytest
from running import ROBOTS, Job, Outcome, job, lines, slow_tests_selected, small, timeless, train_all

from lockstep.run import Run
from quick import others_slow

ADAPTIVE = {"learning_rate_schedule": "adaptive", "normalize_observation": True, "normalize_return": True}
STOP = {"evaluate_every": 128 * 5, "evaluate_greedy": False, "stop_return": 0.8, "stop_when_solved": True}
REACH = {
    "features": 8,
    "normalize_observation": True,
    "env.policy_keys": ("joint", "camera"),
    "env.critic_keys": ("target", "camera"),
}
RUNS: dict[str, Run] = {
    "discrete": small("CartPole-v1", num_shards=4),
    "other seed": small("CartPole-v1", num_shards=4, seed=1),
    "continuous": small("Pendulum-v1", num_shards=4, **ROBOTS),
    "toy": small("lockstep/Reach-v0", num_shards=4, max_grad_norm=0.1, **ADAPTIVE),
    "multi-discrete": small("lockstep/Match-v0", num_shards=4, target_kl=0.0005, learning_rate=1e-2),
    "early stop": small("lockstep/Corridor-v0", num_shards=4, total_steps=128 * 100, learning_rate=3e-3, **STOP),
    "symmetric": small("Pendulum-v1", num_shards=4, symmetry="rank_envs:mirrored", normalize_observation=True),
    "symmetric with a critic's observation": small(
        "grouped_envs:Hidden",
        num_shards=4,
        symmetry="rank_envs:mirrored_groups",
        normalize_observation=True,
        **{"env.policy_keys": ("position",), "env.critic_keys": ("speed", "position", "step")},
    ),
    "numbers for the critic beside images": small(
        f"{Path(__file__).parents[1] / 'unit/torch/envs/tensor_envs.py'}:Walk",
        num_shards=4,
        encoder="small",
        features=16,
        total_steps=8 * 128,
        **{"env.placement": "host", "env.kwargs.picture": True},
    ),
    "images among numbers": small("grouped_envs:Reach", num_shards=4, **REACH, total_steps=4 * 128, log_every=256),
    "mixed precision": small("Pendulum-v1", num_shards=4, precision="bfloat16", **ROBOTS),
    "uneven": small("CartPole-v1", num_shards=3, num_envs=12, total_steps=20 * 96, log_every=96 * 5),
    # Some shards play no episode of an evaluation, and nothing is logged before the end.
    "sparse": small("CartPole-v1", num_shards=5, num_envs=20, total_steps=5 * 160, evaluate_episodes=3, log_every=None),
}
QUICK = ("discrete", "other seed", "continuous")
SYMMETRIC = ("symmetric", "symmetric with a critic's observation")
IMAGES = ("numbers for the critic beside images", "images among numbers")
SLOW = ("toy", "multi-discrete", "early stop", "mixed precision", *IMAGES, *SYMMETRIC)
SAME = others_slow(["discrete", "continuous", *SLOW], *QUICK)
COUNTED = others_slow(["discrete", "continuous", "toy"], *QUICK)
WORLDS = (1, 2, 4)


def train_worlds(tmp_path, runs: dict[str, Run], worlds=WORLDS) -> dict[tuple[str, int], tuple[Job, list[Outcome]]]:
    found = {}
    for ranks in worlds:
        jobs = {n: job(run, tmp_path, f"{n}-{ranks}") for n, run in runs.items() if ranks <= (run.num_shards or ranks)}
        if ranks > 1:
            jobs.pop("other seed", None)
        if ranks == 2 and "discrete" in runs:
            jobs["gloo"] = job(runs["discrete"], tmp_path, "gloo", shared_memory=False)
        if ranks == 2 and "toy" in runs and "discrete" in runs:
            jobs["gloo continuous"] = job(runs["toy"], tmp_path, "gloo-continuous", shared_memory=False)
        told = train_all(ranks, jobs)
        found |= {(name, ranks): (jobs[name], told[name]) for name in jobs}
    return found


@pytest.fixture(scope="module")
def trained(request, tmp_path_factory):
    """Every run that the selected tests need, on every number of ranks: what each rank saw."""
    runs = RUNS if slow_tests_selected(request) else {name: RUNS[name] for name in QUICK}
    return train_worlds(tmp_path_factory.mktemp("runs"), runs)


def fingerprints(trained, name: str, worlds=WORLDS) -> list[str]:
    """Of every rank of every world."""
    found = []
    for ranks in worlds:
        _, outcomes = trained[name, ranks]
        assert [o.error for o in outcomes] == [""] * ranks
        found += [rank["params_fingerprint"] for o in outcomes for rank in o.summary["ranks"]]
        assert all(o.summary["params_fingerprint"] == found[-1] for o in outcomes)
    return found


@pytest.mark.parametrize("name", SAME)
def test_any_number_of_ranks_gives_the_same_bits(trained, name):
    assert len(set(fingerprints(trained, name))) == 1, "parameters depend on the number of ranks"


@pytest.mark.parametrize("name", SAME)
def test_any_number_of_ranks_writes_the_same_metrics(trained, name):
    logs = [timeless(trained[name, ranks][0].folder) for ranks in WORLDS]
    assert len(logs[0]) >= 2
    assert logs[0] == logs[1] == logs[2], "metrics depend on the number of ranks"
    played = [lines(trained[name, ranks][0].folder, "evaluations.jsonl") for ranks in WORLDS]
    assert played[0] == played[1] == played[2], "evaluations depend on the number of ranks"


@pytest.mark.slow
def test_shards_dealt_unevenly_give_the_same_bits(trained):
    assert len(set(fingerprints(trained, "uneven", (1, 2)))) == 1
    assert len(set(fingerprints(trained, "sparse"))) == 1
    assert len({o.summary["eval_return_mean"] for ranks in WORLDS for o in trained["sparse", ranks][1]}) == 1
    assert [o.counts["steps"] for o in trained["uneven", 2][1]] == [20 * 96 * 2 // 3, 20 * 96 // 3]


@pytest.mark.parametrize(
    ("name", "other"),
    others_slow([("discrete", "gloo"), ("toy", "gloo continuous")], ("discrete", "gloo"), several=True),
)
def test_messages_give_the_same_bits_as_shared_memory(trained, name, other):
    assert set(fingerprints(trained, other, (2,))) == set(fingerprints(trained, name, (2,)))


@pytest.mark.slow
def test_an_early_stop_came_early_and_everywhere_at_once(trained):
    for ranks in WORLDS:
        found = [o.summary for o in trained["early stop", ranks][1]]
        assert {s["status"] for s in found} == {"solved"}
        assert len({s["solved_at_step"] for s in found}) == 1
        assert all(s["env_steps"] == s["solved_at_step"] for s in found)
        assert 128 * 5 < found[0]["env_steps"] < 128 * 100, "the early stop proves nothing here"


@pytest.mark.slow
def test_a_stop_on_kl_left_some_epochs_out(trained):
    sent = [o.messages["average_gradients"] for ranks in (2, 4) for o in trained["multi-discrete", ranks][1]]
    assert len(set(sent)) == 1
    assert 20 * 2 <= sent[0] < 20 * 4, "target_kl was never exceeded; the test proves nothing"


@pytest.mark.parametrize("ranks", WORLDS)
@pytest.mark.parametrize("name", COUNTED)
def test_every_rank_does_its_part_of_the_work_and_no_more(trained, name, ranks):
    part = RUNS[name].total_steps // ranks
    epochs = RUNS[name].algorithm.num_epochs
    for outcome in trained[name, ranks][1]:
        assert dict(outcome.counts) == {"steps": part, "acted": part, "differentiated": epochs * part}


def test_parameters_moved_and_elsewhere_with_another_seed(trained):
    assert all(outcome.moved for _, outcomes in trained.values() for outcome in outcomes)
    assert fingerprints(trained, "discrete")[0] != fingerprints(trained, "other seed", (1,))[0]


def test_environments_are_seeded_by_their_global_number(trained):
    seeds = {ranks: [o.env_seeds for o in trained["discrete", ranks][1]] for ranks in WORLDS}
    one = seeds[1][0]
    assert len(set(one)) == 16
    assert all(b - a != 1 for a, b in pairwise(one)), "seeds in a row collide with environments that seed themselves so"
    for ranks in WORLDS:
        assert [s for rank in seeds[ranks] for s in rank] == one


def test_one_update_sends_one_message_and_one_per_gradient_step(trained):
    run = RUNS["discrete"]
    expected = {
        "moments": 20,
        "average_gradients": 20 * run.algorithm.num_epochs * run.algorithm.num_minibatches,
        "log": 4,
        "evaluate": 3,  # the third: whether the best policy could be written
        "check_equal": 4,  # every tenth update, before the last checkpoint, and at the end
        "summary": 2,
        "first_rollout": 2,
        "preflight": 2,
    }
    for name in ("discrete", "gloo"):
        for outcome in trained[name, 2][1]:
            # Objects need two messages: their sizes first.
            assert {key: outcome.messages[key] for key in expected} == expected
            assert set(outcome.messages) - set(expected) <= {
                "broadcast",
                "broadcast_object",
                "gather_object",
                "barrier",
                "close",
                "hosts",
                "checkpoint",  # as often as it takes until the disk has it
            }


@pytest.mark.slow
def test_compiled_updates_give_the_same_bits(tmp_path):
    changes = {"num_shards": 4, "compile": True, "startup_timeout_s": 400.0, "timeout_s": 200.0}
    runs = {"compiled": small("CartPole-v1", **changes), "toy": small("lockstep/Reach-v0", **changes, **ADAPTIVE)}
    trained = train_worlds(tmp_path, runs)
    for name in runs:
        assert len(set(fingerprints(trained, name))) == 1
