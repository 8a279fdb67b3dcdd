"""The user's function of `symmetry`, which returns transitions with their mirrored copies, in any framework."""

import inspect
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from lockstep.envs.load import load_object
from lockstep.envs.spec import EnvSpec
from lockstep.errors import ConfigError
from lockstep.world import stream

Function = Callable[[Any, Any], tuple[Any, Any]]
"""From observation [N, O] and action [N, D] to both with M N rows, of which the first N are the given ones."""

_ROWS = 3


def load_symmetry(path: str) -> Function:
    """The function that `symmetry=path` names. Raises `ConfigError` if it does not take observation and action."""
    function: Any = load_object(path, "symmetry")
    if not callable(function):
        raise ConfigError(f"symmetry={path} is not a function")
    names = list(inspect.signature(function).parameters)
    if names[:1] == ["env"]:
        raise ConfigError(
            f"symmetry={path} reads the environment (env), as Isaac Lab's functions do, which a learner does not have; "
            "write a function of observation and action"
        )
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        raise ConfigError(
            f"symmetry={path} takes ({', '.join(names)}); it is called with two arguments, observation and action"
        ) from None
    return cast(Function, function)


def count_copies(path: str, spec: EnvSpec, call: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, ...]]) -> int:
    """M, from a call with a few random rows. Raises `ConfigError` if the result is not as it must be.

    Args:
        path: of the function.
        spec: of the environments.
        call: calls the function with arrays, and returns arrays.
    """
    draw, kind = stream(0, "symmetry"), spec.action.kind
    shape = (_ROWS,) if kind == "discrete" else (_ROWS, spec.action.width)
    observation = (10 * draw.random((_ROWS, *spec.observation_shape))).astype(spec.observation_dtype)
    action = draw.random(shape).astype(np.float32) if kind == "continuous" else np.zeros(shape, np.int64)
    try:
        results = call(observation, action)
    except Exception as error:
        raise ConfigError(f"symmetry={path} failed: {type(error).__name__}: {error}") from error
    if len(results) != 2:  # observation and action
        raise ConfigError(f"symmetry={path} must return observation and action")
    copies = len(results[0]) // _ROWS
    for name, given, result in zip(("observations", "actions"), (observation, action), results, strict=True):
        expected = (copies * _ROWS, *given.shape[1:])
        if copies < 1 or result.shape != expected:
            raise ConfigError(
                f"symmetry={path} returned {name} of shape {list(result.shape)} for {list(given.shape)}; it must "
                "return M times as many rows of both"
            )
        if not np.array_equal(result[:_ROWS], given):
            raise ConfigError(f"symmetry={path} changes the first {name}; the given rows must come first, unchanged")
    return copies
