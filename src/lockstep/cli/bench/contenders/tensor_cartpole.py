"""The environments that trainers of robot tasks are given, and the clock of their updates."""

import argparse
from collections.abc import Callable
from typing import Any

import torch
from clock import Clock, report
from robot_settings import STEPS


def make_env(num_envs: int) -> Any:
    """The environments that every library is given."""
    from lockstep.torch.envs.cartpole import Cartpole

    env = Cartpole(num_envs, device=torch.device("cpu"))
    env.reset([0])
    return env


def measure(make: Callable[[int], Callable[[int], None]], args: argparse.Namespace) -> None:
    """Train, and print the steps per second.

    Args:
        make: gets the number of environments; returns a function that makes a number of updates.
        args: `num_envs`, and the steps of warm-up and measurement.
    """
    torch.set_num_threads(1)
    num_envs = int(args.num_envs)
    train = make(num_envs)
    torch.set_num_threads(1)  # rl_games sets them, too
    clock, done = Clock(args.warm_up), 0
    for steps in (args.warm_up, args.measured):
        train(max(1, steps // (num_envs * STEPS)))
        done += steps
        clock.mark(done)
    report(clock.per_second(), ["skrl", "rl-games", "rsl-rl-lib", "torch"])
