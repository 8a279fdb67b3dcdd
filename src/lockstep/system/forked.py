"""Calls in a copy of this process, which leave this one as it is."""

import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable
from typing import TypeVar, cast

from lockstep.errors import ConfigError

T = TypeVar("T")


def in_fork(function: Callable[[], T], name: str) -> T:
    """The result of a function in a fork; raises the `ConfigError` that it raises.

    Args:
        function: returns something that can be pickled. The fork ends with it, whatever threads it has started.
        name: of what may end its process before, for the error.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def run() -> None:
        try:
            sender.send(function())
        except ConfigError as error:
            sender.send(error)
        sys.stdout.flush()
        os._exit(0)

    process = context.Process(target=run, daemon=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns about forks, which are harmless before it is in use
        process.start()
    sender.close()
    try:
        found: T | ConfigError = receiver.recv()
    except EOFError:
        process.join()
        raise ConfigError(f"{name} ended its process with code {process.exitcode}") from None
    process.join()
    if isinstance(found, ConfigError):
        raise found
    return cast(T, found)
