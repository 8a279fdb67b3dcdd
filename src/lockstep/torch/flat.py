"""All parameters of a network as views of one buffer, and all gradients as views of another.

One gradient is then one message, one norm and one optimizer step.
"""

import copy
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import vector_to_parameters

from lockstep.distributed.signature import layout_code
from lockstep.errors import ConfigError
from lockstep.torch.products import add_by_autograd, add_in_place

SomeModule = TypeVar("SomeModule", bound=nn.Module)


Place = tuple[nn.Module, str, str, nn.Parameter, int]
"""A part of a module, attribute and whole name of a parameter of it, the parameter, and the address of its numbers."""


class FlatParameters:
    """The parameters of a module (P numbers) and the gradient sums of each local shard, as flat tensors.

    `zero_grad()` of a module or optimizer would drop the views: use `zero_gradient_`. A parameter that is replaced
    afterwards, as by `load_state_dict(assign=True)` or `module.to(...)`, would learn nothing: copy into it.

    Args:
        module: its trained parameters become views of one flat tensor.
        num_shards: K, the gradients that are held.
        num_sums: numbers after each gradient that are summed with it, the weight of the rows first.

    Raises:
        ConfigError: the trained parameters are of several types, on several devices, or shorter than 32 bits; or there
            are none.

    Attributes:
        module_parameters: those of the module that are trained, in its order, views of `params`.
        params: all parameters [P], an `nn.Parameter` whose `.grad` is `gradient`; pass it to the optimizer.
        gradient: their gradients [P]; `backward()` adds to it.
        rows: [K, P + num_sums]: the gradient sum of each local shard, then its other sums, the weight first.
        layout: integer hash of the names and shapes of the parameters, which ranks compare.
    """

    def __init__(self, module: nn.Module, num_shards: int = 1, num_sums: int = 1) -> None:
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self.module_parameters = parameters = [p for _, p in named]
        self.layout = layout_code([(name, p.shape, p.dtype) for name, p in named])
        kinds = {(p.dtype, p.device) for p in parameters}
        if len(kinds) != 1:
            raise ConfigError(f"parameters of one type on one device are needed, not {sorted(map(str, kinds))}")
        if parameters[0].element_size() < 4:
            raise ConfigError(
                f"sums over shards need parameters of 32 bits or more, not {parameters[0].dtype}; keep them in float32 "
                "and compute under torch.autocast"
            )
        self.num_parameters = sum(p.numel() for p in parameters)
        params = torch.cat([p.detach().reshape(-1) for p in parameters])
        self.rows = params.new_zeros(num_shards, self.num_parameters + num_sums)
        # With one local shard, `backward()` writes into the row to send; with several, each gradient is copied once.
        self.gradient = self.rows[0, : self.num_parameters] if num_shards == 1 else torch.zeros_like(params)
        offset = 0
        for parameter in parameters:
            part = slice(offset, offset + parameter.numel())
            parameter.data = params[part].view_as(parameter)
            parameter.grad = self.gradient[part].view_as(parameter)
            add_in_place(parameter)
            offset = part.stop
        self.params = nn.Parameter(params)
        self.params.grad = self.gradient
        self._views = [(self.params, self.gradient), *((p, cast(Tensor, p.grad)) for p in parameters)]
        self._places = _places(module, parameters)
        self._next_place = -1
        self._stored: set[int] | None = None
        """The local shards that `store_shard` stored since the last step; None where it is not in use."""

    def zero_gradient_(self) -> None:
        """Set the gradient to 0; the views stay."""
        self.gradient.zero_()

    def check_views(self) -> None:
        """Raise `ConfigError` if a parameter has a gradient of its own, which nothing would send, or was replaced.

        Whether parameters were replaced is looked up for all of them at the first call, and for one in turn at each
        later one: that costs a step nothing.
        """
        for parameter, view in self._views:
            if parameter.grad is not view:
                raise ConfigError(
                    "a gradient is no view of FlatParameters any more: zero_grad() of a module or optimizer dropped "
                    "it; use flat.zero_gradient_() in its place"
                )

        first = self._next_place < 0
        for place in self._places if first else self._places[self._next_place : self._next_place + 1]:
            _check_place(*place)
        self._next_place = 0 if first else (self._next_place + 1) % len(self._places)

    def watch(self, computed: Callable[[int], None]) -> None:
        """From now on, call `computed` with the number of a parameter when a backward pass has added its gradient."""
        for number, parameter in enumerate(self.module_parameters):
            add_by_autograd(parameter)
            parameter.register_post_accumulate_grad_hook(partial(_call, computed, number))

    def store_shard(self, shard: int, sums: Tensor) -> None:
        """After `backward()`: store the gradient of local shard `shard` and its `sums` [num_sums].

        Store every local shard before each `average_gradients_`. For one without rows, the gradient is that of
        `zero_gradient_()` and the sums are zeros.

        Raises:
            ConfigError: there is no such shard, or there are not `num_sums` sums.
        """
        num_shards, num_sums = len(self.rows), self.rows.shape[1] - self.num_parameters
        if not 0 <= shard < num_shards:
            raise ConfigError(f"shard={shard} is no local shard: there are {num_shards}, counted from 0")
        if math.prod(np.shape(sums)) != num_sums:
            raise ConfigError(f"sums has shape {list(np.shape(sums))}, and FlatParameters has num_sums={num_sums}")
        # A graph that the user captures stores shards without this method.
        is_captured = self.rows.is_cuda and torch.cuda.is_current_stream_capturing()
        self._stored = None if is_captured else {*(self._stored or ()), shard}
        write_shard(self, shard, sums)

    def check_stored(self) -> None:
        """Raise `ConfigError` if `store_shard` left out a local shard since the last call: it would count again.

        Where nothing ever called `store_shard`, shards are stored by other means, and nothing is known.
        """
        if self._stored is None:
            return
        missing = sorted({*range(len(self.rows))} - self._stored)
        self._stored = set()
        if missing:
            num_sums = self.rows.shape[1] - self.num_parameters
            raise ConfigError(
                f"no gradient was stored for local shard {', '.join(map(str, missing))} since the last step, whose "
                "gradient would count again; for a shard without rows: flat.zero_gradient_(), then "
                f"flat.store_shard(shard, torch.zeros({num_sums}))"
            )


