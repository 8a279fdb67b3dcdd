"""A rank's side of its launcher: end with it, and exit at once. Quick to import: ranks do so first."""

import atexit
import contextlib
import ctypes
import functools
import os
import signal
import sys
import threading
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
_LAUNCHER = "LOCKSTEP_LAUNCHER_PID"
_NAMESPACE = "LOCKSTEP_LAUNCHER_NAMESPACE"


def launcher_variables() -> dict[str, str]:
    """The environment variables by which a rank knows that this process is its launcher: for `die_with_launcher`."""
    return {_LAUNCHER: str(os.getpid()), _NAMESPACE: _pid_namespace()}


def die_with_launcher() -> None:
    """Have the kernel kill this process with SIGKILL when the launcher that started it ends, however it ends.

    Does nothing without a launcher of Lockstep's or torchrun. Call it first thing; calling it again does nothing.
    """
    launcher = os.environ.pop(_LAUNCHER, None)  # children of a rank are not ranks
    namespace = os.environ.pop(_NAMESPACE, None)
    if launcher is not None:
        _die_with_parent()
        if namespace not in (None, _pid_namespace()):
            return  # in a container the number of the launcher is another process, or none
        # The launcher may have died before that call. A wrapper between it and us is no reason to die.
        if os.getppid() != int(launcher) and not _is_running(int(launcher)):
            _kill_self()
    elif "TORCHELASTIC_RUN_ID" in os.environ:
        _die_with_torchrun()


@functools.cache
def _die_with_torchrun() -> None:
    """Have the kernel, or a thread, kill this process when torchrun's agent is killed, which has no guardian.

    The kernel's signal follows the thread that forked this process: if a wrapper did, a thread watches the agent.
    """
    from lockstep.system.processes import torchrun_agent

    agent = torchrun_agent()
    if agent is None:
        return
    if os.getppid() == agent:
        _die_with_parent()
        if os.getppid() != agent:
            _kill_self()
        return
    try:
        descriptor = os.pidfd_open(agent)
    except ProcessLookupError:
        _kill_self()
    except OSError:  # some sandboxes do not have it: then a wrapped rank ends with its peers, or stays
        return
    else:
        threading.Thread(target=_watch, args=(descriptor,), name="lockstep-launcher", daemon=True).start()


def _watch(descriptor: int) -> None:
    import select

    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    poller.poll()
    _kill_self()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _pid_namespace() -> str:
    """Identifies the set of process ids that this process sees; empty where /proc is missing."""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def exit_process(code: int) -> NoReturn:
    """Run the exit handlers and `exit_now`: threads of a group that lost a rank may block or abort a normal exit."""
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    exit_now(code)


def exit_now(code: int) -> NoReturn:
    """End this process without exit handlers."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a full disk, a closed terminal
            stream.flush()
    os._exit(code)
