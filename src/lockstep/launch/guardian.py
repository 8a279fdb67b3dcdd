"""Ends the ranks' process groups when their launcher is killed (SIGKILL, out of memory).

Run by path in a separate process: `guardian.py LAUNCHER_PID [RUN_DIR]`. It reads process groups from standard input,
one per line, `-N` for one that is gone. When the launcher ends, the pipe is closed: the guardian then ends the groups
that are left and removes their partial files.
"""

import contextlib
import os
import select
import signal
import sys
import time
from pathlib import Path

_GONE_S = 5.0  # bound on the end of killed processes; one that waits for a disk is slow


def main() -> None:
    """Wait for the end of the launcher, then end its ranks."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    sys.path.insert(0, str(Path(__file__).parents[2]))  # now, while the source is the one that the launcher has
    from lockstep.launch.rank import any_alive
    from lockstep.record.partial_files import remove_partial_files

    groups = _guarded(int(sys.argv[1]))
    for rank in groups:  # first the ranks: one that handles SIGTERM would tell those of other nodes to end
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(rank, signal.SIGKILL)
    _signal(groups, signal.SIGTERM)
    if groups:
        time.sleep(0.5)  # for multiprocessing's resource trackers: they ignore SIGTERM and remove leaked shared memory
    _signal(groups, signal.SIGKILL)
    until = time.monotonic() + _GONE_S
    while groups and any_alive(groups) and time.monotonic() < until:
        time.sleep(0.02)
    if len(sys.argv) > 2:
        remove_partial_files(Path(sys.argv[2]))


def _guarded(launcher: int) -> set[int]:
    """The groups that are left when the launcher ends."""
    groups: set[int] = set()
    while True:
        # The timeout is for a pipe that a fork of the launcher still holds open.
        if select.select([0], [], [], 1.0)[0]:
            data = os.read(0, 1 << 16)
            if not data:
                return groups
            for group in map(int, data.split()):
                (groups.add if group > 0 else groups.discard)(abs(group))
        elif os.getppid() != launcher:
            return groups


def _signal(groups: set[int], number: int) -> None:
    for group in tuple(groups):
        try:
            os.killpg(group, number)
        except ProcessLookupError:
            groups.discard(group)
        except PermissionError:
            pass


if __name__ == "__main__":
    main()
