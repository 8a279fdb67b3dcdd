"""A group of rank processes of which the first failure ends all: the core of `launch` and `spawn`."""

import contextlib
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lockstep.errors import ConfigError, RunError
from lockstep.launch.rank import Rank, any_alive
from lockstep.launch.signals import signal_name

_WORKERS_S = 1.0  # between SIGTERM and SIGKILL for child processes that a rank left in its process group
_INTERRUPTED = {128 + number: number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How long ranks may take to end, in seconds."""

    settle_s: float = 0.25
    """After a failure, time for its cause to be seen if its consequence was seen first."""
    stop_s: float = 5.0
    """Between SIGTERM and SIGKILL, after a failure."""
    early_s: float = 10.0
    """Between the first rank that exits with code 0 and the last."""
    grace_s: float = 30.0
    """Between a forwarded signal and SIGKILL: time for a checkpoint. Without one, ranks exit within 8 s."""


DEFAULT_BOUNDS = Bounds()
SCRIPT_EARLY_S = 300.0
"""`early_s` of a script of the user's, which may save on one rank when the others have ended."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the ranks did not all succeed."""

    message: str
    """Names the rank in its first line."""
    code: int
    """Exit code of the launcher."""
    rank: int | None = None
    """The rank at fault; None when all are."""
    interrupted: int | None = None
    """The signal, if one requested the end; `code` is a rank's, if one failed while it stopped."""
    node_drained: bool = False
    """Whether a cluster drains a node, to take it away: ranks write a checkpoint, and may restart on other nodes."""

    @property
    def headline(self) -> str:
        """The message's first line; a stall report has more."""
        return self.message.partition("\n")[0]

    @property
    def restartable(self) -> bool:
        """Whether a restart may succeed: not after a user error, a signal to the run or the timeout."""
        if self.node_drained:
            return True
        return self.rank is not None and self.interrupted is None and self.code != ConfigError.exit_code


class EndedRank(Protocol):
    """A rank that has ended, wherever it ran."""

    @property
    def index(self) -> int:
        """Its global rank."""
        ...

    @property
    def code(self) -> int | None:
        """Exit code, minus the signal that killed it."""
        ...

    @property
    def exit_code(self) -> int:
        """Exit code as a shell has it: 128 + n for signal n."""
        ...

    def describe(self) -> str:
        """How it ended, for messages."""
        ...


class Ranks(Protocol):
    """Ranks that are waited for, as processes of this machine or of others."""

    tick_s: float
    """The longest sleep: bounds how late a signal or a deadline is noticed."""

    @property
    def ended(self) -> Sequence[EndedRank]:
        """The ranks that have ended, in the order in which that was noticed."""
        ...

    def running(self) -> Sequence[int]:
        """The ranks that have not ended; updates `ended`."""
        ...

    def sleep(self, seconds: float) -> None:
        """Return when a rank ends, at the latest after `seconds`."""
        ...


def wait_for_ranks(
    ranks: Ranks,
    bounds: Bounds,
    *,
    timeout_s: float | None = None,
    since: float | None = None,
    caught: Sequence[int] = (),
    has_result: Callable[[int], bool] = lambda _: False,
    elsewhere: Callable[[], Failure | None] = lambda: None,
) -> Failure | None:
    """Wait until all ranks succeeded (None) or one failed, a signal came, or `timeout_s` passed; stops nothing.

    Args:
        ranks: the ranks, already started.
        bounds: how long ranks may take to end.
        timeout_s: bound on the whole run, if any.
        since: when the run began (monotonic seconds); default: now.
        caught: signals that this process received, filled by `caught_signals` meanwhile.
        has_result: whether a rank has delivered its result. One that exits with code 0 and has none exits early: the
            others must follow within `bounds.early_s`.
        elsewhere: polled; a failure of another node, which ends these ranks too.
    """
    deadline = (time.monotonic() if since is None else since) + (math.inf if timeout_s is None else timeout_s)
    early_at = math.inf  # when the first rank exited early
    while running := ranks.running():
        now = time.monotonic()
        if caught:
            return interruption(caught[0])
        if any(rank.code for rank in ranks.ended):
            sleep_until_ended(ranks, now + bounds.settle_s, hurry=lambda: bool(caught) or bool(_killed(ranks.ended)))
            return interruption(caught[0]) if caught else first_failure(ranks.ended)
        if (failure := elsewhere()) is not None:
            return failure
        early = [rank.index for rank in ranks.ended if not has_result(rank.index)]
        if early:
            early_at = min(early_at, now)
        if now > early_at + bounds.early_s:
            message = f"rank {early[0]} exited early with code 0 while {_names(running)} still running"
            return Failure(message, 1, early[0])
        if now > deadline:
            return Failure(f"{_names(running)} still running after timeout_s={timeout_s:g}", 1)
        ranks.sleep(ranks.tick_s)
    return first_failure(ranks.ended) if any(rank.code for rank in ranks.ended) else None


def failed_after_signal(ended: Sequence[EndedRank]) -> list[EndedRank]:
    """The ranks that a signal did not end, though it was sent: they raised while they stopped, or saw another fail."""
    by_signal = {0, -signal.SIGKILL, *_INTERRUPTED, *(-number for number in _INTERRUPTED.values())}
    return [rank for rank in ended if rank.code not in by_signal]


def sleep_until_ended(ranks: Ranks, deadline: float, hurry: Callable[[], bool] = lambda: False) -> None:
    """Wait until no rank runs, at most until `deadline` (monotonic seconds) or until `hurry()` is true."""
    while ranks.running() and not hurry() and (seconds := deadline - time.monotonic()) > 0:
        ranks.sleep(min(seconds, ranks.tick_s))


def first_failure(ended: Sequence[EndedRank]) -> Failure:
    """The cause among the failures seen so far."""
    failed = [rank for rank in ended if rank.code]
    first = (_killed(failed) or failed)[0]
    if first.code in _INTERRUPTED:  # a signal reached the ranks only, and they agreed to stop
        return interruption(_INTERRUPTED[first.code])
    before = [rank for rank in ended[: ended.index(first)] if rank.code == 0]
    after = f" after rank {before[0].index} had exited early with code 0" if before else ""
    return Failure(first.describe() + after, first.exit_code, first.index)


def _killed(ended: Sequence[EndedRank]) -> list[EndedRank]:
    """The ranks that SIGKILL ended.

    It comes from outside (usually: out of memory, or a lost node) and so is never the consequence of another failure.
    """
    return [rank for rank in ended if rank.code == -signal.SIGKILL]


class RankGroup:
    """Ranks of which the first failure ends all. A context manager: no process outlives it.

    If this process itself is killed, a guardian process ends the ranks and their children, and removes their partial
    files from `run_dir`.
    """

    tick_s = 0.05

    def __init__(self, bounds: Bounds, run_dir: Path | None = None, *, first_rank: int = 0) -> None:
        self.bounds = bounds
        self.run_dir = run_dir
        self._first_rank = first_rank
        self.ranks: list[Rank] = []
        self.ended: list[Rank] = []  # in the order in which they were seen to end

    def __enter__(self) -> "RankGroup":
        command = [sys.executable, "-I", str(Path(__file__).with_name("guardian.py")), str(os.getpid())]
        environment = {name: value for name, value in os.environ.items() if name != "LOCKSTEP_LAUNCHER_PID"}
        try:
            self._guardian = subprocess.Popen(
                command + ([str(self.run_dir.absolute())] if self.run_dir is not None else []),
                env=environment,  # it is not a rank of the launcher that may have started this one
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            raise RunError(f"the process that ends ranks of a killed launcher cannot be started: {error}") from error
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop(signal.SIGTERM, self.bounds.stop_s)
        finally:
            self._dismiss_guardian()
            for rank in self.ranks:
                if rank.pidfd is not None:
                    os.close(rank.pidfd)

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        output: int | None,
        errors: int | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        """Start the next rank.

        Args:
            command: its words.
            environment: all of its environment variables.
            output: a descriptor for what it prints; None: where this process prints.
            errors: a descriptor for its standard error; None: that of `output`.
            pass_fds: descriptors that it keeps.
        """
        try:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,  # outside the terminal's session it could not be read
                stdout=output,
                stderr=output if errors is None else errors,
                pass_fds=pass_fds,
                start_new_session=True,
            )
        except (FileNotFoundError, PermissionError) as error:
            raise ConfigError(f"command {command[0]!r} cannot be started: {error.strerror}; check its path") from None
        except OSError as error:
            raise RunError(f"rank {self._first_rank + len(self.ranks)} cannot be started: {error}") from error
        try:
            pidfd = os.pidfd_open(process.pid)
        except OSError:  # some sandboxes do not have it; then we look every 20 ms
            pidfd = None
        self.ranks.append(Rank(self._first_rank + len(self.ranks), process, pidfd))
        self._tell_guardian(process.pid)

    def stop(self, number: int, grace_s: float, hurry: Callable[[], bool] = lambda: False) -> list[int]:
        """Signal all ranks, and kill them with all their children when `grace_s` has passed or `hurry()` says so.

        Returns:
            The ranks that had to be killed.
        """
        late: list[int] = []
        try:
            for rank in self._running():
                rank.process.send_signal(number)
                rank.signal_group(signal.SIGCONT)  # a stopped process handles a signal only once it is continued
            sleep_until_ended(self, time.monotonic() + grace_s, hurry)
        finally:
            late = [rank.index for rank in self._running()]
            for rank in self.ranks:
                rank.signal_group(signal.SIGKILL if rank.code is None else signal.SIGTERM)
            self._sleep_until_groups_gone()
            for rank in self.ranks:
                rank.signal_group(signal.SIGKILL)
            self._sleep_until_groups_gone()
        return late

    def _running(self) -> list[Rank]:
        for rank in self.ranks:
            if rank not in self.ended and rank.process.poll() is not None:
                self.ended.append(rank)
                if not rank.signal_group(0):
                    self._tell_guardian(-rank.process.pid)  # the number may soon be somebody else's
        return [rank for rank in self.ranks if rank not in self.ended]

    def running(self) -> list[int]:
        """The ranks that have not ended."""
        return [rank.index for rank in self._running()]

    def sleep(self, seconds: float) -> None:
        """Return when a rank ends, at the latest after `seconds`."""
        poller = select.poll()
        descriptors = [rank.pidfd for rank in self._running()]
        for descriptor in descriptors:
            if descriptor is not None:
                poller.register(descriptor, select.POLLIN)
        poller.poll(1000 * (min(seconds, 0.02) if None in descriptors else seconds))

    def _sleep_until_groups_gone(self) -> None:
        deadline = time.monotonic() + _WORKERS_S
        while time.monotonic() < deadline:
            self._running()
            groups = {rank.process.pid for rank in self.ranks if rank.signal_group(0)}
            if not groups or not any_alive(groups):
                for rank in self.ranks:
                    rank.group_gone = True
                return
            time.sleep(0.02)

    def _dismiss_guardian(self) -> None:
        # It ends the processes that are left if a second Ctrl-C interrupted `stop`.
        for rank in self.ranks:
            if rank.group_gone:
                self._tell_guardian(-rank.process.pid)
        self._tell_guardian(0)
        try:
            self._guardian.communicate(timeout=2 * _WORKERS_S)
        except subprocess.TimeoutExpired:
            self._guardian.kill()
            self._guardian.communicate()

    def _tell_guardian(self, group: int) -> None:
        with contextlib.suppress(OSError):  # it was killed; the run continues without it
            assert self._guardian.stdin is not None
            self._guardian.stdin.write(f"{group}\n".encode())


def interruption(number: int, when: str = "") -> Failure:
    """The failure that stands for signal `number`."""
    return Failure(f"interrupted by {signal_name(number)}{when}", 128 + number, interrupted=number)


def _names(ranks: Sequence[int]) -> str:
    numbers = ", ".join(map(str, ranks))
    return f"rank {numbers} was" if len(ranks) == 1 else f"ranks {numbers} were"
