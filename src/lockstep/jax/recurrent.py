"""Recurrent layers over sequences of steps in which episodes begin: GRU and LSTM, as `lockstep.torch.recurrent`.

Shapes: L steps of a sequence, N sequences, I inputs, H units, S numbers of a state.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lockstep.jax.encoders import InitStreams, orthogonal
from lockstep.jax.flat import Params

_UNROLLED = 4
"""Steps of a sequence in one iteration of the compiled loop: fewer iterations have less overhead."""


class Sequences(NamedTuple):
    """How rows [L * N], time-major, form sequences."""

    state: Array
    """[N, S] before the first step."""
    begins: Array
    """[L, N]: 1 where an episode begins; the state is 0 there."""


class RecurrentLayers:
    """Layers of GRU or LSTM cells.

    Args:
        kind: of the cells.
        num_inputs: I.
        size: H.
        num_layers: one on top of another.

    Attributes:
        state_size: S: of each layer, the H outputs and, of an LSTM, the H cells.
    """

    def __init__(self, kind: Literal["gru", "lstm"], num_inputs: int, size: int, num_layers: int) -> None:
        self.kind = kind
        self.num_inputs = num_inputs
        self.size = size
        self.num_layers = num_layers
        self.state_size = num_layers * size * (2 if kind == "lstm" else 1)

    def initialize(self, draws: InitStreams) -> dict[str, np.ndarray]:
        """Orthogonal weights, biases 0; with the names and layouts of torch."""
        rows = self.size * (4 if self.kind == "lstm" else 3)
        params: dict[str, np.ndarray] = {}
        for layer in range(self.num_layers):
            inputs = {"weight_ih": self.num_inputs if layer == 0 else self.size, "weight_hh": self.size}
            for name, columns in inputs.items():
                key = f"{name}_l{layer}"
                params[key] = orthogonal((rows, columns), 1.0, draws(key))
            for name in ("bias_ih", "bias_hh"):
                params[f"{name}_l{layer}"] = np.zeros(rows, np.float32)
        return params

    def apply(self, params: Params, x: Array, sequences: Sequences) -> tuple[Array, Array]:
        """Inputs [L, N, I] to outputs [L, N, H] and the states after each step [L, N, S].

        No gradient flows into `sequences.state`.
        """
        states: list[Array] = []
        initial = jax.lax.stop_gradient(sequences.state)
        for layer, state in enumerate(jnp.split(initial, self.num_layers, -1)):
            projected = x @ params[f"weight_ih_l{layer}"].T + params[f"bias_ih_l{layer}"][None, None]

            def step(state: Array, given: tuple[Array, Array], layer: int = layer) -> tuple[Array, Array]:
                projected, begins = given
                state = self._step(params, layer, projected, state * (1.0 - begins)[:, None])
                return state, state

            _, after = jax.lax.scan(step, state, (projected, sequences.begins), unroll=_UNROLLED)
            states.append(after)
            x = after[..., : self.size]
        return x, jnp.concatenate(states, -1)

    def _step(self, params: Params, layer: int, projected: Array, state: Array) -> Array:
        """The state of a layer [N, ...] after a step."""
        size = self.size
        hidden = state[:, :size] @ params[f"weight_hh_l{layer}"].T + params[f"bias_hh_l{layer}"][None]
        if self.kind == "gru":
            gates = jax.nn.sigmoid(projected[:, : 2 * size] + hidden[:, : 2 * size])
            reset, update = gates[:, :size], gates[:, size:]
            new = jnp.tanh(projected[:, 2 * size :] + reset * hidden[:, 2 * size :])
            return new + update * (state - new)
        i, f, g, o = jnp.split(projected + hidden, 4, -1)
        cell = jax.nn.sigmoid(f) * state[:, size:] + jax.nn.sigmoid(i) * jnp.tanh(g)
        return jnp.concatenate([jax.nn.sigmoid(o) * jnp.tanh(cell), cell], -1)


def finite_state(state: Array) -> Array:
    """The state before a rollout, with non-finite values, which follow from non-finite observations, set to 0."""
    return jnp.nan_to_num(state, nan=0.0, posinf=0.0, neginf=0.0)
