"""Ends the ranks' process groups when their launcher dies without being able to (SIGKILL, out of memory).

Run by path as a process of its own. It reads from standard input, one per line, the process groups to guard, `-N` for
one that is gone. The launcher's end closes that pipe, whether it came to end the ranks itself or not.
"""

import os
import select
import signal
import sys
import time


def main() -> None:
    """Wait for the launcher's end, then end what it left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    launcher = int(sys.argv[1])
    groups: set[int] = set()
    while True:
        # The timeout is for a pipe that a fork of the launcher still holds open.
        if select.select([0], [], [], 1.0)[0]:
            data = os.read(0, 1 << 16)
            if not data:
                break
            for group in map(int, data.split()):
                (groups.add if group > 0 else groups.discard)(abs(group))
        elif os.getppid() != launcher:
            break
    _signal(groups, signal.SIGTERM)
    if groups:
        time.sleep(0.5)  # for multiprocessing's resource trackers: they ignore SIGTERM and remove leaked shared memory
    _signal(groups, signal.SIGKILL)


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
