"""What a rank does about its launcher. Costs nothing to import: a rank does it before anything else."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with_launcher() -> None:
    """Have the kernel kill this process with SIGKILL when the launcher that started it ends, however it ends.

    Does nothing without a Lockstep launcher. Call it first thing; calling it again does nothing.
    """
    launcher = os.environ.pop("LOCKSTEP_LAUNCHER_PID", None)  # children of a rank are not ranks
    if launcher is None:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The launcher may have died before that call. A wrapper between it and us is no reason to die.
    if os.getppid() != int(launcher) and not _alive(int(launcher)):
        os.kill(os.getpid(), signal.SIGKILL)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
