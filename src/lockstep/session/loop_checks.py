"""What a session refuses of a loop of one's own: calls in another order, what it gives to them, another's run."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from lockstep.errors import ConfigError

Value = TypeVar("Value")


def required(value: Value | None, call: str, needs: str) -> Value:
    """The value. Raises `ConfigError` if it is None, as the call that it `needs` was not made before."""
    if value is None:
        raise ConfigError(f"session.{call} needs session.{needs} before it; see examples/my_algorithm.py")
    return value


def check_totals(totals: Any, size: int) -> None:
    """Raise `ConfigError` unless these are statistics [`size`] that were summed over all shards."""
    if np.shape(totals) != (size,):
        raise ConfigError(
            f"totals has shape {list(np.shape(totals))}, not [{size}]; sum the statistics over all shards first: "
            'session.comm.sum_statistics(session.local_statistics(), "statistics")'
        )


def metrics_of(read: Any) -> dict[str, float]:
    """What `read` returns. Raises `ConfigError` if it is no function, or returns anything but metrics by name."""
    if not callable(read):
        raise ConfigError(f"read={read!r} must be a function that returns metrics by name; give metrics.read, no call")
    found: Any = read()
    if not isinstance(found, Mapping):
        raise ConfigError(f"read returned {found!r}; it must return metrics by name, such as {{'loss/value': 0.5}}")
    return dict(cast("Mapping[str, float]", found))


def name_of(learner: object) -> str:
    """The module and class of a learner; the module of a script is the name of its file."""
    kind = type(learner)
    module = kind.__module__
    if module in ("__main__", "__mp_main__"):
        main = sys.modules.get(module)
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        module = spec.name if spec is not None else module if file is None else Path(file).stem
    return f"{module}.{kind.__qualname__}"


def is_of_lockstep(name: str) -> bool:
    """Whether a learner of this `name_of` is one of Lockstep's own."""
    return name.startswith("lockstep.")


def check_learner(saved: str | None, now: str, run_dir: Path) -> None:
    """Raise `ConfigError` if the learner of a checkpoint was another one, though their tensors may fit.

    A class may move to another module. Which of Lockstep's own it was, settings tell. Checkpoints of older versions
    (None) do not say whose they are.
    """
    if saved is None or (is_of_lockstep(saved) and is_of_lockstep(now)):
        return
    one_side_is_own = is_of_lockstep(saved) or is_of_lockstep(now)
    if not one_side_is_own and saved.rpartition(".")[2] == now.rpartition(".")[2]:
        return
    way = "`lockstep train --resume`" if is_of_lockstep(saved) else f"the script of {saved}"
    raise ConfigError(
        f"{run_dir} was trained by {saved}, and would continue with {now}; resume it with {way}, or start a new run "
        "(init_from takes over the policy)"
    )
