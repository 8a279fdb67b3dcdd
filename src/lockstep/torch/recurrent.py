"""Recurrent layers over sequences of steps in which episodes begin: GRU and LSTM.

Parameters and equations are those of `torch.nn.GRU` and `torch.nn.LSTM`, which cannot reset a state in the middle of a
sequence. On a CPU the hand-written backward pass takes a quarter of the time of one recorded step by step.

Shapes: L steps of a sequence, N sequences, I inputs, H units, S numbers of a state.
"""

from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


@dataclass(frozen=True, slots=True)
class Sequences:
    """How rows [L * N], time-major, form sequences."""

    state: Tensor
    """[N, S] before the first step."""
    begins: Tensor
    """[L, N]: 1 where an episode begins; the state is 0 there."""


class RecurrentLayers(nn.Module):
    """Layers of GRU or LSTM cells.

    Args:
        kind: of the cells.
        num_inputs: I.
        size: H.
        num_layers: one on top of another.

    Attributes:
        state_size: S: of each layer, the H outputs and, of an LSTM, the H cells.
        num_features: H.
    """

    def __init__(self, kind: Literal["gru", "lstm"], num_inputs: int, size: int, num_layers: int) -> None:
        super().__init__()
        self.kind = kind
        self.num_inputs = num_inputs
        self.num_features = size
        self.num_layers = num_layers
        self.state_size = num_layers * size * (2 if kind == "lstm" else 1)
        gates = 4 if kind == "lstm" else 3
        for layer in range(num_layers):
            inputs = num_inputs if layer == 0 else size
            shapes = {"weight_ih": (inputs,), "weight_hh": (size,), "bias_ih": (), "bias_hh": ()}
            for name, columns in shapes.items():  # the names and layouts of torch.nn.GRU and torch.nn.LSTM
                self.register_parameter(f"{name}_l{layer}", nn.Parameter(torch.zeros(gates * size, *columns)))

    def initialize(self, generator: torch.Generator) -> None:
        """Orthogonal weights, biases 0."""
        for name, parameter in self.named_parameters():
            if name.startswith("weight"):
                nn.init.orthogonal_(parameter, generator=generator)
            else:
                nn.init.zeros_(parameter)

    def forward(self, x: Tensor, sequences: Sequences) -> tuple[Tensor, Tensor]:
        """Inputs [L, N, I] to outputs [L, N, H] and the states after each step [L, N, S].

        Gradients flow back to the first step of each sequence or episode, and not into `sequences.state`.
        """
        if torch.compiler.is_compiling():
            return self._stepwise(x, sequences)
        keep = (1.0 - sequences.begins).unsqueeze(-1)
        states: list[Tensor] = []
        for layer, state in enumerate(self._split(sequences.state)):
            weight_ih, weight_hh, bias_ih, bias_hh = self._parameters_of(layer)
            if self.kind == "gru":
                projected = F.linear(x, weight_ih, bias_ih)
                x = cast(Tensor, _Gru.apply(projected, weight_hh, bias_hh, state, keep))
                states.append(x.detach())
            else:
                projected = F.linear(x, weight_ih, bias_ih + bias_hh)
                x, cell = cast("tuple[Tensor, Tensor]", _Lstm.apply(projected, weight_hh, *state.chunk(2, -1), keep))
                states += [x.detach(), cell]
        return x, torch.cat(states, -1)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs [N, I] and states [N, S] to outputs [N, H] and the states after this step."""
        states: list[Tensor] = []
        for layer, before in enumerate(self._split(state)):
            weight_ih, weight_hh, bias_ih, bias_hh = self._parameters_of(layer)
            projected = F.linear(x, weight_ih, bias_ih)
            if self.kind == "gru":
                reset, update, new = projected.chunk(3, -1)
                from_reset, from_update, from_new = F.linear(before, weight_hh, bias_hh).chunk(3, -1)
                update = torch.sigmoid(update + from_update)
                new = torch.tanh(new + torch.sigmoid(reset + from_reset) * from_new)
                x = torch.lerp(new, before, update)
                states.append(x)
            else:
                before, cell = before.chunk(2, -1)
                gates = projected + F.linear(before, weight_hh, bias_hh)
                i, f, g, o = gates.chunk(4, -1)
                cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
                x = torch.sigmoid(o) * torch.tanh(cell)
                states += [x, cell]
        return x, torch.cat(states, -1)

    def _stepwise(self, x: Tensor, sequences: Sequences) -> tuple[Tensor, Tensor]:
        """`forward` by `step`."""
        outputs: list[Tensor] = []
        states: list[Tensor] = []
        state = sequences.state
        for x_t, begins in zip(x.unbind(), sequences.begins.unbind(), strict=True):
            output, state = self.step(x_t, state * (1.0 - begins).unsqueeze(-1))
            outputs.append(output)
            states.append(state)
        return torch.stack(outputs), torch.stack(states)

    def _split(self, state: Tensor) -> tuple[Tensor, ...]:
        """The state of each layer."""
        return torch.chunk(state, self.num_layers, -1)

    def _parameters_of(self, layer: int) -> tuple[Tensor, ...]:
        return tuple(getattr(self, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))


class _Gru(torch.autograd.Function):
    """The recurrence of a GRU.

    h = keep h_{t-1};  [r, z] = sigmoid(p_rz + W_rz h + b_rz);  n = tanh(p_n + r (W_n h + b_n));  h_t = n + z (h - n)

    The gradient with respect to W sums products over all steps: one matrix product, after the loop over the steps.
    """

    @staticmethod
    def forward(ctx: Any, projected: Tensor, weight: Tensor, bias: Tensor, state: Tensor, keep: Tensor) -> Tensor:
        steps, count, _ = projected.shape
        size = state.shape[-1]
        before = projected.new_empty(steps, count, size)
        hidden = projected.new_empty(steps, count, 3 * size)
        gates = projected.new_empty(steps, count, 2 * size)
        new, after = torch.empty_like(before), torch.empty_like(before)
        transposed = weight.T
        for t in range(steps):
            torch.mul(state, keep[t], out=before[t])
            torch.addmm(bias, before[t], transposed, out=hidden[t])
            torch.add(projected[t, :, : 2 * size], hidden[t, :, : 2 * size], out=gates[t]).sigmoid_()
            torch.addcmul(projected[t, :, 2 * size :], gates[t, :, :size], hidden[t, :, 2 * size :], out=new[t]).tanh_()
            state = torch.lerp(new[t], before[t], gates[t, :, size:], out=after[t])
        ctx.save_for_backward(weight, before, hidden[..., 2 * size :], gates, new, keep)
        return after

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, None, None]:
        weight, before, from_new, gates, new, keep = ctx.saved_tensors
        steps, count, size = before.shape
        reset, update = gates.chunk(2, -1)
        # The derivatives of h_t with respect to the inputs of the gates r, z and n, for all steps at once.
        of_new = (1.0 - update) * (1.0 - new.square())
        of_update = (before - new) * update * (1.0 - update)
        of_reset = of_new * from_new * reset * (1.0 - reset)
        factors = torch.stack([of_reset, of_update, of_new * reset], 2)
        through = update * keep
        to_hidden = torch.empty_like(factors)
        to_after = torch.empty_like(before)
        carried = torch.zeros_like(before[0])
        for t in reversed(range(steps)):
            torch.add(gradients[0][t], carried, out=to_after[t])
            torch.mul(factors[t], to_after[t].unsqueeze(1), out=to_hidden[t])
            carried = to_hidden[t].view(count, -1) @ weight
            carried.mul_(keep[t]).addcmul_(to_after[t], through[t])
        rows = to_hidden.view(steps * count, 3 * size)
        to_weight = rows.T @ before.view(steps * count, size)
        to_projected = torch.cat([to_hidden[:, :, :2].flatten(2), to_after * of_new], -1)
        return to_projected, to_weight, rows.sum(0), None, None


class _Lstm(torch.autograd.Function):
    """The recurrence of an LSTM; returns outputs, and cells without a gradient.

    h = keep h_{t-1};  c = keep c_{t-1};  [i, f, g, o] = p + W h, with sigmoid, and tanh for g
    c_t = f c + i g;   h_t = o tanh(c_t)
    """

    @staticmethod
    def forward(
        ctx: Any, projected: Tensor, weight: Tensor, state: Tensor, cell: Tensor, keep: Tensor
    ) -> tuple[Tensor, Tensor]:
        steps, count, _ = projected.shape
        size = state.shape[-1]
        gates = torch.empty_like(projected)
        before, cell_before, after, cells, bounded = (projected.new_empty(steps, count, size) for _ in range(5))
        transposed = weight.T
        for t in range(steps):
            torch.mul(state, keep[t], out=before[t])
            torch.mul(cell, keep[t], out=cell_before[t])
            torch.addmm(projected[t], before[t], transposed, out=gates[t])
            gates[t, :, : 2 * size].sigmoid_()
            gates[t, :, 2 * size : 3 * size].tanh_()
            gates[t, :, 3 * size :].sigmoid_()
            i, f, g, o = gates[t].chunk(4, -1)
            cell = torch.mul(i, g, out=cells[t]).addcmul_(f, cell_before[t])
            state = torch.mul(o, torch.tanh(cell, out=bounded[t]), out=after[t])
        ctx.save_for_backward(weight, before, cell_before, gates, bounded, keep)
        ctx.mark_non_differentiable(cells)
        return after, cells

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor, Tensor, None, None, None]:
        weight, before, cell_before, gates, bounded, keep = ctx.saved_tensors
        steps, count, size = before.shape
        i, f, g, o = gates.chunk(4, -1)
        # The derivatives of c_t with respect to the inputs of the gates i, f and g, and of h_t to c_t and to o's.
        factors = torch.stack([g * i * (1.0 - i), cell_before * f * (1.0 - f), i * (1.0 - g.square())], 2)
        dh_dc = o * (1.0 - bounded.square())
        dh_do = bounded * o * (1.0 - o)
        through = f * keep
        to_gates = torch.empty_like(gates).view(steps, count, 4, size)
        carried, carried_cell = torch.zeros_like(before[0]), torch.zeros_like(before[0])
        for t in reversed(range(steps)):
            to_after = gradients[0][t] + carried
            to_cell = torch.addcmul(carried_cell, to_after, dh_dc[t])
            torch.mul(factors[t], to_cell.unsqueeze(1), out=to_gates[t, :, :3])
            torch.mul(to_after, dh_do[t], out=to_gates[t, :, 3])
            carried = (to_gates[t].view(count, -1) @ weight).mul_(keep[t])
            carried_cell = to_cell.mul_(through[t])
        rows = to_gates.view(steps * count, 4 * size)
        return rows.view_as(gates), rows.T @ before.view(steps * count, size), None, None, None


def finite_state(state: Tensor) -> Tensor:
    """The state before a rollout; what an observation that was not finite has made not finite becomes 0."""
    return state.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
