"""SAC and TD3: a number that is not finite, on one rank, stops all ranks and is named, or is left out by all.

A transition with such a number must never reach the replay: it would be drawn again and again.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from bad_numbers import ENVS, SHARDS
from running import job, lines, small_actor_critic, timeless, train_all
from safetensors.numpy import load_file

from lockstep.record.checkpoint import find

pytestmark = pytest.mark.slow  # whole runs; `test_dqn_non_finite.py` has the quick ones of the same replay

AT = 30  # step of the environment, and iteration of the run
FAULTS = ("reward nan", "observation nan", "reward 1e30")
MODES = ("stop", "skip")
ALGOS = ("sac", "td3")
NAMES = [f"{fault} {mode}" for fault in FAULTS for mode in MODES]


def broken(algo, fault, mode):
    return small_actor_critic(
        algo,
        "bad_numbers:BrokenForce",
        num_shards=SHARDS,
        num_envs=ENVS,
        num_steps=1,
        log_every=ENVS,
        non_finite=mode,
        **{"env.kwargs": {"fault": fault, "at": AT}},
    )


@pytest.fixture(scope="module", params=ALGOS)
def trained(request, tmp_path_factory):
    """Every fault in both modes on 1 and 2 ranks: the outcome of each rank, and the run directory."""
    found = {}
    for ranks in (1, 2):
        folder = tmp_path_factory.mktemp(f"ranks{ranks}")
        jobs = {
            f"{fault} {mode}": job(broken(request.param, fault, mode), folder, f"{fault} {mode}")
            for fault in FAULTS
            for mode in MODES
        }
        outcomes = train_all(ranks, jobs)
        found |= {(name, ranks): (outcomes[name], Path(jobs[name].folder)) for name in jobs}
    return found


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


@pytest.mark.parametrize("name", NAMES)
def test_any_number_of_ranks_does_the_same(trained, name):
    (alone,), folder = trained[name, 1]
    outcomes, other = trained[name, 2]
    for outcome in outcomes:
        assert outcome.error.replace("rank 1", "rank 0") == alone.error
    assert timeless(str(other)) == timeless(str(folder)), "metrics depend on the number of ranks"
    if not alone.error:
        assert summary(folder)["params_fingerprint"] == summary(other)["params_fingerprint"]


@pytest.mark.parametrize("fault", ["reward nan", "observation nan"])
def test_stop_names_rank_environment_and_step(trained, fault):
    outcomes, folder = trained[f"{fault} stop", 2]
    kind = fault.split()[0]
    for outcome in outcomes:
        words = (f"environment 13 gave a{'n' * (kind == 'observation')} {kind}", f"update {AT}", "rank 1", "shard 1")
        for word in (*words, "non_finite=skip"):
            assert word in outcome.error, outcome.error
    assert summary(folder)["status"] == "failed"
    saved = load_file(folder / "non_finite/shard_1.safetensors")
    assert not np.isfinite(saved[f"rollout.{kind}"][:, 13 - ENVS // SHARDS]).all()


@pytest.mark.parametrize("fault", FAULTS)
def test_skip_trains_to_the_end_with_finite_parameters(trained, fault):
    outcomes, folder = trained[f"{fault} skip", 2]
    assert [outcome.error for outcome in outcomes] == ["", ""]
    assert summary(folder)["status"] == "finished"
    assert all(outcome.moved for outcome in outcomes)
    saved = load_file(find(folder)[-1] / "learner.safetensors")
    assert [name for name, value in saved.items() if not np.isfinite(value).all()] == []
    logged = lines(str(folder))
    skipped = [line.get("optim/skipped", 0.0) + line["replay/skipped"] for line in logged]
    assert not any(skipped[: AT - 1]), "something was left out before the fault"
    assert any(skipped[AT - 1 :]), "nothing was left out"


def test_infinite_loss_stops_all_ranks_and_names_its_transition(trained):
    outcomes, folder = trained["reward 1e30 stop", 2]
    for outcome in outcomes:
        for word in ("from the replay is not finite", "rank 1, shard 1", "non_finite/shard_1", "non_finite=skip"):
            assert word in outcome.error, outcome.error
    saved = load_file(folder / "non_finite/shard_1.safetensors")
    assert any(np.abs(column).max() > 1e29 for column in saved.values())
