"""Let other libraries use the process group that is open, instead of opening one with a fixed backend."""

import contextlib
from collections.abc import Generator
from typing import Any

import torch
import torch.distributed as dist


@contextlib.contextmanager
def lend_process_group(device: torch.device) -> Generator[None]:
    """Within the context, `init_process_group` keeps the open group: skrl, rl_games and rsl_rl call it with nccl.

    Args:
        device: of this rank. On a CPU, their calls of `torch.cuda.set_device` do nothing.
    """

    def keep_open_group(*_args: Any, **_options: Any) -> None:
        assert dist.is_initialized(), "a library opened the process group before Lockstep did"

    def keep_device(*_args: Any) -> None: ...

    replaced: list[tuple[Any, str, Any]] = [(dist, "init_process_group", keep_open_group)]
    if device.type == "cpu":
        replaced.append((torch.cuda, "set_device", keep_device))
    originals = [getattr(module, name) for module, name, _ in replaced]
    for module, name, function in replaced:
        setattr(module, name, function)
    try:
        yield
    finally:
        for (module, name, _), original in zip(replaced, originals, strict=True):
            setattr(module, name, original)
