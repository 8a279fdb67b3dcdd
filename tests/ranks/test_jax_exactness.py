"""PPO in JAX: the same bits on 1, 2 and 4 devices of one process and on 2 processes, and honestly so."""

from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("jax")

from jax_running import train_all
from running import ROBOTS, job, lines, runs_of_selected_tests, slow_tests_selected, small, timeless

from quick import others_slow

SHORT = {"total_steps": 8 * 128, "log_every": 2 * 128}
PICTURES = {"features": 16, "encoder": "nature", "num_epochs": 1, "total_steps": 4 * 128, "log_every": 128}
# In live buffers of torch, with truncation and an observation of the critic's own.
WALK = f"{Path(__file__).parents[1] / 'unit/torch/envs/tensor_envs.py'}:Walk"
RUNS = {
    "discrete": small("CartPole-v1", num_shards=4),
    "other seed": small("CartPole-v1", num_shards=4, seed=1),
    "continuous": small("Pendulum-v1", num_shards=4, max_grad_norm=0.1, **ROBOTS, **SHORT),
    "mixed precision": small("Pendulum-v1", num_shards=4, precision="bfloat16", **ROBOTS, **SHORT),
    "multi-discrete": small("lockstep/Match-v0", num_shards=4, target_kl=0.0005, learning_rate=1e-2, **SHORT),
    "pictures": small("image_envs:Dot", num_shards=4, evaluate_every=256, evaluate_episodes=5, **PICTURES),
    "images among numbers": small(
        "grouped_envs:Reach",
        num_shards=4,
        features=8,
        normalize_observation=True,
        total_steps=4 * 128,
        log_every=128,
        **{"env.policy_keys": ("joint", "camera"), "env.critic_keys": ("target", "camera")},
    ),
    "torch environments": small(WALK, num_shards=4, normalize_observation=True, **SHORT),
    "torch pictures": small(WALK, num_shards=4, **PICTURES | {"encoder": "small", "env.kwargs.picture": True}),
    "through the host": small(WALK, num_shards=4, normalize_observation=True, **{"env.placement": "host"}, **SHORT),
    # 96 rows of a rollout: a division by those of a minibatch is not the product with their inverse.
    "uneven": small("CartPole-v1", num_shards=3, num_envs=12, total_steps=8 * 96, log_every=96 * 2),
}
LAYOUTS = {"1 device": (1, 1), "2 devices": (1, 2), "4 devices": (1, 4), "2 processes": (2, 1)}
EACH = ("1 device", "4 devices", "2 processes")
QUICK_LAYOUTS = ("1 device", "2 processes")
ON = {
    "discrete": tuple(LAYOUTS),
    "other seed": ("1 device",),
    "through the host": ("1 device",),
    "uneven": ("1 device", "2 devices", "2 processes"),
}
WITH_TORCH = ["torch environments", "torch pictures", "through the host"] if find_spec("torch") else []
MORE = ["continuous", "mixed precision", "pictures", "images among numbers", *WITH_TORCH[:2]]
ALIKE = others_slow(["discrete", *MORE], "discrete")
# A minute to compile. Quick tests of what they are about: stop_on_kl of the seams, uneven sums of the collectives.
SLOW = ("multi-discrete", "uneven")


@pytest.fixture(scope="module")
def trained(request, tmp_path_factory):
    """Every run that is asked for, on every layout: what each process saw."""
    everything = slow_tests_selected(request)
    always = ("discrete", "other seed", *(("continuous", *WITH_TORCH) if everything else ()))
    selected = runs_of_selected_tests(request, RUNS, always)
    layouts = LAYOUTS if everything else QUICK_LAYOUTS
    return run_all(tmp_path_factory.mktemp("runs"), [name for name in selected if name not in SLOW], layouts)


@pytest.fixture(scope="module")
def trained_slowly(tmp_path_factory):
    """Every other run on every layout."""
    return run_all(tmp_path_factory.mktemp("runs"), SLOW)


def run_all(folder, selected, layouts=LAYOUTS):
    found = {}
    for layout in layouts:
        processes, devices = LAYOUTS[layout]
        names = [name for name in selected if layout in ON.get(name, EACH)]
        jobs = {name: job(RUNS[name], folder, f"{name} {layout}") for name in names}
        told = train_all(processes, jobs, devices)
        found |= {(name, layout): (jobs[name], told[name]) for name in jobs}
    return found


