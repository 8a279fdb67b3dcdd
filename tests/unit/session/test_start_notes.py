"""Settings that defeat themselves are told when a run starts."""

import pytest

from lockstep.envs.make import env_spec
from lockstep.run import Run, override
from lockstep.session.start_notes import start_notes


def run_of(algo, **changes):
    return override(Run(task="Pendulum-v1", num_envs=8), {"algo": algo, "total_steps": 400, **changes})


@pytest.mark.parametrize(
    ("run", "told"),
    [
        (
            run_of("sac", learning_starts=1000),
            "learning_starts=1000 is beyond total_steps=400: nothing will be",
        ),
        (run_of("td3", learning_starts=201), "learning_starts=201 of total_steps=400: the agent learns only from"),
        (run_of("sac", learning_starts=100, batch_size=8, capacity=99), "capacity=99 is less than learning_starts=100"),
        (
            run_of("td3", learning_starts=0, batch_size=8, capacity=64, num_steps=9),
            "capacity=64 is less than one rollout, 72 steps (num_envs=8 x num_steps=9)",
        ),
        (
            run_of("dqn", learning_starts=0, epsilon_steps=800, epsilon_end=0.1),
            "epsilon_steps=800 is beyond total_steps=400: 55 % of the actions are random at the end",
        ),
        (
            run_of("ppo", num_steps=51, num_minibatches=4),
            "total_steps=400 is less than one rollout, which is collected whole: 408 steps (num_envs=8 x num_steps=51)",
        ),
    ],
)
def test_what_leaves_little_to_learn_is_told_at_the_start_alone(run, told):
    (note,) = start_notes(run, None, task_alone=False)
    assert note.startswith(told)
    assert start_notes(run, None, task_alone=False, resumed=True) == []


@pytest.mark.parametrize(
    "run",
    [
        run_of("sac", learning_starts=200, batch_size=8, capacity=200),
        run_of("td3", learning_starts=0, batch_size=8, capacity=64, num_steps=8),
        run_of("dqn", learning_starts=0, epsilon_steps=400),
        run_of("dqn", learning_starts=0, epsilon_steps=800, epsilon_start=0.1, epsilon_end=0.1),
        run_of("dqn", learning_starts=0, noisy=True),
        Run(task="CartPole-v1"),
    ],
)
def test_nothing_is_told_of_settings_that_fit(run):
    assert not [note for note in start_notes(run, None, task_alone=False) if "no effect" not in note]


@pytest.mark.parametrize(("target", "impossible"), [(0.7, True), (0.69, False), (-1.0, False), (None, False)])
def test_an_entropy_above_that_of_uniform_actions_is_told(target, impossible):
    """One number in [-1, 1] has at most log 2 = 0.693 nats."""
    run = run_of("sac", learning_starts=100, batch_size=8, target_entropy=target)
    spec = env_spec(run.task, run.env)
    told = [note for note in start_notes(run, spec, task_alone=False, resumed=True) if "cannot be reached" in note]
    assert bool(told) == impossible
    assert not impossible or "an action of 1 number in [-1, 1] is at most 0.693 nats" in told[0]
