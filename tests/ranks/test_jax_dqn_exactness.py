"""DQN in JAX: the same bits on 1, 2 and 4 devices of one process and on 1 and 2 processes, from vectors and pictures.

And honestly so: each device learns from its part.
"""

import pytest

pytest.importorskip("jax")

from jax_running import train_all
from running import job, lines, small_dqn, timeless

slow = pytest.mark.slow  # many runs on several layouts

OWN = {"num_shards": 4, "dueling": True}
SHORT = {"total_steps": 480, "log_every": 160, "learning_starts": 96, "capacity": 256, "epsilon_steps": 320}
PICTURES = {"num_shards": 4, "features": 16, "encoder": "nature", "evaluate_every": 160, "evaluate_episodes": 5}
RUNS = {
    "prioritized": small_dqn("CartPole-v1", **OWN),
    "other seed": small_dqn("CartPole-v1", **OWN, seed=1),
    "noisy": small_dqn("CartPole-v1", num_shards=4, value_distribution="categorical", noisy=True, target_rate=0.02),
    "quantile": small_dqn("CartPole-v1", num_shards=4, value_distribution="quantile", num_quantiles=5),
    "uniform": small_dqn("CartPole-v1", num_shards=4, prioritized=False, double=False, loss="mse", max_grad_norm=None),
    # 24 rows of a minibatch: a division by them is not the product with their inverse.
    "uneven": small_dqn("CartPole-v1", num_shards=3, num_envs=12, batch_size=24, capacity=510),
    "pictures": small_dqn("image_envs:Dot", **{**SHORT, **PICTURES}),
}
LAYOUTS = {"1 device": (1, 1), "2 devices": (1, 2), "4 devices": (1, 4), "2 processes": (2, 1)}
ALIKE = ("prioritized", "noisy", "quantile", "uniform", "pictures")
ON_PROCESSES = ("prioritized", "noisy", "uniform", "pictures")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Every run on every layout: what each process saw."""
    folder, found = tmp_path_factory.mktemp("runs"), {}
    for layout, (processes, devices) in LAYOUTS.items():
        names = [n for n in RUNS if (processes == 1 or n in ON_PROCESSES) and (n != "uneven" or devices < 4)]
        jobs = {name: job(RUNS[name], folder, f"{name} {layout}") for name in names}
        told = train_all(processes, jobs, devices)
        found |= {(name, layout): (jobs[name], told[name]) for name in jobs}
    return found


@pytest.fixture(scope="module")
def one_device(tmp_path_factory):
    """The fingerprints of the quick runs."""
    return short_runs(tmp_path_factory.mktemp("one"), 1, 1)


def short_runs(folder, processes, devices, free_memory=None):
    """The fingerprints of a run whose gradient steps are single calls, and of one whose steps are one call."""
    jobs = {name: job(RUNS[name], folder, name) for name in ("prioritized", "uniform")}
    told = train_all(processes, jobs, devices, free_memory)
    for name, seen in told.items():
        assert [outcome.error for outcome in seen] == [""] * processes, name
        assert all(outcome.moved for outcome in seen), f"{name}: nothing was learned"
    return {name: {r["params_fingerprint"] for o in seen for r in o.summary["ranks"]} for name, seen in told.items()}


def fingerprints(trained, name):
    """Of every rank of every layout."""
    found = []
    for layout, (processes, _) in LAYOUTS.items():
        if (name, layout) in trained:
            _, outcomes = trained[name, layout]
            assert [o.error for o in outcomes] == [""] * processes, (name, layout)
            found += [rank["params_fingerprint"] for o in outcomes for rank in o.summary["ranks"]]
    return set(found)


@pytest.mark.parametrize("processes_and_devices", [pytest.param((1, 2), marks=slow), (2, 1)])
def test_a_short_run_has_the_bits_of_one_device(tmp_path, one_device, processes_and_devices):
    assert all(len(found) == 1 for found in one_device.values())
    assert short_runs(tmp_path, *processes_and_devices) == one_device


@slow
@pytest.mark.parametrize("processes_and_devices", [(1, 2), (2, 1)])
def test_observations_on_devices_give_the_bits_of_the_host(tmp_path, one_device, processes_and_devices):
    assert short_runs(tmp_path, *processes_and_devices, free_memory=1 << 30) == one_device


@slow
@pytest.mark.parametrize("name", ALIKE)
def test_any_layout_gives_the_same_bits(trained, name):
    assert len(fingerprints(trained, name)) == 1, "parameters depend on the layout"
    folders = [one.folder for (of, _), (one, _) in trained.items() if of == name]
    assert len(folders) >= 3
    logs = [timeless(folder) for folder in folders]
    assert len(logs[0]) >= 2
    assert all(log == logs[0] for log in logs), "metrics depend on the layout"
    played = [lines(folder, "evaluations.jsonl") for folder in folders]
    assert all(one == played[0] for one in played), "evaluations depend on the layout"


@slow
def test_shards_dealt_unevenly_give_the_same_bits(trained):
    assert len(fingerprints(trained, "uneven")) == 1


@slow
def test_parameters_moved_and_elsewhere_with_another_seed(trained):
    assert all(outcome.moved for _, outcomes in trained.values() for outcome in outcomes)
    assert fingerprints(trained, "prioritized") != fingerprints(trained, "other seed")
    assert fingerprints(trained, "prioritized") != fingerprints(trained, "uniform")


@slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_process_does_its_part_of_the_work_and_no_more(trained, layout):
    processes, _ = LAYOUTS[layout]
    for outcome in trained["prioritized", layout][1]:
        assert outcome.counts["steps"] == 960 // processes
        assert outcome.counts["acted"] == 960 // processes
        assert outcome.counts["learned"] == 208 * 32 // processes


@slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradient_steps_are_compiled_once(trained, layout):
    """With priorities each is a call; without, the eight that are due after each rollout are one."""
    for name in ON_PROCESSES:
        for outcome in trained[name, layout][1]:
            compiled = {key: outcome.counts[f"compiled {key}"] for key in ("step", "steps")}
            assert compiled == {"step": name != "uniform", "steps": name == "uniform"}, name


@slow
def test_a_gradient_step_sends_one_message_and_an_iteration_one_more(trained):
    for outcome in trained["prioritized", "2 processes"][1]:
        # 30 rollouts of 32 steps; 26 of them after the first 160 steps, each followed by 8 gradient steps.
        assert outcome.messages["statistics"] == 30
        assert outcome.messages["average_gradients"] == 26 * 8 + 1  # one is for show, before the clocks start
    for outcome in trained["uniform", "2 processes"][1]:
        assert outcome.messages["average_gradients"] == (26 + 1) * 8
