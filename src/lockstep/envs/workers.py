"""Worker processes for environments, tied to the life of their rank; errors name the environment's index."""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from queue import Empty
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from lockstep.envs.errors import name_in_shard
from lockstep.errors import RunError

if TYPE_CHECKING:
    _AsyncVectorEnv = AsyncVectorEnv[Any, Any]
else:
    _AsyncVectorEnv = AsyncVectorEnv  # a generic class since Gymnasium 1.4 only

_PR_SET_PDEATHSIG = 1
_GRACE_S = 2.0
"""Timeout for closing environments, and for the exit code of a worker whose pipe broke."""


def become_worker(rank_pid: int) -> None:
    """Tie this process to the rank that started it; the first call in a worker.

    The kernel kills it when the rank ends. Signals to the whole process group (Ctrl-C, a scheduler's SIGTERM) are
    ignored, because the rank handles them and may need another step for a checkpoint.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != rank_pid:  # the rank died before `prctl`
        os._exit(1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)


class WorkerEnvs(_AsyncVectorEnv):
    """Gymnasium's worker processes with bounded shutdown.

    Workers are forked, so that environments registered or defined in the user's script exist in them. The rank's
    threads do not survive the fork, and workers use none of their state.
    """

    def __init__(self, factories: Sequence[Callable[[], gymnasium.Env[Any, Any]]]) -> None:
        """Start one worker per factory. Raises `RunError` if one fails to start."""
        self.processes: list[Any] = []
        self.parent_pipes: list[Any] = []
        try:
            super().__init__(  # pyright: ignore[reportUnknownMemberType]
                factories, copy=False, context="fork", autoreset_mode=AutoresetMode.SAME_STEP
            )
        except (EOFError, OSError) as error:
            message = self.death_report()
            self._kill()
            raise RunError(f"{message} while it started") from error
        except BaseException:
            self._kill()
            raise
        # At exit multiprocessing sends its children SIGTERM, which workers ignore, and joins them: kill them first.
        self._at_exit = Finalize(None, _kill, (self.processes,), exitpriority=10)

    def death_report(self) -> str:
        """A message that names the worker that died and its exit code or signal."""
        deadline = time.monotonic() + _GRACE_S
        while time.monotonic() < deadline:  # the pipe breaks shortly before the process can be reaped
            for index, process in enumerate(self.processes):
                code = process.exitcode
                if code is not None:
                    killed = code < 0 and f"was killed by {signal.Signals(-code).name} (signal {-code})"
                    how = killed or f"exited with code {code}"
                    return f"the worker of environment {index} of {len(self.processes)} {how}"
            time.sleep(0.001)
        return "a worker of an environment closed its pipe"

    def each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a method of every environment with its own tuple of arguments; returns the results."""
        for pipe, own in zip(self.parent_pipes, arguments, strict=True):
            pipe.send(("_call", (method, own, {})))
        results = [pipe.recv() for pipe in self.parent_pipes]
        self._raise_if_errors([success for _, success in results])
        return [result for result, _ in results]

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Close the environments in the workers, then kill those that did not exit."""
        deadline = time.monotonic() + (0 if terminate else _GRACE_S)
        for pipe in self.parent_pipes:
            try:
                pipe.send(("close", None))
            except (OSError, AttributeError):  # dead, or set to None by Gymnasium after an error
                continue
        for process in self.processes:
            process.join(max(deadline - time.monotonic(), 0))
        self._kill()

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        # Gymnasium would print each traceback as a warning and raise the last error.
        if all(successes):
            return
        errors: Any = getattr(self, "error_queue", None)
        try:
            index, _, error, _ = errors.get(timeout=_GRACE_S)
        except Empty:
            raise RunError("a worker failed and did not say why") from None
        if isinstance(error, RunError):
            raise error
        raise RunError(f"{name_in_shard(index)} failed: {type(error).__name__}: {error}")

    def _kill(self) -> None:
        _kill(self.processes)
        for pipe in self.parent_pipes:
            if pipe is not None:  # Gymnasium sets some to None after errors
                pipe.close()
        queue = getattr(self, "error_queue", None)
        if queue is not None:
            queue.close()
        if hasattr(self, "_at_exit"):
            self._at_exit.cancel()
        self.closed = True


def _kill(processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        if process.is_alive():
            process.kill()
    for process in processes:
        process.join()
