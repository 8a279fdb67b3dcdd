"""Learning from logged data: 1 == 2 == 4 ranks, bit for bit after 200 gradient steps, each rank from its part.

A run that was cut short and resumed in the middle of an epoch, on another number of ranks, ends as if never stopped.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from offline_runs import BATCH, EPOCHS, ROWS, OfflineJob, small_offline, train_offline
from running import lines, timeless

WORLDS = (1, 2, 4)
QUICK_WORLDS = (1, 2)
BATCHES = -(-ROWS // BATCH)
RUNS = {
    "dqn": {"dueling": True, "max_grad_norm": 1.0},
    "other seed": {"dueling": True, "max_grad_norm": 1.0, "seed": 1},
    "n-step": {"n_step": 3, "policy": "softmax", "cql_alpha": 0.3, "learning_rate_schedule": "linear"},
    "sarsa": {"maxq": False, "optimizer": "sgd", "l2_decay": 0.01, "learning_rate": 0.01},
    "bcq": {"bcq_threshold": 0.3, "learning_rate_schedule": "exponential", "learning_rate_decay": 0.9},
    "cloning": {"algo": "bc", "label_smoothing": 0.1},
    "cloning candidates": {"algo": "bc", "parametric": True},
    "candidates": {"algo": "parametric_dqn", "dueling": True, "cql_alpha": 0.3, "max_grad_norm": 1.0},
    "candidates sarsa": {"algo": "parametric_dqn", "maxq": False, "n_step": 3, "policy": "softmax", "loss": "huber"},
    "uneven": {"num_shards": 3, "batch_size": 33},
    "iql": {"algo": "iql", "policy": "sampled", "epochs": 2, "log_every": 100},
    "td3_bc": {"algo": "td3_bc", "learning_rate_schedule": "linear", "epochs": 2, "log_every": 100},
    "cql": {"algo": "cql", "num_sampled_actions": 2, "cql_gap": 1.0, "epochs": 2, "log_every": 100},
}
CONTINUOUS = ("iql", "td3_bc", "cql")
QUICK = ("dqn", "other seed", "iql")
"""Those of `make test`; `make test-slow` has the others."""
ON_FOUR = ("dqn", "n-step", "candidates", "candidates sarsa", "cloning candidates", *CONTINUOUS)


def run_of(folder, name, **changes):
    path = folder / ("continuous" if name in CONTINUOUS else "candidates" if "candidates" in name else "named")
    return small_offline(path, **{"num_shards": 4, **RUNS[name], **changes})


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Some runs on 1 and 2 ranks: what each rank saw."""
    return trained_on_all(tmp_path_factory.mktemp("runs"), QUICK, QUICK_WORLDS)


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """All runs on every number of ranks."""
    return trained_on_all(tmp_path_factory.mktemp("others"), RUNS, WORLDS)


def trained_on_all(folder, wanted, worlds):
    found = {}
    for ranks in worlds:
        names = [name for name in wanted if (ranks < 4 or name in ON_FOUR) and (ranks == 1 or name != "other seed")]
        jobs = {name: OfflineJob(run_of(folder, name), str(folder / f"{name}-{ranks}")) for name in names}
        if not jobs:
            continue
        told = train_offline(ranks, jobs)
        found |= {(name, ranks): (jobs[name], told[name]) for name in jobs}
    return found


def fingerprints(trained, name):
    """Of every rank of every world."""
    found = []
    for ranks in [ranks for of, ranks in trained if of == name]:
        _, outcomes = trained[name, ranks]
        assert [o.error for o in outcomes] == [""] * ranks
        found += [rank["params_fingerprint"] for o in outcomes for rank in o.summary["ranks"]]
    return set(found)


