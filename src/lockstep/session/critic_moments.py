"""The normalizers of what a value network learned from, in policy files; `--init-from` takes them over with it.

They define the unit of a value network: it observes, and predicts returns of rewards, in standard deviations. With
others its values are wrong.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np

from lockstep.experience.normalize import RunningMoments

SETTINGS = {"returns": "normalize_return", "values": "normalize_value"}
"""The setting of each normalizer that changes the unit of values."""
_WHAT = {
    "critic_observations": "the critic's own observations",
    "returns": "the discounted return (normalize_return)",
    "values": "the targets of values (normalize_value)",
}


def is_of_critic(name: str) -> bool:
    """Whether this is the name of an array of `arrays_of`."""
    return name.partition(".")[0] in _WHAT


def arrays_of(held: Mapping[str, RunningMoments]) -> dict[str, np.ndarray]:
    """The arrays of some normalizers, by name."""
    return {f"{name}.{key}": array for name, moments in held.items() for key, array in moments.state().items()}


def from_arrays(arrays: Mapping[str, np.ndarray]) -> dict[str, RunningMoments]:
    """The normalizers of `arrays_of`, among other arrays. Raises `KeyError` or `ValueError` if one is damaged."""
    normalizers: dict[str, RunningMoments] = {}
    for name in _WHAT:
        state = {array.partition(".")[2]: arrays[array] for array in arrays if array.partition(".")[0] == name}
        if state:
            normalizers[name] = RunningMoments(len(state["mean"]))
            normalizers[name].restore(state)
    return normalizers


def units(names: Collection[str]) -> dict[str, bool]:
    """Which settings define the unit of values, given the names of the normalizers that there are."""
    return {setting: name in names for name, setting in SETTINGS.items()}


def take_over(path: Path, stored: Mapping[str, RunningMoments] | None, held: Mapping[str, RunningMoments]) -> list[str]:
    """Restore the normalizers of a run from those of a policy.

    Args:
        path: of the policy, for messages.
        stored: those of the policy; None if its file is of an older version, which does not hold them.
        held: those of the run.

    Returns:
        Notes for the user on those that begin anew.
    """
    anew: list[str] = []
    for name, moments in held.items():
        source = None if stored is None else stored.get(name)
        if source is None or source.mean.shape != moments.mean.shape:
            anew.append(_WHAT.get(name, name))
        else:
            moments.restore(source.state())
    if not anew:
        return []
    because = "is of an older version and" if stored is None else "fits other observations and"
    there = "; a checkpoint of its run has them: RUN/checkpoints/step_N" if stored is None else ""
    return [
        f"--init-from {path} {because} has no running statistics of {', '.join(anew)}: they begin anew, and the "
        f"values of its value network are wrong until it has learned their new unit{there}"
    ]
