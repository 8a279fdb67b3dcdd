"""Learning from pictures, pinned: the same bits on 1, 2 and 4 ranks, for DQN from a replay of frames and for PPO."""

import pytest
from running import job, lines, runs_of_selected_tests, small, small_dqn, timeless, train_all

WORLDS = (1, 2, 4)
PICTURES = {"num_shards": 4, "features": 16}
SHORT = {"total_steps": 480, "log_every": 160, "learning_starts": 96, "capacity": 256, "epsilon_steps": 320}
RAINBOW = {
    "value_distribution": "categorical",
    "num_atoms": 11,
    "v_min": -1,
    "v_max": 1,
    "noisy": True,
    "dueling": True,
}
# Gradients so large that a backward pass adds them where they lie, and that ranks of a host sum a slice each.
LARGE = {"encoder": "mlp", "hidden": (1024,), "num_shards": 4, "total_steps": 192, "log_every": 96}
PPO = {"total_steps": 4 * 128, "log_every": 256, "num_epochs": 1}
EVALUATED = {"evaluate_every": 160, "evaluate_episodes": 5}
RUNS = {
    "dqn": small_dqn("image_envs:Dot", encoder="nature", **PICTURES, **SHORT, **EVALUATED),
    "rainbow": small_dqn("image_envs:Dot", encoder="small", **PICTURES, **SHORT, **RAINBOW),
    "large": small_dqn("image_envs:Dot", **{**SHORT, **LARGE}),
    "ppo": small("image_envs:Dot", encoder="nature", **PICTURES, **PPO),
}

# Quick: the same of vectors (test_exactness.py, test_dqn_exactness.py), and steps on images (tests/parity, tests/unit).
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(request, tmp_path_factory):
    """Every run that is asked for, on every number of ranks: where it wrote, and what each rank saw."""
    folder, found = tmp_path_factory.mktemp("images"), {}
    selected = runs_of_selected_tests(request, RUNS)
    for ranks in WORLDS:
        jobs = {name: job(run, folder, f"{name}-{ranks}") for name, run in selected.items()}
        told = train_all(ranks, jobs)
        found |= {(name, ranks): (jobs[name].folder, told[name]) for name in jobs}
    return found


@pytest.mark.parametrize("name", RUNS)
def test_any_number_of_ranks_gives_the_same_bits(trained, name):
    found = []
    for ranks in WORLDS:
        _, outcomes = trained[name, ranks]
        assert [one.error for one in outcomes] == [""] * ranks
        assert all(one.moved for one in outcomes), "a parameter never moved"
        found += [rank["params_fingerprint"] for one in outcomes for rank in one.summary["ranks"]]
    assert len(found) == sum(ranks * ranks for ranks in WORLDS)
    assert len(set(found)) == 1, "parameters depend on the number of ranks"
    logs = [timeless(trained[name, ranks][0]) for ranks in WORLDS]
    assert len(logs[0]) >= 2
    assert logs[0] == logs[1] == logs[2], "metrics depend on the number of ranks"
    played = [lines(trained[name, ranks][0], "evaluations.jsonl") for ranks in WORLDS]
    assert played[0] == played[1] == played[2], "evaluations depend on the number of ranks"


@pytest.mark.parametrize("name", ["dqn", "ppo"])
def test_every_rank_does_its_part_of_the_work_and_no_more(trained, name):
    run = RUNS[name]
    learned = run.total_steps
    if name == "dqn":
        c = run.algorithm  # the rollout that reaches `learning_starts` is learned from
        learned = run.total_steps - c.learning_starts + run.num_envs * c.num_steps
        learned = int(learned * c.updates_per_step) * c.batch_size
    for ranks in WORLDS:
        for one in trained[name, ranks][1]:
            assert one.counts["steps"] == run.total_steps // ranks
            assert one.counts["acted"] == run.total_steps // ranks
            assert one.counts["differentiated"] == learned // ranks
