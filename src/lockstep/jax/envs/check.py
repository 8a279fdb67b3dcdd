"""Checks of an environment written in JAX: shapes and types of what its functions return, found without computing."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from lockstep.config.env import EnvConfig
from lockstep.envs.spec import EnvSpec
from lockstep.jax.envs.interface import DeviceEnv
from lockstep.jax.envs.make import make_device_env
from lockstep.jax.envs.packed import action_type
from lockstep.session.env_checks.report import CheckEndedError, Report, described, raised

_TRACED = "its arguments are known only when it runs"


class _Leaf(NamedTuple):
    """An array of a state, without its numbers."""

    shape: tuple[int, ...]
    kind: Any


def check_device_env(task: str, config: EnvConfig, report: Report) -> None:
    """Find out whether `reset`, `observe` and `step` fit each other, the spec, and a loop in compiled code.

    Args:
        task: its name.
        config: how it is made.
        report: what is found goes there.
    """
    env = make_device_env(task, config)
    spec = env.spec
    action = jax.ShapeDtypeStruct(*action_type(spec))
    key = jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32"))
    first = _traced(env, "reset", lambda: jax.eval_shape(env.reset, key), report)
    _check_observation(
        _traced(env, "observe", lambda: jax.eval_shape(env.observe, first), report), "observe", spec, report
    )
    after = _check_step(env, first, action, key, report)
    _check_states(first, after, "reset", report)
    _check_states(after, _check_step(env, after, action, key, report), "step", report)


def _check_step(env: DeviceEnv, state: Any, action: Any, key: Any, report: Report) -> Any:
    """The state that `step` returns, once everything else that it returns was looked at."""
    returned: Any = _traced(env, "step", lambda: jax.eval_shape(env.step, state, action, key), report)
    if not isinstance(returned, tuple) or len(returned) != 5:
        report.fatal(
            f"step returned {described(returned)}; return 5: state, observation, reward, terminated, truncated"
        )
    after, observation, reward, terminated, truncated = returned
    _check_observation(observation, "step", env.spec, report)
    for name, value in (("reward", reward), ("terminated", terminated), ("truncated", truncated)):
        wanted = "a float32" if name == "reward" else "a bool"
        if not hasattr(value, "shape") or value.shape != ():
            report.fatal(
                f"step returned {described(value)} as {name}; return {wanted} of shape (), as of one environment"
            )
        if name != "reward" and value.dtype != jnp.bool_:
            report.warn(f"step returned {value.dtype} as {name}; return a bool, such as steps >= limit")
    return after


def _check_observation(value: Any, method: str, spec: EnvSpec, report: Report) -> None:
    wanted = f"return an array of shape {spec.observation_shape} and type {np.dtype(spec.observation_dtype)}"
    if not hasattr(value, "shape") or not jnp.issubdtype(value.dtype, jnp.number):
        report.fatal(f"{method} returned {described(value)} as observation; {wanted}")
    if value.shape != spec.observation_shape:
        report.fatal(
            f"{method} returned an observation of shape {value.shape}, and spec says {spec.observation_shape}; {wanted}"
        )
    if spec.image is not None and value.dtype != jnp.uint8:
        report.fatal(f"{method} returned an observation of type {value.dtype}, and spec has an image; {wanted}")


def _check_states(before: Any, after: Any, method: str, report: Report) -> None:
    """Whether a state can take the place of the one before, in a loop in compiled code."""
    names, old = _leaves(before)
    new_names, new = _leaves(after)
    if jax.tree.structure(before) != jax.tree.structure(after):
        gone, new_ones = sorted(set(names) - set(new_names)), sorted(set(new_names) - set(names))
        reported = [f"without state{name}" for name in gone] + [f"with state{name}" for name in new_ones]
        if not reported:
            reported = [f"a {type(after).__name__} instead of a {type(before).__name__}"]
        report.fatal(
            f"step returned a state of another structure than {method}: {', '.join(reported)}; return the same "
            "tuples and dicts, and None in the same places"
        )
    for name, one, other in zip(names, old, new, strict=True):
        if one.shape != other.shape:
            report.fault(
                f"step returned state{name} of shape {other.shape}, and {method} of shape {one.shape}; shapes must not "
                "change"
            )
        elif one.kind != other.kind and jnp.promote_types(one.kind, other.kind) != other.kind:
            report.fault(
                f"step returned state{name} of type {other.kind}, and {method} of type {one.kind}, which would be cut "
                f"off; return the same type from both"
            )


def _leaves(state: Any) -> tuple[list[str], list[_Leaf]]:
    """Arrays of a state, each with its place in it."""
    found: Any = jax.tree_util.tree_leaves_with_path(state)
    names = [jax.tree_util.keystr(path) for path, _ in found]
    return names, [_Leaf(tuple(leaf.shape), leaf.dtype) for _, leaf in found]


def _traced(env: DeviceEnv, method: str, call: Callable[[], Any], report: Report) -> Any:
    """What a function returns, without its numbers; what keeps it from being compiled is a fault."""
    report.doing = method
    try:
        returned = call()
        _check_nothing_kept(env, method, report)
        return returned
    except CheckEndedError:
        raise
    except (jax.errors.TracerBoolConversionError, jax.errors.TracerIntegerConversionError) as error:
        report.fatal(
            f"{method} decides by the value of an array{_place(error)}, and {_TRACED}; use jnp.where or jax.lax.cond"
        )
    except (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError) as error:
        report.fatal(f"{method} gives an array to Python or numpy{_place(error)}, and {_TRACED}; use jax.numpy")
    except Exception as error:
        kind, _, rest = raised(error).partition(": ")
        report.fatal(f"{method} raised {kind}: {rest[:300]}")


def _check_nothing_kept(env: DeviceEnv, method: str, report: Report) -> None:
    """Functions that are compiled run once as Python: what they leave in `self` is no array of any later call."""
    for name, value in getattr(env, "__dict__", {}).items():
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(value)):
            report.fatal(f"{method} keeps an array in self.{name}; put it into the state, and settings alone into self")


def _place(error: Exception) -> str:
    """Where in the user's code it was: ` (file:line)`."""
    reported = raised(error)
    return f" {reported[reported.rindex(' (') + 1 :]}" if reported.endswith(")") and ".py:" in reported else ""
