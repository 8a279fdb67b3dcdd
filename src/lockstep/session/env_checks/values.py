"""Checks of the values that `reset` and `step` return against the spaces of the environment."""

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.utils import passive_env_checker

from lockstep.envs.spec import ImagePart
from lockstep.session.env_checks.report import Report, describe_value

_FIVE = "return 5: observation, reward, terminated, truncated, info"


def check_spaces(env: Any, report: Report, prefix: str = "") -> None:
    """Check the spaces with Gymnasium's own checks; `prefix`: of their names, `single_` in vector environments."""
    for name in ("observation_space", "action_space"):
        space: Any = getattr(env, prefix + name, None)
        check: Any = getattr(passive_env_checker, f"check_{name}")
        if not _is(space, spaces.Space):
            example = "Box(low, high, shape, dtype)" if name == "observation_space" else "Discrete(n)"
            found = "is not set" if space is None else f"is {describe_value(space)}"
            report.fault(f"{prefix}{name} {found}; set self.{prefix}{name} = gymnasium.spaces.{example} in __init__")
            continue
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                check(space)
            except (AssertionError, TypeError) as error:
                report.fault(f"{prefix}{name}: {' '.join(str(error).split())}")
        for one in caught:
            report.warn(f"{prefix}{name}: {_plain(one.message)}")
    if report.faults:
        report.fatal(report.faults[-1])


def check_observation(
    observation: Any, space: Any, method: str, report: Report, part: str = "observation", says: str = ""
) -> None:
    """Check an observation against its space.

    Args:
        observation: as returned.
        space: of the observation.
        method: that returned it.
        report: receives the findings.
        part: its name in messages.
        says: the name of the space in messages; default: `observation_space`.
    """
    if _is(space, spaces.Dict):
        keys: set[Any] = set(observation) if _is(observation, dict) else set()
        if keys != set(space.spaces):
            found = f"a dict of {', '.join(sorted(map(str, keys)))}" if keys else describe_value(observation)
            report.fatal(f"{method} returned {found} as {part}; return a dict of {', '.join(space.spaces)}")
        for key, inner in space.spaces.items():
            check_observation(observation[key], inner, method, report, f"{part}[{key!r}]")
    elif _is(space, spaces.Tuple):
        if not _is(observation, tuple, list) or len(observation) != len(space.spaces):
            report.fatal(
                f"{method} returned {describe_value(observation)} as {part}; return a tuple of {len(space.spaces)}"
            )
        for i, inner in enumerate(space.spaces):
            check_observation(observation[i], inner, method, report, f"{part}[{i}]")
    elif _is(space, spaces.Box):
        _check_box(observation, space, method, report, part, says or "observation_space")
    elif not _contains(space, observation):
        numbers = as_numbers(observation)
        shown = describe_value(observation) if numbers is None else numbers.tolist()
        report.fatal(f"{method} returned {shown} as {part}, which {space} does not hold; return one of its values")


def _contains(space: Any, observation: Any) -> bool:
    try:
        return bool(space.contains(observation) or space.contains(np.asarray(observation)))
    except Exception:
        return False


def _check_box(observation: Any, space: Any, method: str, report: Report, part: str, says: str) -> None:
    wanted = f"return an array of shape {space.shape} and type {space.dtype}"
    array, named = as_numbers(observation), f"{'an' if part[0] in 'aeiou' else 'a'} {part}"
    if array is None:
        how = ", such as observation.detach().cpu().numpy()" if hasattr(observation, "detach") else ""
        report.fatal(f"{method} returned {describe_value(observation)} as {part}; {wanted}{how}")
    if array.shape != space.shape:
        report.fatal(
            f"{method} returned {named} of shape {array.shape}, and {says} says {space.shape}; "
            f"{wanted}, or let {says} say {array.shape}"
        )
    if space.dtype == np.uint8 and array.dtype.kind == "f":
        report.fatal(
            f"{method} returned {named} of type {array.dtype}, and {says} says uint8: fractions would be cut "
            "off; return (255 * image).astype(np.uint8), or give the space the type float32"
        )
    if not np.isfinite(array.astype(np.float32)).all():
        place = tuple(int(i) for i in np.argwhere(~np.isfinite(array.astype(np.float32)))[0])
        report.not_finite(
            f"{method} returned {named} that holds {array[place]} at index {shown_index(place)}; return finite "
            "numbers that float32 can hold",
            about=part,
        )
        return
    outside = (array < space.low) | (array > space.high)
    if outside.any():
        place = tuple(int(i) for i in np.argwhere(outside)[0])
        report.warn(
            f"{method} returned {named} outside {says}: {array[place]} at index {shown_index(place)} is "
            f"not in [{space.low[place]}, {space.high[place]}]; widen the bounds, or clip",
            about=f"bounds of {part}",
        )
    elif array.dtype != space.dtype:
        report.warn(
            f"{method} returned {named} of type {array.dtype}, and {says} says {space.dtype}, to which it is "
            f"converted; return {space.dtype}",
            about=f"type of {part}",
        )


