"""One rank that runs somebody's script, module or program: what its launcher starts instead of it.

    python -m lockstep.launch.script FILE ARGUMENTS...
    python -m lockstep.launch.script -m MODULE ARGUMENTS...

A script that fails ends at once, with its own code. Alone, Python would first run what was registered for the end of
the process; `jax.distributed` waits there for all other ranks, up to five minutes, and they for this one.
"""

import io
import os
import runpy
import sys
import threading
import traceback
from pathlib import Path
from typing import NoReturn

from lockstep.launch.child import die_with_launcher, exit_process

_EXIT_HANDLERS_S = 2.0  # for what was registered for the end, after a failure


def main(words: list[str]) -> None:
    """Run what the words name as the main program; returns if it does."""
    die_with_launcher()
    _write_whole_lines()
    module = words[0] == "-m"
    name, sys.argv = words[module], words[module:]
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


def _write_whole_lines() -> None:
    """Ranks share a terminal, and PYTHONUNBUFFERED would write a line and its end apart: another's comes between."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)


def _exit_code(end: SystemExit) -> int:
    """The exit code as Python has it: what is no number is told, and is a failure."""
    if end.code is None or isinstance(end.code, int):
        return (end.code or 0) & 0xFF
    print(end.code, file=sys.stderr)
    return 1


def _print_traceback(error: BaseException) -> None:
    """The traceback, without what ran the script."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
        trace = trace.tb_next
    traceback.print_exception(error.with_traceback(trace))


def _exit_with_deadline(code: int) -> NoReturn:
    """End with `code`: what is registered for the end has a moment, and then the process is gone all the same."""
    timer = threading.Timer(_EXIT_HANDLERS_S, _exit, (code,))
    timer.daemon = True
    timer.start()
    exit_process(code)


def _exit(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
