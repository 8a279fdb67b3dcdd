"""Checks of an environment written in JAX: shapes and types of its functions' outputs, by tracing."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from lockstep.config.env import EnvConfig
from lockstep.envs.errors import describe_error, user_location
from lockstep.envs.spec import EnvSpec
from lockstep.jax.envs.interface import DeviceEnv, Observation
from lockstep.jax.envs.make import make_device_env
from lockstep.jax.envs.packed import action_type, is_key
from lockstep.record.checkpoint import STORABLE, can_store
from lockstep.session.env_checks.report import CheckEndedError, Report, describe_value

_TRACED = "its arguments are known only when it runs"


class _Leaf(NamedTuple):
    """Shape and type of an array in a state."""

    shape: tuple[int, ...]
    dtype: Any


def check_device_env(task: str, config: EnvConfig, report: Report) -> None:
    """Check that `reset`, `observe` and `step` are consistent with each other, the spec, and a compiled loop.

    Args:
        task: its name.
        config: of the environment.
        report: receives the findings.
    """
    env = make_device_env(task, config)
    spec = env.spec
    action = jax.ShapeDtypeStruct(*action_type(spec))
    key = jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32"))
    first = _trace(env, "reset", lambda: jax.eval_shape(env.reset, key), report)
    _check_observation(
        _trace(env, "observe", lambda: jax.eval_shape(env.observe, first), report), "observe", spec, report
    )
    if not jax.tree.leaves(first):
        report.fatal("reset returned a state without arrays; return at least one, such as the number of steps so far")
    after = _check_step(env, first, action, key, report)
    _check_states(first, after, "reset", report)
    _check_storable(after, report)
    _check_states(after, _check_step(env, after, action, key, report), "step", report)


def _check_step(env: DeviceEnv, state: Any, action: Any, key: Any, report: Report) -> Any:
    """Check the outputs of `step`; returns the next state."""
    returned: Any = _trace(env, "step", lambda: jax.eval_shape(env.step, state, action, key), report)
    if not isinstance(returned, tuple) or len(returned) != 5:
        report.fatal(
            f"step returned {describe_value(returned)}; return 5: state, observation, reward, terminated, truncated"
        )
    after, observation, reward, terminated, truncated = returned
    _check_observation(observation, "step", env.spec, report)
    for name, value in (("reward", reward), ("terminated", terminated), ("truncated", truncated)):
        wanted = "a float32" if name == "reward" else "a bool"
        if not hasattr(value, "shape") or value.shape != ():
            report.fatal(
                f"step returned {describe_value(value)} as {name}; return {wanted} of shape (), as of one environment"
            )
        if name != "reward" and value.dtype != jnp.bool_:
            report.warn(f"step returned {value.dtype} as {name}; return a bool, such as steps >= limit")
    return after


def _check_observation(value: Any, method: str, spec: EnvSpec, report: Report) -> None:
    if spec.critic_size is not None:
        if not isinstance(value, Observation) or value.critic is None:
            report.fatal(
                f"{method} returned {describe_value(value)} as observation, and spec has "
                f"critic_size={spec.critic_size}; return lockstep.jax.envs.interface.Observation(policy, critic)"
            )
        value, critic = value
        if getattr(critic, "shape", None) != (spec.critic_size,):
            report.fatal(
                f"{method} returned {describe_value(critic)} as the critic's observation; return an array of shape "
                f"({spec.critic_size},)"
            )
    elif isinstance(value, Observation):
        report.fatal(f"{method} returned an Observation of two groups; set spec.critic_size to the size of the second")
    wanted = f"return an array of shape {spec.observation_shape} and type {np.dtype(spec.observation_dtype)}"
    if not hasattr(value, "shape") or not jnp.issubdtype(value.dtype, jnp.number):
        report.fatal(f"{method} returned {describe_value(value)} as observation; {wanted}")
    if value.shape != spec.observation_shape:
        report.fatal(
            f"{method} returned an observation of shape {value.shape}, and spec says {spec.observation_shape}; {wanted}"
        )
    if spec.image is not None and value.dtype != jnp.uint8:
        report.fatal(f"{method} returned an observation of type {value.dtype}, and spec has an image; {wanted}")


def _check_states(before: Any, after: Any, method: str, report: Report) -> None:
    """Check that a state has the structure and types of the previous one, as compiled loops require."""
    names, old = _leaves(before)
    new_names, new = _leaves(after)
    if jax.tree.structure(before) != jax.tree.structure(after):
        gone, new_ones = sorted(set(names) - set(new_names)), sorted(set(new_names) - set(names))
        differences = [f"without state{name}" for name in gone] + [f"with state{name}" for name in new_ones]
        if not differences:
            differences = [f"a {type(after).__name__} instead of a {type(before).__name__}"]
        report.fatal(
            f"step returned a state of another structure than {method}: {', '.join(differences)}; return the same "
            "tuples and dicts, and None in the same places"
        )
    for name, one, other in zip(names, old, new, strict=True):
        if one.shape != other.shape:
            report.fault(
                f"step returned state{name} of shape {other.shape}, and {method} of shape {one.shape}; shapes must not "
                "change"
            )
        elif one.dtype != other.dtype and (lost := _lost(one, other)) is not None:
            report.fault(
                f"step returned state{name} of type {other.dtype}, and {method} of type {one.dtype}{lost}; return the "
                "same type from both"
            )


def _lost(before: _Leaf, after: _Leaf) -> str | None:
    """What becomes of the numbers of `before` as the type of `after`; None if nothing does."""
    if is_key(before) or is_key(after):
        return ""
    cut_off = jnp.promote_types(before.dtype, after.dtype) != after.dtype
    return ", which would be cut off" if cut_off else None


def _check_storable(state: Any, report: Report) -> None:
    """Check that a checkpoint can hold a state of these types."""
    for name, leaf in zip(*_leaves(state), strict=True):
        if not is_key(leaf) and not can_store(np.dtype(leaf.dtype)):
            report.fault(
                f"step returned state{name} of type {leaf.dtype}, which no checkpoint can hold; keep it as {STORABLE}"
            )


def _leaves(state: Any) -> tuple[list[str], list[_Leaf]]:
    """The arrays of a state and their paths."""
    found: Any = jax.tree_util.tree_leaves_with_path(state)
    names = [jax.tree_util.keystr(path) for path, _ in found]
    return names, [_Leaf(tuple(leaf.shape), leaf.dtype) for _, leaf in found]


def _trace(env: DeviceEnv, method: str, call: Callable[[], Any], report: Report) -> Any:
    """The traced outputs of a function; errors of tracing are faults."""
    report.doing = method
    try:
        returned = call()
        _check_no_tracers_kept(env, method, report)
        return returned
    except CheckEndedError:
        raise
    except (jax.errors.TracerBoolConversionError, jax.errors.TracerIntegerConversionError) as error:
        report.fatal(
            f"{method} decides by the value of an array{user_location(error)}, and {_TRACED}; "
            "use jnp.where or jax.lax.cond"
        )
    except (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError) as error:
        report.fatal(f"{method} gives an array to Python or numpy{user_location(error)}, and {_TRACED}; use jax.numpy")
    except Exception as error:
        kind, _, rest = describe_error(error).partition(": ")
        report.fatal(f"{method} raised {kind}: {rest[:300]}")


def _check_no_tracers_kept(env: DeviceEnv, method: str, report: Report) -> None:
    """Refuse arrays stored in `self`: compiled functions run only once as Python."""
    for name, value in getattr(env, "__dict__", {}).items():
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(value)):
            report.fatal(f"{method} keeps an array in self.{name}; put it into the state, and settings alone into self")
