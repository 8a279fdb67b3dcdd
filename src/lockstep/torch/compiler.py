"""Failures of the compiler behind `torch.compile`, and the processes that it leaves then."""

import functools
import sys
import threading
import time
from typing import Any

import psutil

from lockstep.errors import RunError

_END_S = 5.0


def compiler_failure(error: BaseException) -> RunError | None:
    """What to report in place of an error of the compiler; None for other errors. Its processes are ended."""
    dynamo: Any = sys.modules.get("torch._dynamo.exc")  # imported by the first compilation
    if dynamo is None or not isinstance(error, dynamo.BackendCompilerFailed | KeyboardInterrupt):
        return None
    _end_compilers()
    if isinstance(error, KeyboardInterrupt):
        return None
    return RunError(f"compile=true: the compiler failed ({_reason(str(error))}); leave compile=true out, or mend it")


def _reason(message: str) -> str:
    """The first line of the output of a compiler, or of an error, that says what is wrong."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return next((line for line in lines if "error:" in line), lines[0] if lines else "without a message")


def _end_compilers() -> None:
    """Drop the kernels that wait for a compiler, and kill the compilers that run.

    They would run for minutes, and take the place of the ones that a signal ended.
    """
    compiling: Any = sys.modules.get("torch._inductor.async_compile")
    if compiling is None or not compiling.AsyncCompile.pool.cache_info().currsize:
        return
    pool = compiling.AsyncCompile.pool()
    compiling.AsyncCompile.pool.cache_clear()  # a later run in this process compiles in another
    closing = threading.Thread(target=functools.partial(pool.shutdown, cancel_futures=True), daemon=True)
    closing.start()
    until = time.monotonic() + _END_S
    while closing.is_alive() and time.monotonic() < until:
        _kill_compilers()
        closing.join(0.05)


def _kill_compilers() -> None:
    """Kill the children of this process that compile a file of Inductor's cache, and their own children."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    for child in psutil.Process().children():
        try:
            if any(cache_dir() in word for word in child.cmdline()):
                for process in (*child.children(recursive=True), child):
                    process.kill()
        except psutil.Error:  # it has ended
            continue
