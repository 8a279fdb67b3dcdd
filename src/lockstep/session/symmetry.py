"""The user's function of `symmetry`, which returns transitions with their mirrored copies, in any framework."""

import inspect
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from lockstep.envs.load import load_object
from lockstep.envs.spec import EnvSpec
from lockstep.errors import ConfigError
from lockstep.world import stream

Function = Callable[..., tuple[Any, ...]]
"""From observation [N, O] and action [N, D] to both with M N rows, of which the first N are the given ones.

Where the critic has its own observation, it is the third argument [N, C] and the third result.
"""

_ROWS = 3


def load_symmetry(path: str, spec: EnvSpec) -> Function:
    """The function that `symmetry=path` names. Raises `ConfigError` if it cannot be called for these environments."""
    function: Any = load_object(path, "symmetry")
    if not callable(function):
        raise ConfigError(f"symmetry={path} is not a function")
    names = list(inspect.signature(function).parameters)
    if names[:1] == ["env"]:
        raise ConfigError(
            f"symmetry={path} reads the environment (env), as Isaac Lab's functions do, which a learner does not have; "
            "write a function of observation and action"
        )
    arguments = _names(spec)
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        raise ConfigError(
            f"symmetry={path} takes ({', '.join(names)}); for this task it is called with ({', '.join(arguments)})"
        ) from None
    return cast(Function, function)


def count_copies(path: str, spec: EnvSpec, call: Callable[..., tuple[np.ndarray, ...]]) -> int:
    """M, from a call with a few random rows. Raises `ConfigError` if the result is not as it must be.

    Args:
        path: of the function.
        spec: of the environments.
        call: calls the function with arrays, and returns arrays.
    """
    names = _names(spec)
    draw, kind = stream(0, "symmetry"), spec.action.kind
    shape = (_ROWS,) if kind == "discrete" else (_ROWS, spec.action.width)
    observation = (10 * draw.random((_ROWS, *spec.observation_shape))).astype(spec.observation_dtype)
    action = draw.random(shape).astype(np.float32) if kind == "continuous" else np.zeros(shape, np.int64)
    given = [observation, action]
    if spec.critic_size is not None:
        given.append((10 * draw.random((_ROWS, spec.critic_size))).astype(np.float32))
    try:
        results = call(*given)
    except Exception as error:
        raise ConfigError(f"symmetry={path} failed: {type(error).__name__}: {error}") from error
    if len(results) != len(names):
        raise ConfigError(f"symmetry={path} returned {len(results)} results; it must return ({', '.join(names)})")
    copies = len(results[0]) // _ROWS
    for name, rows, result in zip(names, given, results, strict=True):
        expected = (copies * _ROWS, *rows.shape[1:])
        if copies < 1 or result.shape != expected:
            raise ConfigError(
                f"symmetry={path} returned {name} of shape {list(result.shape)} for {list(rows.shape)}; it must "
                "return M times as many rows of each argument"
            )
        if not np.array_equal(result[:_ROWS], rows):
            raise ConfigError(
                f"symmetry={path} changes the first rows of {name}; the given rows must come first, unchanged"
            )
    return copies


def _names(spec: EnvSpec) -> list[str]:
    """Names of the function's arguments and results."""
    return ["observation", "action", *(["critic"] if spec.critic_size is not None else [])]
