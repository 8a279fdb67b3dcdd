"""Train a run: `python -m lockstep.train ...` is `lockstep train ...`; `lockstep.train(run)` is for Python callers.

`lockstep.train` is this module, and calling it calls the function `train` of `lockstep.launch.train`
(docs/decisions/0015).
"""

import sys
from types import ModuleType
from typing import Any

from lockstep.launch.train import train
from lockstep.run import AnyRun

__all__ = ["main", "train"]


def main(arguments: list[str] | None = None) -> int:
    """The command line of one rank, or of a run without launcher."""
    from lockstep.launch.child import die_with_launcher

    die_with_launcher()
    from lockstep.cli import main as cli

    return cli.main(["train", *(sys.argv[1:] if arguments is None else arguments)])


class _Callable(ModuleType):
    """A module that is called like its function of the same name."""

    def __call__(self, run: AnyRun, **options: Any) -> dict[str, Any]:
        return train(run, **options)


if __name__ != "__main__":
    sys.modules[__name__].__class__ = _Callable
else:
    from lockstep.launch.child import leave

    leave(main())
