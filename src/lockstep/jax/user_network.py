"""A network of the user's own: `network.module` in JAX."""

from collections.abc import Sequence
from typing import Any, cast

import jax
import numpy as np
from jax import Array

from lockstep.distributed.arguments import a_type
from lockstep.envs.load import load_object
from lockstep.envs.spec import EnvSpec
from lockstep.errors import ConfigError
from lockstep.jax.flat import Params


class UserNetwork:
    """The user's `network.module`, constructed as `YourClass(observation_size, num_outputs)`.

    It has `init(seed)`, which returns float32 parameters by name, the same on every machine, and a pure
    `apply(params, observation)`.
    """

    def __init__(self, path: str, observation_size: int, num_outputs: int) -> None:
        self._path = path
        make = load_object(path, "network.module")
        try:
            self._network: Any = make(observation_size, num_outputs)
        except Exception as error:
            raise self._failure(f"({observation_size}, {num_outputs}) failed", error) from error
        if not all(callable(getattr(self._network, name, None)) for name in ("init", "apply")):
            raise ConfigError(
                f"network.module={path} made a {type(self._network).__name__} without init(seed) and "
                "apply(params, observation), which a network for JAX has; see docs/jax.md"
            )

    def initialize(self, seed: int) -> dict[str, np.ndarray]:
        """The checked result of the user's `init`."""
        try:
            given: Any = self._network.init(seed)
        except Exception as error:
            raise self._failure(f": init({seed}) failed", error) from error
        if not isinstance(given, dict) or not given:
            raise ConfigError(
                f"network.module={self._path}: init(seed) gave a {type(cast(Any, given)).__name__}; "
                "it must give a dict of parameters by name"
            )
        named = cast("dict[str, Any]", given)
        for name, value in named.items():
            is_named = isinstance(cast(object, name), str)
            if not is_named or not hasattr(value, "dtype"):
                problem = f"{name} as {a_type(value)}" if is_named else f"a parameter with the name {name!r}, no text"
                raise ConfigError(
                    f"network.module={self._path}: init(seed) gave {problem}; give one dict of arrays by names such as "
                    "'Dense_0.kernel' (of flax: flax.traverse_util.flatten_dict(params, sep='.'))"
                )
        params: dict[str, np.ndarray] = {name: np.array(value) for name, value in named.items()}
        for name, value in params.items():
            if value.dtype != np.float32:
                raise ConfigError(f"network.module={self._path}: init(seed) gave {name} as {value.dtype}; use float32")
        return params

    def apply(self, params: Params, observation: Array) -> Any:
        """The user's `apply`."""
        return self._network.apply(params, observation)

    def check_outputs(self, params: Params, spec: EnvSpec, shapes: str, needed: str) -> None:
        """Check `apply` on 2 observations.

        Args:
            params: of the network.
            spec: of the environments.
            shapes: that it must return.
            needed: why, for the message.

        Raises:
            ConfigError: it fails, returns other shapes, or its outputs do not depend on the parameters.
        """
        observations = np.zeros((2, *spec.observation_shape), spec.observation_dtype)
        try:
            actual = _shapes(jax.eval_shape(self.apply, params, observations))
            learns = actual != shapes or self._has_gradient(params, observations)
        except jax.errors.UnexpectedTracerError as error:
            raise ConfigError(
                f"network.module={self._path}: its apply uses what an earlier call kept, such as the state of a "
                "recurrent layer, and JAX compiles pure functions alone; use network.recurrent without a module, or "
                "env.frame_stack and layers that begin anew in each call"
            ) from error
        except Exception as error:
            raise self._failure(f" failed with observations {list(observations.shape)}", error) from error
        if actual != shapes:
            raise ConfigError(f"network.module={self._path} made {actual} of 2 observations; {needed}: see docs/jax.md")
        if not learns:
            raise ConfigError(
                f"network.module={self._path} gave outputs without gradients; remove jax.lax.stop_gradient from its "
                "apply"
            )

    def _has_gradient(self, params: Params, observations: np.ndarray) -> bool:
        """Whether any output depends on any parameter, near the initial ones: those may be zeros that hide it."""
        random = np.random.default_rng(0)
        near = {name: value + random.standard_normal(value.shape, np.float32) for name, value in params.items()}
        seen = random.integers(1, 10, observations.shape).astype(observations.dtype)
        outputs, pull_back = jax.vjp(lambda params: self._network.apply(params, seen), near)
        weights = jax.tree.map(lambda output: random.standard_normal(output.shape).astype(output.dtype), outputs)
        (gradient,) = pull_back(weights)
        return any(np.any(np.asarray(value) != 0) for value in gradient.values())

    def _failure(self, what: str, error: Exception) -> ConfigError:
        return ConfigError(f"network.module={self._path}{what}: {type(error).__name__}: {error}")


def _shapes(given: Any) -> str:
    """The shape of an array, or those of several, for messages."""
    if isinstance(given, (tuple, list)):
        return ", ".join(_shapes(output) for output in cast("Sequence[Any]", given))
    return str(list(given.shape)) if hasattr(given, "shape") else f"a {type(given).__name__}"
