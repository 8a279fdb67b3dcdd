"""Conversion between Gymnasium spaces and flat arrays."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from lockstep.envs.spec import ActionSpec, ImagePart
from lockstep.errors import ConfigError

Convert = Callable[[Any], np.ndarray]


def check_spaces_set(env: Any, task: str) -> None:
    """Raise `ConfigError` unless an environment sets both its spaces."""
    for name, example in (("observation_space", "Box(low, high, shape, dtype)"), ("action_space", "Discrete(n)")):
        space = getattr(env, name, None)
        if not _is(space, spaces.Space):
            found = "is not set" if space is None else f"is {space!r}"
            raise ConfigError(
                f"task={task}: its {name} {found}; set self.{name} = gymnasium.spaces.{example} in __init__"
            )


def observation_size(space: Any, task: str) -> int:
    """Length of a flat observation of `space`."""
    _refuse_unknown_parts(space, space, task)
    size = int(spaces.flatdim(space))
    if size < 1:
        raise ConfigError(f"task={task} observes nothing: its observation space {space} is empty")
    return size


def image_shape(space: Any) -> tuple[int, int, int] | None:
    """Channels, height and width, if an observation of `space` is an image: bytes in three dimensions.

    Channels may be first or last; if both are possible, the smaller dimension is taken.
    """
    if not _is(space, spaces.Box) or space.dtype != np.uint8 or len(space.shape) != 3:
        return None
    first, second, last = (int(size) for size in space.shape)
    return (last, first, second) if last < first else (first, second, last)


def image_parts(
    space: Any, shape_of: Callable[[Any], tuple[int, int, int] | None] = image_shape
) -> tuple[ImagePart, ...]:
    """The images among the parts of a Dict or Tuple, by their columns in the flat observation.

    Args:
        space: of the observation; any other than a Dict or Tuple has no parts.
        shape_of: returns the shape of a part that counts as an image, and None for all others.
    """
    found, begin = list[ImagePart](), 0
    for part in _leaves(space) if _is(space, spaces.Dict, spaces.Tuple) else ():
        if (shape := shape_of(part)) is not None:
            found.append(ImagePart(begin, shape))
        begin += int(spaces.flatdim(part))
    return tuple(found)


def flat_space(space: Any, task: str) -> spaces.Box:
    """The space of `flatten_observation`'s result."""
    size, image = observation_size(space, task), image_shape(space)
    return spaces.Box(-np.inf, np.inf, (size,), np.float32) if image is None else spaces.Box(0, 255, image, np.uint8)


def flatten_observation(space: Any) -> Convert:
    """A function that converts one observation of `space` into a new array.

    An image becomes bytes with channels first; anything else a flat float32 vector, with discrete parts one-hot. An
    image beside other parts is scaled to [0, 1], channels first.
    """
    image = image_shape(space)
    if image is not None:
        if image == tuple(space.shape):
            return lambda observation: np.array(np.asarray(observation), np.uint8)
        return lambda observation: np.array(np.moveaxis(np.asarray(observation), -1, 0), np.uint8)
    if _is(space, spaces.Box):
        # numpy warns where it copies a torch tensor itself.
        return lambda observation: np.array(np.asarray(observation), np.float32).reshape(-1)
    if image_parts(space):
        return _flatten_with_images(space)
    return lambda observation: np.array(spaces.flatten(space, _in_numpy(space, observation)), np.float32)


def _in_numpy(space: Any, observation: Any) -> Any:
    """An observation whose parts are numbers or numpy arrays.

    Raises:
        ValueError: a choice is outside its space: one-hot, it would become another choice, or one of its neighbour.
    """
    if _is(space, spaces.Dict):
        return {name: _in_numpy(part, observation[name]) for name, part in named_parts(space)}
    if _is(space, spaces.Tuple):
        return tuple(_in_numpy(part, observation[place]) for place, part in named_parts(space))
    if _is(space, spaces.Discrete):
        number = int(np.asarray(observation).item())
        held = 0 <= number - space.start < space.n
    elif _is(space, spaces.MultiDiscrete):
        number = np.asarray(observation)
        held = ((number >= space.start) & (number - space.start < space.nvec)).all()
    else:
        return np.asarray(observation)
    if not held:
        raise ValueError(f"the observation {number} is outside {space}")
    return number