@pytest.mark.parametrize("name", [name for name in QUICK if name != "other seed"])
def test_any_number_of_ranks_gives_the_same_bits(trained, name):
    same_bits(trained, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_all_runs_have_the_same_bits_on_1_2_and_4_ranks(others, name):
    same_bits(others, name)


def same_bits(trained, name):
    assert len(fingerprints(trained, name)) == 1, "parameters depend on the number of ranks"
    logs = [timeless(job.folder) for (of, _), (job, _) in trained.items() if of == name]
    assert len(logs[0]) >= 5
    assert all(log == logs[0] for log in logs), "metrics depend on the number of ranks"


def test_parameters_moved_and_elsewhere_with_another_seed(trained):
    assert all(outcome.moved for _, outcomes in trained.values() for outcome in outcomes)
    assert fingerprints(trained, "dqn") != fingerprints(trained, "other seed")


@pytest.mark.parametrize("ranks", QUICK_WORLDS)
def test_every_rank_learns_from_its_part_and_together_from_every_row_once_an_epoch(trained, ranks):
    outcomes = trained["dqn", ranks][1]
    for outcome in outcomes:
        assert len(outcome.learned) == EPOCHS * BATCHES
        assert len(outcome.learned[0]) == BATCH // ranks
    for epoch in (0, EPOCHS - 1):
        steps = range(epoch * BATCHES, (epoch + 1) * BATCHES)
        rows = np.concatenate([outcome.learned[step] for outcome in outcomes for step in steps])
        assert np.array_equal(np.sort(rows), np.arange(ROWS))


def test_the_same_global_batches_on_any_number_of_ranks(trained):
    for step in (0, 7, BATCHES - 1, EPOCHS * BATCHES - 1):
        batches = [
            np.sort(np.concatenate([outcome.learned[step] for outcome in trained["dqn", ranks][1]]))
            for ranks in QUICK_WORLDS
        ]
        assert all(np.array_equal(batch, batches[0]) for batch in batches)


@pytest.mark.parametrize("name", ["dqn", "iql"])
def test_a_gradient_step_sends_one_message(trained, name):
    one_message(trained, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["candidates", "td3_bc", "cql"])
def test_gradient_steps_of_other_algorithms_send_one_message(others, name):
    one_message(others, name)


def one_message(trained, name):
    for outcome in trained[name, 2][1]:
        steps = RUNS[name].get("epochs", EPOCHS) * BATCHES
        of_policy = steps // 2 if name == "td3_bc" else 0  # its step needs the critics after theirs
        assert outcome.messages["average_gradients"] == steps + of_policy
        many_are = steps / 5 if steps > 100 else 0.9 * steps  # each checkpoint and line of metrics takes some, too
        many = {tag: count for tag, count in outcome.messages.items() if count >= many_are}
        assert many.keys() == {"average_gradients"}, f"{name}: more messages than one for a step: {many}"


@pytest.fixture(
    scope="module",
    params=[
        ("dqn",),
        pytest.param(
            ("td3_bc", "iql", "cql", "candidates", "n-step", "candidates sarsa", "cloning", "cloning candidates"),
            marks=pytest.mark.slow,
        ),
    ],
    ids=" and ".join,
)
def cut(request, tmp_path_factory):
    """Of some runs one that never stopped and one that raised in the middle of its eighth epoch, both on 2 ranks."""
    folder, jobs = tmp_path_factory.mktemp("resume"), {}
    for name in request.param:
        epochs = EPOCHS // 2 if name in CONTINUOUS else EPOCHS
        run = run_of(folder, name, checkpoint_every=350, log_every=200, epochs=epochs)
        jobs[name, "whole"] = OfflineJob(run, str(folder / f"{name}-whole"))
        jobs[name, "cut"] = OfflineJob(run, str(folder / f"{name}-cut"), fails_at=74)
    told = train_offline(2, jobs)
    for (name, how), outcomes in told.items():
        expected = "the test ends this run" if how == "cut" else ""
        assert all((expected in one.error) if expected else not one.error for one in outcomes), (
            name,
            outcomes[0].error,
        )
    return {name: (jobs[name, "whole"], jobs[name, "cut"]) for name in request.param}


@pytest.mark.parametrize("ranks", [1, pytest.param(3, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)])
def test_resumed_in_the_middle_of_an_epoch_it_ends_as_if_never_stopped(cut, ranks, tmp_path):
    jobs = {}
    for name, (_, broken) in cut.items():
        copy = shutil.copytree(broken.folder, tmp_path / name)
        for kept in (copy / "checkpoints").glob("step_*"):  # which there are depends on the disk
            if int(kept.name.removeprefix("step_")) % ROWS == 0:
                shutil.rmtree(kept)
        jobs[name] = OfflineJob(broken.run, "unused", resume=str(copy))
    told = train_offline(ranks, jobs)
    for name, (whole, _) in cut.items():
        expected = json.loads((Path(whole.folder) / "summary.json").read_text())
        outcome = told[name][0]
        assert outcome.error == "", name
        begun = int(outcome.summary["resumed_from"].rpartition("_")[2])
        assert begun % ROWS, "resumed between two epochs; nothing is proved"
        assert len(outcome.learned) < whole.run.epochs * BATCHES
        assert outcome.summary["params_fingerprint"] == expected["params_fingerprint"], f"{name}: other parameters"
        for key in ("env_steps", "updates", "status"):
            assert outcome.summary[key] == expected[key], (name, key)
        assert timeless(jobs[name].resume) == timeless(whole.folder), f"{name}: other metrics"
        steps = [line["step"] for line in lines(jobs[name].resume)]
        assert steps[-1] == ROWS * whole.run.epochs
