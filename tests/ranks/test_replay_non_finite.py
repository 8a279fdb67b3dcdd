"""DQN, SAC and TD3: a number that is not finite, on one rank, stops all ranks and is named, or is left out by all.

A transition with such a number must never reach the replay buffer: it would be drawn again and again.
"""

from pathlib import Path

import pytest
from non_finite_replay import MODES, broken, check_equal, check_infinite_loss, check_skip, check_stop, jobs_of
from running import job, slow_tests_selected, train_all

from quick import others_slow

FAULTS = ("reward nan", "reward -inf", "observation nan", "reward 1e30")
QUICK = ("reward nan",)
NAMES = [f"{fault} {mode}" for fault in FAULTS for mode in MODES]
QUICK_NAMES = [name for name in NAMES if name.rpartition(" ")[0] in QUICK]


@pytest.fixture(scope="module", params=others_slow(["dqn", "sac", "td3"], "dqn"))
def trained(request, tmp_path_factory):
    """Every fault that the selected tests need, in both modes on 1 and 2 ranks."""
    found = {}
    faults = FAULTS if slow_tests_selected(request) else QUICK
    for ranks in (1, 2):
        folder = tmp_path_factory.mktemp(f"ranks{ranks}")
        jobs = jobs_of(request.param, faults, folder)
        jobs["healthy"] = job(broken(request.param, "", "skip"), folder, "healthy")
        outcomes = train_all(ranks, jobs)
        found |= {(name, ranks): (outcomes[name], Path(jobs[name].folder)) for name in jobs}
    return found


@pytest.mark.parametrize("name", others_slow([*NAMES, "healthy"], *QUICK_NAMES, "healthy"))
def test_any_number_of_ranks_does_the_same(trained, name):
    check_equal(trained[name, 1], trained[name, 2])


@pytest.mark.parametrize("fault", others_slow(["reward nan", "reward -inf", "observation nan"], "reward nan"))
def test_stop_names_rank_environment_and_step(trained, fault):
    check_stop(trained[f"{fault} stop", 2], fault)


@pytest.mark.parametrize("fault", others_slow(FAULTS, *QUICK))
def test_skip_trains_to_the_end_with_finite_parameters(trained, fault):
    check_skip(trained[f"{fault} skip", 2], fault)


@pytest.mark.slow
def test_infinite_loss_stops_all_ranks_and_names_its_transition(trained):
    check_infinite_loss(trained["reward 1e30 stop", 2])