def _flatten_with_images(space: Any) -> Convert:
    """`flatten_observation` of a Dict or Tuple, or of one of its parts, as float32."""
    if _is(space, spaces.Dict, spaces.Tuple):
        parts = [(name, _flatten_with_images(part)) for name, part in named_parts(space) if spaces.flatdim(part)]
        return lambda observation: np.concatenate([convert(observation[name]) for name, convert in parts])
    convert = flatten_observation(space)
    if image_shape(space) is None:
        return convert
    return lambda observation: convert(observation).reshape(-1) * np.float32(1 / 255)


def flatten_batch(space: Any) -> Convert:
    """A function that converts a batch of observations of a Box; the result may be a view of the batch."""
    image, shape = image_shape(space), tuple(space.shape)
    if image is None:
        if len(shape) == 1:  # the hot path of the smallest tasks
            return lambda batch: np.asarray(batch, np.float32)
        return lambda batch: np.asarray(batch, np.float32).reshape(len(batch), -1)
    if image == shape:
        return lambda batch: np.asarray(batch, np.uint8)
    return lambda batch: np.moveaxis(np.asarray(batch, np.uint8), -1, 1)


def action_spec(space: Any, task: str) -> ActionSpec:
    """The flat action that `space` takes."""
    if _is(space, spaces.Discrete):
        return ActionSpec("discrete", (int(space.n),), start=(int(space.start),) if space.start else ())
    if _is(space, spaces.MultiDiscrete):
        sizes, start = (tuple(numbers.reshape(-1).tolist()) for numbers in (space.nvec, space.start))
        return ActionSpec("multi_discrete", sizes, start=start if any(start) else (), shape=_unless_flat(space.shape))
    if _is(space, spaces.MultiBinary):
        return ActionSpec("multi_discrete", (2,) * math.prod(space.shape), shape=_unless_flat(space.shape))
    if _is(space, spaces.Box) and space.dtype.kind == "f" and math.prod(space.shape) > 0:
        low, high = (tuple(bound.reshape(-1).tolist()) for bound in (space.low, space.high))
        return ActionSpec("continuous", (len(low),), low, high, shape=_unless_flat(space.shape))
    if _is(space, spaces.Box) and space.dtype.kind in "iu":
        raise ConfigError(
            f"task={task} has the action space {space} of whole numbers; use MultiDiscrete(nvec, start=...), or a Box "
            "of floats and round in step"
        )
    raise ConfigError(
        f"task={task} has the action space {space}, which is not supported; use Discrete, MultiDiscrete, MultiBinary "
        "or Box of floats, or a wrapper (env.wrappers) that makes it one of them"
    )


def _unless_flat(shape: tuple[int, ...]) -> tuple[int, ...] | None:
    return None if len(shape) == 1 else tuple(shape)


def restore_action(space: Any, spec: ActionSpec) -> Convert | None:
    """A function from flat actions, one or a batch, to those of `space`, or `None` if they are the same.

    Args:
        space: of a single environment.
        spec: its `action_spec`.
    """
    dtype = space.dtype
    same_type = dtype == (np.float32 if spec.kind == "continuous" else np.int64)
    if same_type and not spec.start and spec.shape is None:
        return None
    if spec.kind == "continuous" and not same_type:  # a bound that float32 rounds may lie outside
        return lambda action: np.clip(spec.for_env(action).astype(dtype), space.low, space.high)
    return lambda action: spec.for_env(action).astype(dtype)


def named_parts(space: Any) -> list[tuple[Any, Any]]:
    """The parts of a Dict by name, or of a Tuple by index."""
    pairs: Any = space.spaces.items() if _is(space, spaces.Dict) else enumerate(space.spaces)
    return list(pairs)


def _leaves(space: Any) -> Iterator[Any]:
    """The parts of a Dict or Tuple that are neither, in the order of the flat observation."""
    if _is(space, spaces.Dict, spaces.Tuple):
        for _, part in named_parts(space):
            yield from _leaves(part)
    else:
        yield space


def _refuse_unknown_parts(space: Any, part: Any, task: str) -> None:
    if _is(part, spaces.Tuple, spaces.Dict):
        for _, inner in named_parts(part):
            _refuse_unknown_parts(space, inner, task)
    elif not _is(part, spaces.Box, spaces.Discrete, spaces.MultiBinary, spaces.MultiDiscrete):
        where = "" if part is space else f" within {space}"
        raise ConfigError(
            f"task={task} has the observation space {part}{where}, which has no fixed length; use Box, Discrete, "
            "MultiBinary, MultiDiscrete, Tuple or Dict, or a wrapper (env.wrappers) that makes it one of them"
        )


def _is(space: Any, *kinds: type) -> bool:
    return isinstance(space, kinds)  # a function, because pyright would narrow to Gymnasium's partially typed generics
