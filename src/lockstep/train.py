"""`python -m lockstep.train ...` and, in Python, `lockstep.train(run)`.

This module is callable: `lockstep.train(run)` calls `lockstep.launch.train.train` (docs/decisions/0015).
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from lockstep.launch.train import train
from lockstep.run import AnyRun

__all__ = ["main", "train"]


def main(arguments: list[str] | None = None) -> int:
    """Run `lockstep train` with `arguments` (default: the command line); returns the exit code."""
    from lockstep.launch.child import die_with_launcher

    die_with_launcher()
    from lockstep.cli import main as cli

    return cli.main(["train", *(sys.argv[1:] if arguments is None else arguments)])


class _Callable(ModuleType):
    """A module type whose call is the function `train`."""

    def __call__(self, run: AnyRun | str | None = None, **options: Any) -> dict[str, Any]:
        return train(run, **options)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by name, as cloudpickle does with ordinary modules."""
        return import_module, (self.__name__,)


if __name__ != "__main__":
    sys.modules[__name__].__class__ = _Callable
else:
    from lockstep.launch.child import exit_process

    exit_process(main())
