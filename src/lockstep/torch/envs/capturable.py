"""Environments whose steps can be CUDA graphs: what they promise, and the check that they keep it."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeGuard, cast

import torch

from lockstep.errors import RunError
from lockstep.torch.envs.interface import SavableTensorEnv, TensorVectorEnv, can_save


class CapturableTensorEnv(SavableTensorEnv, Protocol):
    """A `SavableTensorEnv` whose `step` does all its work on the device, in tensors that stay.

    A graph repeats the kernels of one call, with their addresses and Python numbers, and no Python. So each call of
    `step` launches the same kernels, none depends on a value that Python reads, what changes is written in place, and
    `TensorStep.final` is there in all steps or in none.
    """

    capturable: bool
    """True."""
    generators: Sequence[torch.Generator]
    """All that `step` draws from."""


def can_capture(env: TensorVectorEnv) -> TypeGuard[CapturableTensorEnv]:
    """Whether the steps of `env` can be a graph."""
    return bool(getattr(env, "capturable", False)) and can_save(env)


@contextmanager
def steps_in_place(env: CapturableTensorEnv) -> Generator[None]:
    """Raises `RunError` if a step of `env` within replaces a tensor of its `state` by another.

    A graph would continue to read the old one. Tensors that `state` copies, as of generators, are not compared.
    """
    before, again = list(_tensors(env.state())), list(_tensors(env.state()))
    yield
    for old, copied, new in zip(before, again, _tensors(env.state()), strict=True):
        if old.data_ptr() == copied.data_ptr() != new.data_ptr():
            raise RunError(
                f"a step replaces a tensor {list(new.shape)} of the environments' state, which a CUDA graph does not "
                "see; write into the tensor (`tensor.copy_(value)`), or leave out `capturable = True`"
            )


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    """All tensors of a state, in order."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, dict):
        yield from _tensors([*cast("dict[str, Any]", tree).values()])
    elif isinstance(tree, list | tuple):
        for item in cast("list[Any]", tree):
            yield from _tensors(item)
