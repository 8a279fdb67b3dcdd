"""The function that `spawn` calls, packed by the caller and unpacked in a rank."""

import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.spawn import prepare
from typing import Any, NoReturn

from lockstep.errors import PEER_DELAY_S, ConfigError, PeerError, RunError
from lockstep.launch.child import die_with_launcher, exit_now, exit_process

_importing_main = False  # while a rank imports the caller's script: `spawn` would then start ranks recursively


class RemoteTraceback(Exception):  # noqa: N818 -- not an error but where one was raised, shown as its cause
    """Where a rank raised, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def pack(fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """All that a fresh interpreter needs to make the call; refuses what it could not import."""
    if _importing_main:
        raise ConfigError(
            "spawn was called while a rank imported the script that calls it; put the call under "
            '`if __name__ == "__main__":`'
        )
    main = sys.modules["__main__"]
    name, file = getattr(getattr(main, "__spec__", None), "name", None), getattr(main, "__file__", None)
    preparation: dict[str, Any] = {
        "sys_path": [path or os.getcwd() for path in sys.path],
        "sys_argv": sys.argv,
        "dir": os.getcwd(),
    }
    label = getattr(fn, "__qualname__", repr(fn))
    if name is not None:
        preparation["init_main_from_name"] = name
    elif file is not None and os.path.isfile(file):
        preparation["init_main_from_path"] = os.path.abspath(file)
    elif getattr(fn, "__module__", None) == "__main__":
        raise ConfigError(f"spawn cannot import fn={label} from an interactive session; write it to a file")
    try:
        fn_bytes = pickle.dumps(fn, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):
        raise ConfigError(
            f"spawn cannot send fn={label} to a fresh process; define it with `def` at the top level of a module"
        ) from None
    try:
        args_bytes = pickle.dumps(args, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise ConfigError(f"spawn cannot send args to a fresh process ({error}); pass picklable values") from error
    return pickle.dumps((preparation, fn_bytes, args_bytes), pickle.HIGHEST_PROTOCOL)


def run(call_fd: int, result_fd: int) -> None:
    """Make one rank's call, inside the rank.

    Args:
        call_fd: descriptor of the file with the output of `pack`; shared by all ranks.
        result_fd: descriptor of this rank's own file for the input of `unpack`.
    """
    global _importing_main
    die_with_launcher()
    try:
        # Opened anew: the inherited descriptor shares its position with the other ranks.
        with open(f"/proc/self/fd/{call_fd}", "rb") as file:
            preparation, fn_bytes, args_bytes = pickle.load(file)
        os.close(call_fd)
        _importing_main = True
        prepare(preparation)
        _importing_main = False
        value = pickle.loads(fn_bytes)(int(os.environ["RANK"]), *pickle.loads(args_bytes))
        try:
            _write(result_fd, (True, value))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise RunError(
                f"what fn returned cannot be sent to its caller ({error}); return picklable values"
            ) from error
    except Exception as error:
        _exit_with_error(result_fd, error)
    threading._shutdown()  # pyright: ignore  # waits for threads and executors of the caller, as Python's own exit does
    exit_process(0)


def unpack(rank: int, data: bytes) -> Any:
    """What a rank returned; raises what it raised."""
    if not data:
        raise RunError(f"rank {rank} exited with code 0 before its function returned")
    try:
        succeeded, value = pickle.loads(data)
    except Exception as error:
        raise RunError(f"what rank {rank} returned cannot be unpickled: {error}") from error
    if succeeded:
        return value
    cause = RemoteTraceback(value["traceback"])
    if value["config"]:
        raise ConfigError(value["message"]) from cause
    raise RunError(f"rank {rank}: {value['message']}") from cause


def _write(result_fd: int, answer: tuple[bool, Any]) -> None:
    with open(result_fd, "wb", closefd=False) as file:
        pickle.dump(answer, file, pickle.HIGHEST_PROTOCOL)


def _exit_with_error(result_fd: int, error: Exception) -> NoReturn:
    """End at once with the error reported: a normal exit may wait for threads that wait for other ranks."""
    ours = isinstance(error, ConfigError | RunError)
    config = isinstance(error, ConfigError)
    message = str(error) if ours else f"{type(error).__name__}: {error}"
    os.ftruncate(result_fd, 0)  # a value that could not be pickled to its end
    os.lseek(result_fd, 0, os.SEEK_SET)
    text = "".join(traceback.format_exception(error))
    _write(result_fd, (False, {"message": message, "traceback": text, "config": config}))
    if isinstance(error, PeerError):
        time.sleep(PEER_DELAY_S)
    exit_now(ConfigError.exit_code if config else RunError.exit_code)
