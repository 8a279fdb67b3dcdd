"""Start the process of a run in a slot of this machine."""

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

from lockstep.cli.sweep.slots import Slot
from lockstep.launch.child import launcher_variables
from lockstep.launch.search_path import search_path


class Process(Protocol):
    """A run that was started, here or elsewhere."""

    @property
    def pid(self) -> int | None:
        """Its process id, if it is one of this machine."""
        ...

    def poll(self) -> int | None:
        """The exit code, minus the signal that killed it; None while it runs."""
        ...

    def send_signal(self, number: int, /) -> None:
        """Signal the run's launcher, which ends its ranks."""
        ...


StartProcess = Callable[[list[str], Slot, Path], Process]
"""Starts a command in a slot; its output is appended to the file."""


def start_here(command: list[str], slot: Slot, log_file: Path) -> Process:
    """Start a command on the cores and GPUs of a slot."""
    variables = {} if slot.gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(slot.gpus)}
    with log_file.open("ab") as log:
        return _bound_to(slot.cores, lambda: start_run(command, log, variables))


def start_run(command: list[str], log: BinaryIO, variables: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start the command of a run, which ends with this process, with environment variables of its own."""
    environment = {**os.environ, "PYTHONPATH": search_path(), **launcher_variables()}
    environment.pop("LOCKSTEP_TERMINAL_FD", None)
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env={**environment, **(variables or {})},
        start_new_session=True,  # a Ctrl-C of the terminal reaches it once, through us
    )


def _bound_to(cores: Sequence[int], start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """Start a process that is bound to some cores: it inherits them from this thread."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        return start()
    finally:
        os.sched_setaffinity(0, before)
