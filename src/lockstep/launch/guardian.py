"""Ends the ranks' process groups when their launcher is killed (SIGKILL, out of memory).

Run by path in a separate process: `guardian.py LAUNCHER_PID [RUN_DIR]`. It reads process groups from standard input,
one per line, `-N` for one that is gone, 0 when the launcher is about to end by itself. When the launcher ends, the pipe
is closed: the guardian then ends the groups that are left and removes their partial files.
"""

import contextlib
import os
import select
import signal
import sys
import time
import types
from pathlib import Path

_GONE_S = 5.0  # bound on the end of killed processes; one that waits for a disk is slow


def main() -> None:
    """Wait for the end of the launcher, then end its ranks."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    # Now, while the source is the one that the launcher has. The real package imports others, which may lie where only
    # the launcher looks: in a folder of the user's, or in PYTHONPATH.
    package = types.ModuleType("lockstep")
    package.__path__ = [str(Path(__file__).parents[1])]
    sys.modules["lockstep"] = package
    from lockstep.launch.rank import any_alive
    from lockstep.record.partial_files import remove_partial_files

    launcher = int(sys.argv[1])
    groups, killed = _guarded(launcher)
    if killed:
        groups |= _started_by(launcher)
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


def _guarded(launcher: int) -> tuple[set[int], bool]:
    """The groups that are left when the launcher ends, and whether it was killed."""
    groups: set[int] = set()
    killed = True
    while True:
        # The timeout is for a pipe that a fork of the launcher still holds open.
        if select.select([0], [], [], 1.0)[0]:
            data = os.read(0, 1 << 16)
            if not data:
                return groups, killed
            for group in map(int, data.split()):
                killed = killed and group != 0
                (groups.add if group > 0 else groups.discard)(abs(group))
        elif os.getppid() != launcher:
            return groups, killed


def _started_by(launcher: int) -> set[int]:
    """The ranks of a launcher, by their environment: it may have been killed between the start and the report of one.

    Children of a script inherit the variable; of these, only leaders of a session of their own are taken for ranks.
    """
    variable = f"LOCKSTEP_LAUNCHER_PID={launcher}".encode()
    ranks: set[int] = set()
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError):  # it has ended, or belongs to another user
                environment = Path("/proc", name, "environ").read_bytes()
                if variable in environment.split(b"\0") and os.getsid(int(name)) == int(name):
                    ranks.add(int(name))
    return ranks


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
