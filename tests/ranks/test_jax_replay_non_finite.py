"""DQN, SAC and TD3 on JAX: a number that is not finite stops all ranks and is named, or is left out by all."""

from pathlib import Path

import pytest

pytest.importorskip("jax")

from jax_running import train_all
from non_finite_replay import MODES, check_equal, check_infinite_loss, check_skip, check_stop, jobs_of

pytestmark = pytest.mark.slow  # whole runs on several layouts; PPO's are quick ones

FAULTS = ("reward nan", "observation nan", "reward 1e30")
LAYOUTS = {"1 process": (1, 1), "2 devices": (1, 2), "2 processes": (2, 1)}


@pytest.fixture(scope="module", params=["dqn", "sac", "td3"])
def trained(request, tmp_path_factory):
    """Every fault in both modes on every layout."""
    found = {}
    for layout, (processes, devices) in LAYOUTS.items():
        jobs = jobs_of(request.param, FAULTS, tmp_path_factory.mktemp(layout.replace(" ", "")))
        outcomes = train_all(processes, jobs, devices)
        found |= {(name, layout): (outcomes[name], Path(jobs[name].folder)) for name in jobs}
    return found


@pytest.mark.parametrize("layout", ["2 devices", "2 processes"])
@pytest.mark.parametrize("name", [f"{fault} {mode}" for fault in FAULTS for mode in MODES])
def test_any_layout_does_the_same(trained, name, layout):
    check_equal(trained[name, "1 process"], trained[name, layout])


@pytest.mark.parametrize("fault", ["reward nan", "observation nan"])
def test_stop_names_rank_environment_and_step(trained, fault):
    check_stop(trained[f"{fault} stop", "2 processes"], fault)


@pytest.mark.parametrize("fault", FAULTS)
def test_skip_trains_to_the_end_with_finite_parameters(trained, fault):
    check_skip(trained[f"{fault} skip", "2 processes"], fault)


def test_infinite_loss_stops_all_ranks_and_names_its_transition(trained):
    check_infinite_loss(trained["reward 1e30 stop", "2 processes"])
