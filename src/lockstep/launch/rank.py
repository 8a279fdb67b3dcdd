"""One rank of a launcher: a process that leads its own session and process group."""

import contextlib
import os
import subprocess
from dataclasses import dataclass

from lockstep.launch.signals import signal_name


@dataclass(slots=True)
class Rank:
    """One process, leader of its own session and process group."""

    index: int
    process: subprocess.Popen[bytes]
    pidfd: int | None
    group_gone: bool = False

    @property
    def code(self) -> int | None:
        """Exit code, minus the signal that killed it, or None while it runs."""
        return self.process.returncode

    @property
    def exit_code(self) -> int:
        """Exit code as a shell has it: 128 + n for signal n."""
        code = self.code or 0
        return 128 - code if code < 0 else code

    def describe(self) -> str:
        """How it ended, for messages."""
        code = self.code or 0
        if code < 0:
            return f"rank {self.index} was killed by {signal_name(-code)}"
        return f"rank {self.index} exited with code {code}"

    def signal_group(self, number: int) -> bool:
        """Signal all processes of the group (0: only check); returns whether there were any.

        An empty group is never signalled again: its number may have been reused.
        """
        if not self.group_gone:
            try:
                os.killpg(self.process.pid, number)
            except ProcessLookupError:
                self.group_gone = True
            except PermissionError:
                pass
        return not self.group_gone


def any_alive(groups: set[int]) -> bool:
    """Whether a process of these groups still runs.

    Zombies are not counted: in containers, orphans may not be reaped for long.
    """
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                state, _parent, group = file.read().rpartition(b")")[2].split()[:3]
                if int(group) in groups and state not in (b"Z", b"X"):
                    return True
    return False