def as_numbers(value: Any) -> "np.ndarray | None":
    """The value as a numeric array, or `None`."""
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError):  # lists of unequal length; torch tensors on a GPU or with a gradient
        return None
    return array if array.dtype.kind in "biuf" else None


def as_arrays(observation: Any) -> Any:
    """The observation with numpy arrays in place of those of other libraries, with which they may share memory."""
    if _is(observation, dict):
        return {name: as_arrays(part) for name, part in observation.items()}
    if _is(observation, tuple, list):
        return [as_arrays(part) for part in observation]
    return np.asarray(observation) if hasattr(observation, "__array__") else observation


def as_tuple(value: Any) -> tuple[Any, ...] | None:
    """A tuple or list as a tuple, or `None`."""
    return tuple(value) if _is(value, tuple, list) else None


def shown_index(place: tuple[int, ...]) -> str:
    """An index for messages: `2`, or `(0, 2)`."""
    return str(place[0]) if len(place) == 1 else str(place)


def check_reset_values(returned: Any, report: Report) -> Any:
    """Check the values that `reset` returned; returns the observation."""
    if not _is(returned, tuple) or len(returned) != 2:
        report.fatal(f"reset returned {describe_value(returned)}; return two values, observation and info (a dict)")
    _check_info(returned[1], "reset", report)
    return returned[0]


def check_step_values(returned: Any, report: Report) -> tuple[Any, Any, Any, Any]:
    """Check the values that `step` returned; returns observation, reward, terminated and truncated."""
    values = as_tuple(returned)
    if values is None:
        report.fatal(f"step returned {describe_value(returned)}; {_FIVE}")
    if len(values) != 5:
        old = " (done of the old package gym is now two: terminated and truncated)" if len(values) == 4 else ""
        report.fatal(f"step returned {len(values)} values; {_FIVE}{old}")
    _check_info(values[4], "step", report)
    return values[0], values[1], values[2], values[3]


def check_reward(reward: Any, report: Report) -> float:
    """Check a reward; returns it as a number."""
    if (_is(reward, np.ndarray) and reward.ndim) or _is(reward, str, bytes):  # float() would read a number from text
        report.fatal(f"step returned {describe_value(reward)} as reward; return a number: float(reward)")
    try:
        number = float(reward)
    except (TypeError, ValueError, RuntimeError):  # torch raises the last
        report.fatal(f"step returned {describe_value(reward)} as reward; return a number: float(reward)")
    if not np.isfinite(np.float32(number)):
        what = "a number that float32 can hold" if math.isfinite(number) else "a finite number"
        report.not_finite(f"step returned {number} as reward; return {what}", about="reward")
    return number


def check_flag(flag: Any, name: str, report: Report) -> bool:
    """Check `terminated` or `truncated`; returns it as a bool."""
    if not _is(flag, bool, np.bool_):
        single = getattr(flag, "shape", None) == () or _is(flag, int)
        if not single or flag not in (0, 1):
            report.fatal(f"step returned {describe_value(flag)} as {name}; return True or False")
        report.warn(f"step returned {describe_value(flag)} as {name}; return bool({name})", about=name)
    return bool(flag)


def _check_info(info: Any, method: str, report: Report) -> None:
    if not _is(info, dict):
        report.warn(f"{method} returned {describe_value(info)} as info, which is not read; return a dict, such as {{}}")
    elif "action_mask" in info:
        report.warn(
            f"{method} returned an action_mask in info, which is not read: a policy chooses among all actions; let "
            "invalid ones have no effect in step",
            about="action_mask",
        )


def _is(value: Any, *kinds: type) -> bool:
    return isinstance(value, kinds)  # a function, because pyright would narrow to Gymnasium's partially typed generics


def _plain(message: Any) -> str:
    """A warning of Gymnasium without its colour codes and prefix."""
    text = str(message).removeprefix("\033[33m").removesuffix("\033[0m")
    return text.removeprefix("WARN: ")


def describe_network_input(size: int, image: tuple[int, int, int] | None, parts: Sequence[ImagePart] = ()) -> str:
    """The network's input, for the report."""
    if parts:
        images = [describe_network_input(0, part.shape) for part in parts]
        numbers = size - sum(math.prod(part.shape) for part in parts)
        return " and ".join([*images, describe_network_input(numbers, None)])
    if image is not None:
        channels, height, width = image
        return f"an image of {channels} channel{'s' * (channels > 1)}, {height} x {width}"
    return f"a vector of {size}"


def describe_spaces(observation: Any, action: Any, seen: str) -> list[str]:
    """Facts about the spaces, for the report."""
    return [f"observations: {' '.join(str(observation).split())}, {seen}", f"actions: {' '.join(str(action).split())}"]
