"""Data-parallel reinforcement learning that takes the same step on every rank."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockstep.errors import ConfigError, RunError
    from lockstep.launch.local import spawn
    from lockstep.run import Run
    from lockstep.world import World, stream, stream_seed

__all__ = ["ConfigError", "Run", "RunError", "World", "spawn", "stream", "stream_seed"]

# Imported on first use: `lockstep --help` needs none of it, and a rank sets itself up before anything heavy.
# `train` is missing on purpose: `lockstep.train` is the module, `from lockstep.train import train` the function.
_HOMES = {
    "ConfigError": "lockstep.errors",
    "Run": "lockstep.run",
    "RunError": "lockstep.errors",
    "World": "lockstep.world",
    "spawn": "lockstep.launch.local",
    "stream": "lockstep.world",
    "stream_seed": "lockstep.world",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'lockstep' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