def fingerprints(trained, name):
    """Of every rank of every layout."""
    found = []
    for layout, (processes, devices) in LAYOUTS.items():
        if (name, layout) in trained:
            _, outcomes = trained[name, layout]
            assert [o.error for o in outcomes] == [""] * processes, (name, layout)
            ranks = [rank["params_fingerprint"] for o in outcomes for rank in o.summary["ranks"]]
            assert len(ranks) >= processes * devices, (name, layout)
            found += ranks
    return set(found)


@pytest.mark.parametrize("name", ALIKE)
def test_any_layout_gives_the_same_bits(trained, name):
    check_alike(trained, name)


@pytest.mark.slow
def test_any_layout_stops_early_at_the_same_step(trained_slowly):
    check_alike(trained_slowly, "multi-discrete")
    check_compiled_once(trained_slowly, "multi-discrete")
    kls = [line["policy/kl"] for line in lines(trained_slowly["multi-discrete", "1 device"][0].folder)]
    assert max(kls) > 0.0005, "no epoch was left out"


def check_alike(trained, name):
    assert len(fingerprints(trained, name)) == 1, "parameters depend on the layout"
    folders = [one.folder for (of, _), (one, _) in trained.items() if of == name]
    assert len(folders) >= len(QUICK_LAYOUTS)
    logs = [timeless(folder) for folder in folders]
    assert len(logs[0]) >= 2
    assert all(log == logs[0] for log in logs), "metrics depend on the layout"
    played = [lines(folder, "evaluations.jsonl") for folder in folders]
    assert all(one == played[0] for one in played), "evaluations depend on the layout"


@pytest.mark.slow
@pytest.mark.skipif(not WITH_TORCH, reason="needs torch")
def test_torch_environments_give_the_bits_of_those_through_the_host(trained):
    assert fingerprints(trained, "torch environments") == fingerprints(trained, "through the host")


@pytest.mark.slow
def test_shards_dealt_unevenly_give_the_same_bits(trained_slowly):
    assert len(fingerprints(trained_slowly, "uneven")) == 1
    assert all(outcome.moved for _, outcomes in trained_slowly.values() for outcome in outcomes)


def test_parameters_moved_and_elsewhere_with_another_seed(trained):
    assert all(outcome.moved for _, outcomes in trained.values() for outcome in outcomes)
    assert fingerprints(trained, "discrete") != fingerprints(trained, "other seed")


@pytest.mark.slow
def test_the_continuous_run_adapts_its_rate(trained):
    rates = {line["optim/learning_rate"] for line in lines(trained["continuous", "1 device"][0].folder)}
    assert len(rates) > 1, "the rate was not adapted"


@pytest.mark.parametrize("layout", others_slow(LAYOUTS, *QUICK_LAYOUTS))
def test_every_process_does_its_part_of_the_work_and_no_more(trained, layout):
    processes, _ = LAYOUTS[layout]
    for outcome in trained["discrete", layout][1]:
        assert outcome.counts["steps"] == 20 * 128 // processes
        assert outcome.counts["acted"] == 20 * 128 // processes


@pytest.mark.parametrize("name", ALIKE)
def test_an_update_is_compiled_once(trained, name):
    check_compiled_once(trained, name)


def check_compiled_once(trained, name):
    told = [outcome for (of, _), (_, outcomes) in trained.items() if of == name for outcome in outcomes]
    assert len(told) > len(QUICK_LAYOUTS)
    for outcome in told:
        compiled = {key: n for key, n in outcome.counts.items() if key.startswith("compiled")}
        assert compiled == {"compiled _batches_of_shards": 1, "compiled _learn_shards": 1}


@pytest.mark.parametrize("layout", others_slow(LAYOUTS, *QUICK_LAYOUTS))
def test_an_update_sends_one_message_beside_its_steps(trained, layout):
    processes, _ = LAYOUTS[layout]
    for outcome in trained["discrete", layout][1]:
        assert outcome.messages["moments"] == (20 if processes > 1 else 0)
