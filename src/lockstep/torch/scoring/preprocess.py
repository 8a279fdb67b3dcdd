"""Normalization of raw features as a module, which is part of a policy and of its exported files.

The formulas are those of `lockstep.data.formulas`, which normalizes prepared data. Both, and exported files, compute in
float64 up to the last conversion. They agree up to 1e-6 relative (`tests/golden/test_feature_golden.py`).

Shapes: N rows, F raw features, S numbers after normalization, G features of one type.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from lockstep.data.features import Features
from lockstep.data.formulas import LARGEST, LARGEST_RAW, LIMIT, MIN_POSITIVE, MIN_PROBABILITY, FeatureType, Group

_Constants = Mapping[str, Tensor]
_INPUT: Mapping[FeatureType, tuple[float, float]] = {
    "probability": (MIN_PROBABILITY, 1 - MIN_PROBABILITY),
    "boxcox": (MIN_POSITIVE, math.inf),
    "clip_log": (MIN_POSITIVE, math.inf),
}
"""Bounds of the arguments of logarithms and powers."""
_OUTPUT: Mapping[FeatureType, tuple[float, float]] = {
    "continuous_action": (MIN_POSITIVE - 1, 1 - MIN_POSITIVE),
    "discrete_action": (-LARGEST, LARGEST),
    "do_not_preprocess": (-LARGEST, LARGEST),
}
"""Bounds of the results other than +-LIMIT."""


class Preprocessor(nn.Module):
    """Normalizes the features of a state, or of an action.

    It has no parameters and an empty `state_dict`: its constants follow from `features`. Its buffers must stay float64:
    move it between devices, but convert only the policy's network to another dtype.

    Attributes:
        features: the features and their types.
    """

    def __init__(self, features: Features) -> None:
        super().__init__()
        self.features = features
        self._groups = nn.ModuleList(_Group(group) for group in features.groups)
        outputs = np.concatenate([np.zeros(0, np.int64), *(group.outputs for group in features.groups)])
        in_order = bool((np.diff(outputs) > 0).all())
        self._order: Tensor | None
        """The position of each output [S] among the concatenated outputs of the groups; None if they are in order."""
        self.register_buffer("_order", None if in_order else torch.from_numpy(np.argsort(outputs)), persistent=False)
        self._raw_bounds: Tensor
        self.register_buffer("_raw_bounds", _bounds(-LARGEST_RAW, LARGEST_RAW), persistent=False)

    def forward(self, value: Tensor, presence: Tensor | None = None) -> Tensor:
        """Normalize.

        Args:
            value: [N, F], float64, or float32 if its precision suffices. NaN if the feature is absent.
            presence: [N, F], False or 0 if the feature is absent. None: all are present.

        Returns:
            [N, S] float32; 0 if the feature is absent.
        """
        value = value.double()
        present = ~torch.isnan(value)
        if presence is not None:
            present = present & (presence != 0)
        value = torch.where(present, _clamp(value, self._raw_bounds), 0.0)
        parts = [group(value, present) for group in self._groups]
        if not parts:
            return value.float()
        normal = torch.cat(parts, 1) if len(parts) > 1 else parts[0]
        return normal if self._order is None else normal.index_select(1, self._order)


class _Group(nn.Module):
    def __init__(self, group: Group) -> None:
        super().__init__()
        self.kind: FeatureType = group.type
        self.columns: Tensor
        """[G] among the F raw features."""
        self.register_buffer("columns", torch.from_numpy(group.columns), persistent=False)
        constants = {name: torch.from_numpy(constant) for name, constant in group.constants.items()}
        constants |= {"input": _bounds(*_INPUT.get(self.kind, (-math.inf, math.inf)))}
        constants |= {"output": _bounds(*_OUTPUT.get(self.kind, (-LIMIT, LIMIT)))}
        self._names = tuple(constants)
        for name, constant in constants.items():
            self.register_buffer(name, constant, persistent=False)

    def forward(self, value: Tensor, present: Tensor) -> Tensor:
        """Map values [N, F] without NaN, and their presence [N, F], to the outputs of the group, float32."""
        constants = {name: self.get_buffer(name) for name in self._names}
        value, present = value.index_select(1, self.columns), present.index_select(1, self.columns)
        normal = _FORMULAS[self.kind](value, constants)
        if self.kind == "enum":
            present = present.index_select(1, constants["of"])
        return torch.where(present, normal, 0.0).float()


def _bounds(low: float, high: float) -> Tensor:
    """Two bounds [2]. A tensor stays float64 in ONNX; Python numbers would be rounded to float32."""
    return torch.tensor((low, high), dtype=torch.float64)


def _clamp(x: Tensor, bounds: Tensor) -> Tensor:
    return x.clamp(bounds[0], bounds[1])


def _binary(x: Tensor, _: _Constants) -> Tensor:
    return (x != 0).double()


def _probability(x: Tensor, of: _Constants) -> Tensor:
    p = _clamp(x, of["input"])
    return _clamp(torch.log(p / (1 - p)), of["output"])


def _continuous(x: Tensor, of: _Constants) -> Tensor:
    return _clamp((x - of["mean"]) / of["stddev"], of["output"])


def _boxcox(x: Tensor, of: _Constants) -> Tensor:
    lam = of["boxcox_lambda"]
    y, zero = _clamp(x + of["boxcox_shift"], of["input"]), lam == 0
    power = torch.where(zero, 1.0, lam)
    return _continuous(torch.where(zero, torch.log(y), (y**power - 1) / power), of)


def _quantile(x: Tensor, of: _Constants) -> Tensor:
    return ((x.unsqueeze(-1) - of["left"]) / of["width"]).clamp(0, 1).sum(-1) / of["count"]


def _clip_log(x: Tensor, of: _Constants) -> Tensor:
    return _clamp(torch.log(_clamp(x, of["input"])), of["output"])


def _enum(x: Tensor, of: _Constants) -> Tensor:
    return (x.index_select(1, of["of"]) == of["values"]).double()


def _continuous_action(x: Tensor, of: _Constants) -> Tensor:
    low, high = of["min_value"], of["max_value"]
    return _clamp(2 * (x - low) / (high - low) - 1, of["output"])


def _discrete_action(x: Tensor, of: _Constants) -> Tensor:
    return _clamp(x - of["min_value"], of["output"])


def _identity(x: Tensor, of: _Constants) -> Tensor:
    return _clamp(x, of["output"])


_FORMULAS: Mapping[FeatureType, Callable[[Tensor, _Constants], Tensor]] = {
    "binary": _binary,
    "probability": _probability,
    "continuous": _continuous,
    "boxcox": _boxcox,
    "quantile": _quantile,
    "clip_log": _clip_log,
    "enum": _enum,
    "continuous_action": _continuous_action,
    "discrete_action": _discrete_action,
    "do_not_preprocess": _identity,
}
