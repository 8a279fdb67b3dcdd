"""What Isaac Lab and mjlab have in common: global random generators, standard output, and limits of episodes."""

import io
import random
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lockstep.config import settings
from lockstep.errors import ConfigError

_SET_HERE = ("scene.num_envs", "seed", "sim.device", "auto_reset", "compute_final_obs")
"""Settings of a task's own configuration that follow from the run."""


def refuse_settings_of_the_run(overrides: Mapping[str, Any]) -> None:
    """Refuse settings of a task's configuration that would be replaced, such as its number of environments."""
    for name, value in settings.leaves(overrides).items():
        if name in _SET_HERE:
            advice = {"scene.num_envs": "use num_envs", "seed": "use seed", "sim.device": "use device"}
            raise ConfigError(f"env.kwargs {name}={value} is set by Lockstep; {advice.get(name, 'leave it out')}")


@contextmanager
def quiet() -> Generator[None]:
    """Hold back what a simulator prints while it starts; print it only if the start fails."""
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            yield
    except BaseException:
        sys.stderr.write(printed.getvalue())
        raise


def ends(config: Any, terminated: Tensor, truncated: Tensor) -> tuple[Tensor, Tensor]:
    """`terminated` and `truncated` of a task: with a finite horizon its time limit terminates, without a bootstrap."""
    if not getattr(config, "is_finite_horizon", False):
        return terminated, truncated
    return terminated | truncated, torch.zeros_like(truncated)


def episode_seconds(steps: int, step_dt: float) -> float:
    """The length of an episode of `steps` steps, as Isaac Lab and mjlab take it: they round the quotient up.

    `steps * step_dt / step_dt` may be larger than `steps` by rounding, for example with 3 and 0.05.
    """
    return steps * step_dt * (1 - 1e-9)


class GlobalRandomState:
    """A state of the global generators of torch, numpy and Python that belongs to one simulator.

    Isaac Lab and mjlab draw from them. With one state for all, a simulator's numbers would depend on everything else in
    the process that draws.
    """

    def __init__(self) -> None:
        self._own: Any = None

    @contextmanager
    def swapped_in(self) -> Generator[None]:
        """Exchange the states of the global generators, and keep those of the simulator afterwards."""
        others = _random_states()
        if self._own is not None:
            _set_random_states(self._own)
        try:
            yield
        finally:
            self._own = _random_states()
            _set_random_states(others)


def _random_states() -> tuple[Any, ...]:
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
    return torch.get_rng_state(), cuda, np.random.get_state(), random.getstate()


def _set_random_states(states: tuple[Any, ...]) -> None:
    cpu, cuda, numpy, python = states
    torch.set_rng_state(cpu)
    if cuda is not None:
        torch.cuda.set_rng_state(cuda)
    np.random.set_state(numpy)
    random.setstate(python)
