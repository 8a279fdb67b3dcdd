"""The phases of a run's time, by a clock that only environments and updates advance."""

import time
from unittest import mock

import pytest

import lockstep
from lockstep.distributed import timers
from lockstep.envs.toy_tasks import Corridor
from lockstep.errors import ConfigError
from lockstep.run import NetworkConfig, Run, override
from lockstep.session import session
from lockstep.session.profile import check_profile
from lockstep.torch.ppo import PPO

STEP_S, UPDATE_S = 1.0, 20.0
UPDATES, STEPS = 5, 8


class Clock:
    """Stands in for the module `time`; starts now, so that the stall detection sees nothing unusual."""

    def __init__(self):
        self.now = time.monotonic_ns()
        self.sleep = time.sleep

    def monotonic_ns(self):
        return self.now

    def monotonic(self):
        return self.now / 1e9

    def advance(self, seconds):
        self.now += int(seconds * 1e9)


class Slow(Corridor):
    """Each step takes `STEP_S` of the clock."""

    def step(self, action):
        if hasattr(timers.time, "advance"):  # this file is imported twice, so there are two classes `Clock`
            timers.time.advance(STEP_S)
        return super().step(action)


@pytest.fixture
def run():
    run = Run(task=f"{__file__}:Slow", num_envs=8, network=NetworkConfig(hidden=(8,)), evaluate_every=None)
    settings = {"num_steps": STEPS, "num_epochs": 1, "total_steps": UPDATES * 8 * STEPS, "stop_when_solved": False}
    return override(run, {**settings, "evaluate_episodes": 8, "log_every": 8 * STEPS, "timeout_s": 100_000.0})


def test_each_phase_has_its_time_and_all_sum_to_the_wall_time(run, tmp_path):
    clock, update = Clock(), PPO.update

    def slow_update(*args, **kwargs):
        clock.advance(UPDATE_S)
        return update(*args, **kwargs)

    with (
        mock.patch.object(timers, "time", clock),
        mock.patch.object(session, "time", clock),
        mock.patch.object(PPO, "update", slow_update),
    ):
        summary = lockstep.train(run, run_dir=tmp_path / "run")
    phases = summary["phases_s"]
    assert phases["env"] == pytest.approx(UPDATES * STEPS * STEP_S)
    assert phases["learn"] == pytest.approx(UPDATES * UPDATE_S)
    assert phases["evaluate"] > 0
    assert sum(phases.values()) == pytest.approx(summary["wall_time_s"], rel=0.02)


def test_profile_needs_more_updates_than_the_warmup(run):
    check_profile(2, run)
    with pytest.raises(ConfigError, match=r"--profile 3: the run makes 5 updates.*total_steps=384"):
        check_profile(3, run)
    with pytest.raises(ConfigError, match=r"the run makes 1 update, .*total_steps=\d+"):
        check_profile(1, run, done_steps=run.total_steps - 64)
    with pytest.raises(ConfigError, match="--profile 0 must be at least 1"):
        check_profile(0, run)
