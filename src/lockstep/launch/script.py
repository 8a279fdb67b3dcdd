"""Run a user's script or module as a rank: the launcher starts this module in place of it.

    python -m lockstep.launch.script FILE ARGUMENTS...
    python -m lockstep.launch.script -m MODULE ARGUMENTS...

A script that fails exits at once, with its own code. Python itself would first run the exit handlers; that of
`jax.distributed` waits for all other ranks, up to five minutes, and they wait for this one.
"""

import contextlib
import importlib
import io
import os
import runpy
import sys
import threading
import traceback
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import NoReturn

from lockstep.launch.child import die_with_launcher, exit_now, exit_process

_EXIT_HANDLERS_S = 2.0  # bound on the exit handlers after a failure


def main(words: list[str]) -> None:
    """Run FILE, or -m MODULE, as the main program with the other arguments."""
    die_with_launcher()
    _write_whole_lines()
    module = words[0] == "-m"
    name, sys.argv = words[module], words[module:]
    sys.meta_path.insert(0, _ImportForSkrl())
    try:
        if module:
            sys.path[0] = os.getcwd()  # as `python -m` has it
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(name).resolve().parent)  # as `python FILE` has it
            runpy.run_path(name, run_name="__main__")
    except SystemExit as end:
        code = _exit_code(end)
        if code == 0:
            raise
        _exit_with_deadline(code)
    except BaseException as error:
        _print_traceback(error)
        _exit_with_deadline(130 if isinstance(error, KeyboardInterrupt) else 1)


class _ImportForSkrl(MetaPathFinder):
    """Imports a submodule of JAX that skrl 2.1 uses on several processes, and does not import itself."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "skrl.models.jax":
            with contextlib.suppress(ImportError):
                importlib.import_module("jax.experimental.multihost_utils")


def _write_whole_lines() -> None:
    """Write each line at once: ranks share a terminal, and PYTHONUNBUFFERED writes a line and its end separately."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)


def _exit_code(end: SystemExit) -> int:
    """The exit code as Python defines it: anything but a number is printed, and the code is 1."""
    if end.code is None or isinstance(end.code, int):
        return (end.code or 0) & 0xFF
    print(end.code, file=sys.stderr)
    return 1


def _print_traceback(error: BaseException) -> None:
    """Print the traceback without the frames of this module and of `runpy`."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
        trace = trace.tb_next
    traceback.print_exception(error.with_traceback(trace))


def _exit_with_deadline(code: int) -> NoReturn:
    """Exit with `code`, after the exit handlers or `_EXIT_HANDLERS_S`."""
    timer = threading.Timer(_EXIT_HANDLERS_S, exit_now, (code,))
    timer.daemon = True
    timer.start()
    exit_process(code)


if __name__ == "__main__":
    main(sys.argv[1:])
