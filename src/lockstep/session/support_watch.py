"""A warning where the returns of a task are beyond the support that C51 learns them on."""

from collections.abc import Callable

from lockstep.algorithms.dqn import DQNConfig
from lockstep.record.journal import Journal

_NEAR = 0.02
"""Part of the support: a mean target this close to an end has nearly all of its probability there."""


def watch_support(
    journal: Journal, config: DQNConfig, read: Callable[[], dict[str, float]]
) -> Callable[[], dict[str, float]]:
    """`read`, which also warns, once, when the mean target is at an end of the support.

    Returns beyond an end count as that end (Bellemare et al., 2017), so the policy cannot tell them apart.

    Args:
        journal: prints the warning.
        config: with `v_min` and `v_max`.
        read: returns the metrics since the last log line.
    """
    if config.value_distribution != "categorical":
        return read
    margin = _NEAR * (config.v_max - config.v_min)
    warned = False

    def read_and_warn() -> dict[str, float]:
        nonlocal warned
        metrics = read()
        target = metrics.get("value/target")
        if target is not None and not warned and not config.v_min + margin <= target <= config.v_max - margin:
            warned = True
            name, other = ("v_max", "larger") if target > config.v_min + margin else ("v_min", "smaller")
            end = getattr(config, name)
            journal.warn(
                f"value/target={target:.4g} is at the end of the support: if the task has discounted returns {other} "
                f"than {name}={end:g}, they count as {end:g}; then set {name} beyond them"
            )
        return metrics

    return read_and_warn