def write_shard(flat: FlatParameters, shard: int, sums: Tensor) -> None:
    """`store_shard` unchecked: of a step that is captured, Python runs once, which `check_stored` would miss."""
    row = flat.rows[shard]
    if len(flat.rows) > 1:
        row[: flat.num_parameters] = flat.gradient
    row[flat.num_parameters :] = sums


def _places(module: nn.Module, parameters: list[nn.Parameter]) -> list[Place]:
    """Where the module and its parts hold these parameters; one that is shared has several places."""
    known = {id(p) for p in parameters}
    return [
        (part, leaf, f"{path}.{leaf}".lstrip("."), p, p.data_ptr())
        for path, part in cast("Iterator[tuple[str, nn.Module]]", module.named_modules())
        for leaf, p in part.named_parameters(recurse=False, remove_duplicate=False)
        if id(p) in known
    ]


def _check_place(part: nn.Module, leaf: str, name: str, parameter: nn.Parameter, at: int) -> None:
    """Raise `ConfigError` unless the module still holds this parameter, with its numbers at this address."""
    if getattr(part, leaf, None) is not parameter or parameter.data_ptr() != at:
        raise ConfigError(
            f"{name} is no view of FlatParameters any more, so that nothing updates it: it was replaced, as by "
            "load_state_dict(assign=True), module.to(...) or p.data = ...; copy into it with p.data.copy_(...), or "
            "make FlatParameters again"
        )


def _call(computed: Callable[[int], None], number: int, _: Tensor) -> None:
    computed(number)


def frozen_copy(module: SomeModule, params: Tensor) -> SomeModule:
    """A copy of a module whose parameters are views of `params` and are not trained.

    Args:
        module: the module to copy.
        params: its parameters as a flat tensor, in the order of `module.parameters()`.
    """
    copied = copy.deepcopy(module)
    vector_to_parameters(params, copied.parameters())
    return copied.requires_grad_(False)


def divisor_of_gradients(weight: Tensor) -> Tensor:
    """A weight, or infinity if it is 0: any finite sum divided by it is 0."""
    return torch.threshold(weight, 0.0, torch.inf)  # one operation: this is a part of every gradient step


def divisor(weight: Tensor) -> Tensor:
    """A weight, or the smallest positive number if it is 0: an empty sum divided by it stays 0."""
    return weight.clamp(min=torch.finfo(weight.dtype).tiny)
