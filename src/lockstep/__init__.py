"""Data-parallel reinforcement learning that takes the same step on every rank.

The public names are listed in `__init__.pyi` and described in docs/api.md. They are imported on first use:
`lockstep --help` needs none of them, and a rank sets up its process before it imports torch or JAX.
"""

import copyreg
import importlib
import sys
from typing import Any

import lazy_loader

_import_public, _, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]

# lazy_loader gives this module a type of its own, which pickle does not know: a function that names `lockstep` can then
# be sent to other processes, as Ray and joblib do with cloudpickle.
copyreg.pickle(type(sys.modules[__name__]), lambda module: (importlib.import_module, (module.__name__,)))


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("lockstep-rl")
    if name == "train":
        return importlib.import_module("lockstep.train")  # a module that can be called: docs/decisions/0015
    try:
        return _import_public(name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(
            f"lockstep.{name} is for PyTorch, which is not installed: pip install 'lockstep-rl[torch]'; "
            f"with JAX, write: from lockstep.jax import {name}",
            name="torch",
        ) from error


def __dir__() -> list[str]:
    return __all__
