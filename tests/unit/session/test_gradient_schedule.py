"""When gradient steps are due, and until when actions are random."""

import pytest

from lockstep import World
from lockstep.algorithms.sac import SACConfig
from lockstep.run import Run
from lockstep.session.gradient_schedule import GradientSchedule


@pytest.fixture
def schedule():
    """Of rollouts of 4 steps, which is due a gradient step per rollout from step 10 on."""
    config = SACConfig(learning_starts=10, updates_per_step=0.25, batch_size=4, capacity=100)
    return GradientSchedule(Run(task="any", algo="sac", num_envs=4, algorithm=config), World())


def collect(schedule: GradientSchedule, env_steps: range) -> list[tuple[bool, int]]:
    """Of each rollout, whether its actions are random, and the gradient steps after it."""
    found = []
    for step in env_steps[::4]:
        random = step < schedule.random_until(step)
        due = schedule.take_due(step, 4, ready=True)
        schedule.gradient_steps += due
        found.append((random, due))
    return found


def test_actions_are_random_until_learning_begins(schedule):
    assert collect(schedule, range(20)) == [(True, 0), (True, 0), (True, 1), (False, 1), (False, 1)]


def test_new_buffers_are_filled_with_random_actions_before_a_run_has_learned(schedule):
    assert collect(schedule, range(8)) == [(True, 0)] * 2
    schedule.fill_again()
    assert collect(schedule, range(8, 24)) == [(True, 0), (True, 0), (True, 1), (False, 1)]


def test_new_buffers_are_filled_with_the_policy_once_a_run_has_learned(schedule):
    assert collect(schedule, range(12))[-1] == (True, 1)
    schedule.fill_again()
    assert collect(schedule, range(12, 28)) == [(False, 0), (False, 0), (False, 1), (False, 1)]


def test_a_run_that_waits_for_its_first_gradient_step_is_past_the_random_actions(schedule):
    """`updates_per_step` may ask for one only long after `learning_starts`."""
    assert not schedule.random_until(12) > 12
