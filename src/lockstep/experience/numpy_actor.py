"""Linear and recurrent layers in numpy: for few rows on a CPU they take a third of a framework's time.

Shapes: N rows, O numbers of an observation, P parameters of the action distribution, I inputs and H units of a
recurrent layer, A numbers of the actor's state.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Self

import numpy as np

Layer = tuple[np.ndarray, np.ndarray]
"""Weight [numbers in, numbers out] and bias [numbers out]."""


def _relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


def _elu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, np.exp(np.minimum(x, 0)) - 1)  # expm1 takes twice as long


def _silu(x: np.ndarray) -> np.ndarray:
    half = np.float32(0.5) * x
    return half + half * np.tanh(half)  # x sigmoid(x), without an exponential that overflows


_ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "tanh": np.tanh,
    "relu": _relu,
    "elu": _elu,
    "silu": _silu,
}


class NumpyActor:
    """Compute distribution parameters in numpy, from linear layers with an activation between them.

    Arrays that share memory with a framework's parameters are always the newest; others are set by `replace`. A leading
    axis of shards is not merged into the matrix product: its shape does not depend on the number of ranks.
    """

    def __init__(self, layers: Sequence[Layer], activation: str) -> None:
        self._layers, self._activation = list(layers), _ACTIVATIONS[activation]

    def replace(self, layers: Sequence[Layer]) -> None:
        """Set the parameters."""
        self._layers = list(layers)

    def __call__(self, observation: np.ndarray) -> np.ndarray:
        """[..., N, O] to [..., N, P]."""
        return _linear(observation, self._layers, self._activation)


class NumpyCell(NamedTuple):
    """One recurrent layer with G gates: a GRU if G = 3, an LSTM if G = 4. The equations are those of torch."""

    weight_ih: np.ndarray
    """[I, G H]."""
    weight_hh: np.ndarray
    """[H, G H]."""
    bias_ih: np.ndarray
    """[G H]."""
    bias_hh: np.ndarray
    """[G H]."""

    @classmethod
    def of(cls, parameters: Mapping[str, np.ndarray], layer: int) -> Self:
        """The layer of this number from parameters with torch's names and layouts."""
        return cls(*(parameters[f"{name}_l{layer}"].T for name in cls._fields))

    @property
    def state_size(self) -> int:
        """Numbers of the state: the H outputs and, of an LSTM, the H cells."""
        size = len(self.weight_hh)
        return size if self.weight_hh.shape[1] == 3 * size else 2 * size

    def step(self, x: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Inputs [..., N, I] and states to outputs [..., N, H] and the states after this step."""
        size = len(self.weight_hh)
        projected = x @ self.weight_ih + self.bias_ih
        hidden = state[..., :size] @ self.weight_hh + self.bias_hh
        if self.state_size == size:
            gates = _sigmoid(projected[..., : 2 * size] + hidden[..., : 2 * size])
            reset, update = gates[..., :size], gates[..., size:]
            new = np.tanh(projected[..., 2 * size :] + reset * hidden[..., 2 * size :])
            out = new + update * (state - new)
            return out, out
        projected += hidden
        i, f = _sigmoid(projected[..., :size]), _sigmoid(projected[..., size : 2 * size])
        g, o = np.tanh(projected[..., 2 * size : 3 * size]), _sigmoid(projected[..., 3 * size :])
        cell = f * state[..., size:] + i * g
        out = o * np.tanh(cell)
        return out, np.concatenate([out, cell], -1)


class RecurrentNumpyActor:
    """Compute distribution parameters in numpy, from linear layers, recurrent layers and linear layers.

    Args:
        cells: the recurrent layers.
        layers: after them.
        activation: of the linear layers.
        body: linear layers before them, each with an activation.

    Attributes:
        state_size: A.
    """

    def __init__(
        self, cells: Sequence[NumpyCell], layers: Sequence[Layer], activation: str, *, body: Sequence[Layer] = ()
    ) -> None:
        self._activation = _ACTIVATIONS[activation]
        self.replace(cells, layers, body=body)
        self._ends = np.cumsum([cell.state_size for cell in cells]).tolist()
        self.state_size: int = self._ends[-1]

    def replace(self, cells: Sequence[NumpyCell], layers: Sequence[Layer], *, body: Sequence[Layer] = ()) -> None:
        """Set the parameters."""
        self._cells, self._layers, self._body = list(cells), list(layers), list(body)

    def __call__(self, observation: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """[..., N, O] and states [..., N, A] to [..., N, P] and the states after this step."""
        x = observation
        if self._body:
            x = self._activation(_linear(x, self._body, self._activation))
        if len(self._cells) == 1:
            x, after = self._cells[0].step(x, state)
            return _linear(x, self._layers, self._activation), after
        states: list[np.ndarray] = []
        for cell, before in zip(self._cells, np.split(state, self._ends[:-1], -1), strict=True):
            x, one = cell.step(x, before)
            states.append(one)
        return _linear(x, self._layers, self._activation), np.concatenate(states, -1)


def _linear(x: np.ndarray, layers: Sequence[Layer], activation: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Linear layers with an activation between them."""
    last = len(layers) - 1
    for i, (weight, bias) in enumerate(layers):
        x = x @ weight
        x += bias
        if i < last:
            x = activation(x)
    return x


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.float32(0.5) * (np.float32(1.0) + np.tanh(np.float32(0.5) * x))
