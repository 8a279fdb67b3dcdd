"""SAC and TD3: a number that is not finite, on one rank, stops all ranks and is named, or is left out by all."""

from pathlib import Path

import pytest
from non_finite_replay import MODES, check_equal, check_infinite_loss, check_skip, check_stop, jobs_of
from running import train_all

pytestmark = pytest.mark.slow  # whole runs; `test_dqn_non_finite.py` has the quick ones of the same replay buffers

FAULTS = ("reward nan", "observation nan", "reward 1e30")


@pytest.fixture(scope="module", params=["sac", "td3"])
def trained(request, tmp_path_factory):
    """Every fault in both modes on 1 and 2 ranks."""
    found = {}
    for ranks in (1, 2):
        jobs = jobs_of(request.param, FAULTS, tmp_path_factory.mktemp(f"ranks{ranks}"))
        outcomes = train_all(ranks, jobs)
        found |= {(name, ranks): (outcomes[name], Path(jobs[name].folder)) for name in jobs}
    return found


@pytest.mark.parametrize("name", [f"{fault} {mode}" for fault in FAULTS for mode in MODES])
def test_any_number_of_ranks_does_the_same(trained, name):
    check_equal(trained[name, 1], trained[name, 2])


@pytest.mark.parametrize("fault", ["reward nan", "observation nan"])
def test_stop_names_rank_environment_and_step(trained, fault):
    check_stop(trained[f"{fault} stop", 2], fault)


@pytest.mark.parametrize("fault", FAULTS)
def test_skip_trains_to_the_end_with_finite_parameters(trained, fault):
    check_skip(trained[f"{fault} skip", 2], fault)


def test_infinite_loss_stops_all_ranks_and_names_its_transition(trained):
    check_infinite_loss(trained["reward 1e30 stop", 2])
