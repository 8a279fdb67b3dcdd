"""Data-parallel reinforcement learning that takes the same step on every rank."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockstep.errors import ConfigError, RunError
    from lockstep.launch.local import spawn
    from lockstep.run import Run
    from lockstep.torch.checkpoint_manager import CheckpointManager
    from lockstep.torch.comm import Comm
    from lockstep.train import train
    from lockstep.world import World, stream, stream_seed

    __version__: str

__all__ = [
    "CheckpointManager",
    "Comm",
    "ConfigError",
    "Run",
    "RunError",
    "World",
    "__version__",
    "spawn",
    "stream",
    "stream_seed",
    "train",
]

# Imported on first use: `lockstep --help` needs none of it, and a rank sets itself up before anything heavy.
_HOMES = {
    "CheckpointManager": "lockstep.torch.checkpoint_manager",
    "Comm": "lockstep.torch.comm",
    "ConfigError": "lockstep.errors",
    "Run": "lockstep.run",
    "RunError": "lockstep.errors",
    "World": "lockstep.world",
    "spawn": "lockstep.launch.local",
    "stream": "lockstep.world",
    "stream_seed": "lockstep.world",
}


def __getattr__(name: str) -> Any:
    if name == "train":
        return importlib.import_module("lockstep.train")  # a module that can be called: docs/decisions/0015
    if name == "__version__":
        value = importlib.import_module("importlib.metadata").version("lockstep-rl")
    elif name in _HOMES:
        try:
            value = getattr(importlib.import_module(_HOMES[name]), name)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise ModuleNotFoundError(
                f"lockstep.{name} is for PyTorch, which is not installed: pip install 'lockstep-rl[torch]'; "
                f"with JAX, write: from {_HOMES[name].replace('torch', 'jax')} import {name}",
                name="torch",
            ) from error
    else:
        raise AttributeError(f"module 'lockstep' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
