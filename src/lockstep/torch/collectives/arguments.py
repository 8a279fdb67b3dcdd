"""Checks of what callers give to the collectives of PyTorch, the same on one rank as on several."""

import math
from collections.abc import Iterable, Iterator, Mapping, MappingView, Set
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lockstep.distributed.arguments import a_type
from lockstep.distributed.signature import layout_code
from lockstep.errors import ConfigError

Named = list[tuple[str, Tensor]]
"""Tensors in the order in which they are sent, each with a name: that of a module, or a place in a list."""


def tensor(value: Any, name: str = "value") -> Tensor:
    """The tensor, without its gradient. Raises `ConfigError` for anything else."""
    if not isinstance(value, Tensor):
        raise ConfigError(f"{name} is {a_type(value)}, not a tensor; give torch.as_tensor({name})")
    return value.detach().resolve_conj().resolve_neg()


def real(value: Any, method: str) -> Tensor:
    """The tensor of real numbers, without its gradient."""
    checked = tensor(value)
    if checked.is_complex():
        raise ConfigError(f"{method} was given {checked.dtype}, and takes real numbers; give its .real and .imag")
    return checked


def rows(value: Any) -> Tensor:
    """The tensor [K, n], without its gradient."""
    checked = tensor(value, "rows")
    if checked.ndim != 2:
        raise ConfigError(f"rows has shape {list(checked.shape)}; give [K, n], one row for each shard of this rank")
    return checked


def flag(value: Any) -> bool:
    """The boolean."""
    if (shape := np.shape(value)) and math.prod(shape) != 1:
        raise ConfigError(f"flag has shape {list(shape)}, but a rank has one flag; give flag.any()")
    return bool(value)


def weighed(value: Any, weight: Any) -> tuple[Tensor, Tensor | None]:
    """Rows [N, *F] and their weights [N], without their gradients; weights on a GPU are not read."""
    checked = real(value, "moments")
    if checked.ndim == 0:
        raise ConfigError("value has no rows: its shape is []; give [N, ...], as value.reshape(1)")
    if weight is None:
        return checked, None
    weights = tensor(weight, "weight")
    if weights.shape != checked.shape[:1]:
        raise ConfigError(
            f"weight has shape {list(weights.shape)} for {len(checked)} rows; give one weight for each row, "
            f"[{len(checked)}]"
        )
    if weights.device.type == "cpu" and not bool(((weights >= 0) & weights.isfinite()).all()):
        raise ConfigError(f"weight={weights.tolist()} must have finite numbers of at least 0")
    return checked, weights


def no_weight(weight: Any) -> None:
    """Raise `ConfigError` unless the weight is the default, beside `FlatParameters`."""
    if not isinstance(weight, int | float) or weight != 1:
        raise ConfigError(
            f"weight={weight} has no effect on FlatParameters: their weight is the first of the sums of store_shard; "
            "give it there"
        )


def parameters(given: Any) -> Named:
    """The parameters that are trained, of a module, a parameter or several, all on one device."""
    listed = _listed(given, "average_gradients_", "policy or policy.parameters()", buffers=False)
    if any(not one.is_leaf for _, one in listed):
        raise ConfigError("a tensor that was computed has no gradient to average; give the parameters themselves")
    trained = [(name, one) for name, one in listed if one.requires_grad]
    devices = {one.device for _, one in trained}
    if len(devices) > 1:
        raise ConfigError(
            f"parameters are on {' and '.join(sorted(map(str, devices)))}; call average_gradients_ once for those of "
            "each device"
        )
    return trained


def tensors(given: Any) -> Named:
    """The parameters and buffers of a module, by name, or the tensors of a list."""
    return _listed(given, "broadcast_", "policy or policy.state_dict().values()", buffers=True)


def by_name(given: Any, prefix: str = "") -> dict[str, Tensor]:
    """Tensors of a module or mapping, which may be nested, in the order of their names."""
    if isinstance(given, nn.Module):
        return dict(sorted(tensors_of(given).items()))
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"check_equal takes a module, or tensors by name, not {a_type(given)}; give policy or "
            "{'weight': policy.weight}"
        )
    named: dict[str, Tensor] = {}
    for key, value in cast("Mapping[object, Any]", given).items():
        name = f"{prefix}{key}"
        found = by_name(value, f"{name}.") if isinstance(value, Mapping) else {name: _comparable(value, name)}
        if twice := named.keys() & found.keys():
            raise ConfigError(f"check_equal was given two tensors of the name {min(twice)}; rename one")
        named |= found
    return dict(sorted(named.items()))


def _comparable(value: Any, name: str) -> Tensor:
    """The tensor whose bits are compared."""
    if isinstance(value, Tensor | np.ndarray | np.generic | int | float | complex):
        try:
            return torch.as_tensor(value)
        except (TypeError, ValueError):  # an array of objects, or an integer beyond 64 bits
            pass
    raise ConfigError(
        f"check_equal compares tensors, arrays and numbers, but {name} is {a_type(cast(object, value))}; leave it out"
    )


def layout(named: Named) -> int:
    """What ranks compare of tensors that are sent as one: names, shapes and types, in their order."""
    return layout_code([(name, one.shape, one.dtype) for name, one in named])


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of a module by name, also those that its `state_dict` leaves out."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _listed(given: Any, method: str, instead: str, *, buffers: bool) -> Named:
    if isinstance(given, nn.Module):
        return sorted(tensors_of(given).items()) if buffers else list(given.named_parameters())
    if isinstance(given, Tensor):  # its rows are no parameters
        return [("", given)]
    if isinstance(given, Set) and not isinstance(given, MappingView):
        raise ConfigError(f"{method} was given a set, which has another order on each rank; give a list")
    several: Any = given
    if isinstance(given, Mapping | Optimizer | str) or not isinstance(given, Iterable):
        raise ConfigError(f"{method} takes a module or tensors, not {a_type(several)}; give {instead}")
    listed: list[Any] = [*several]
    for place, one in enumerate(listed):
        if isinstance(one, nn.Module):
            raise ConfigError(
                f"{method} was given a module as element {place} of a list; give nn.ModuleList([...]), or call it once "
                "for each"
            )
        if not isinstance(one, Tensor):
            raise ConfigError(
                f"{method} takes a module or tensors, but element {place} is {a_type(one)}; give {instead}"
            )
    if not listed and isinstance(several, Iterator):
        raise ConfigError(
            f"{method} was given nothing: a generator, as policy.parameters(), is used up once something has read it, "
            "such as an optimizer; give policy or list(policy.parameters())"
        )
    return [(str(place), one) for place, one in enumerate(listed)]
