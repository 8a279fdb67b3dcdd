"""Report why a run failed: on stderr, in `logs/failure.json` and in `summary.json`."""

import re
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from lockstep.errors import ConfigError
from lockstep.launch.signals import signal_name
from lockstep.launch.supervise import EndedRank, Failure, failed_after_signal, first_failure
from lockstep.record.failure import read_failure, record_failure
from lockstep.record.follow import read_end, read_json
from lockstep.record.partial_files import modified_at
from lockstep.record.run_status import COMPLETE

ATTEMPT_PREFIX = "--- lockstep: "
"""Begins the line that separates the attempts of a run in a log."""
_TAIL_LINES = 15
_ERROR = "lockstep: error: "
_NCCL_ERROR = re.compile(r"ProcessGroupNCCL\.cpp:\d+\] (?:\[[^]]*\]\s*)*(.*(?:caught|[Ee]rror|timed out).*)")
"""A line of torch's log, as "[rank0]:[E1123 ... ProcessGroupNCCL.cpp:685] [Rank 0] Watchdog caught collective ..."."""


def log_path(run_dir: Path, rank: int) -> Path:
    """The file of a rank's output."""
    return run_dir / "logs" / f"rank_{rank}.log"


def merge_failures(observed: Failure, ended: Sequence[EndedRank], run_dir: Path) -> Failure:
    """Combine the failure that the launcher observed with the one that the ranks recorded; record it if they did not.

    `ended`: the ranks that ended by themselves.
    """
    if observed.interrupted is not None:
        return observed
    observed = _with_error_of_nccl(observed, run_dir)
    record = read_failure(run_dir)
    if record is None:
        rank = observed.rank
        if rank is not None:
            if told := _user_error(log_path(run_dir, rank)):
                observed = _with_error(observed, told[0])
            record_failure(run_dir, rank=rank, message=observed.message, code=observed.code)
        return observed
    rank, message, phase = int(record["rank"]), str(record["message"]), record.get("phase")
    code = {other.index: other.exit_code for other in ended}.get(rank) or observed.code
    if code == ConfigError.exit_code:
        return Failure((_user_error(log_path(run_dir, rank), message) or [message])[0], code, rank)
    if rank == observed.rank and code > 128:
        message = observed.message  # the rank recorded a closed connection; the launcher has the cause
    elif any(other.index == rank and other.exit_code == 0 for other in ended):
        message = f"rank {rank} exited early with code 0 while others were still running"
    if f"rank {rank}" not in message:
        message = f"rank {rank}: {message}"
    if phase and phase not in message:
        headline, newline, rest = message.partition("\n")  # a stack may follow
        message = f"{headline} (in {phase}){newline}{rest}"
    return Failure(message, code, rank)


def with_failure_while_stopping(interruption: Failure, ended: Sequence[EndedRank], run_dir: Path) -> Failure:
    """The failure of a rank that raised after a signal, in place of the interruption: there may be no checkpoint.

    A rank that failed before its training began has recorded nothing. It may only have seen another one end.
    """
    failed = failed_after_signal(ended)
    if not failed or interruption.interrupted is None or interruption.node_drained or read_failure(run_dir) is None:
        return interruption
    failure = merge_failures(first_failure(failed), failed, run_dir)
    head, newline, rest = failure.message.partition("\n")
    message = f"{head} (after {signal_name(interruption.interrupted)}){newline}{rest}"
    return replace(failure, message=message, interrupted=interruption.interrupted)


def left_early(run_dir: Path | None) -> Failure | None:
    """The failure of ranks of our own training that all exited with 0 before it was complete; None if it is."""
    if run_dir is None or read_json(run_dir / "summary.json").get("status") in COMPLETE:
        return None
    message = "all ranks exited with code 0 before the training ended"
    return Failure(f"{message}: some code of the run, such as the environment, ends the process", 1, rank=0)


def report_failure(failure: Failure, ranks: int, late: list[int], run_dir: Path | None, *, restarts: int = 0) -> None:
    """Print the failure on stderr: one line, then the last lines of the log of the rank at fault.

    `late`: the ranks that had to be killed; `restarts`: number of earlier attempts.
    """
    if run_dir is not None and failure.code == ConfigError.exit_code and failure.message.startswith(_ERROR):
        told = [] if failure.rank is None else _user_error(log_path(run_dir, failure.rank), failure.message)
        log("\n".join(told) or failure.message)
        return
    text = f"lockstep: {failure.headline}"
    if failure.rank is None:
        text += "; all ranks were stopped"
    elif ranks > 1:
        text += "; the other ranks were stopped"
    if late:
        text += f", rank{'s' * (len(late) > 1)} {', '.join(map(str, late))} with SIGKILL"
    if restarts:
        text += f"; this was start {restarts + 1}"
    log_file = None if run_dir is None or failure.rank is None else log_path(run_dir, failure.rank)
    if run_dir is not None:
        text += f"; log: {log_file}" if log_file is not None else f"; logs: {run_dir / 'logs'}"
    log(text)
    tail = [] if log_file is None else _tail(log_file)
    for line in failure.message.splitlines()[1:]:
        if not any(line in reported for reported in tail):  # the rank may have printed its own stack
            log(line)
    for line in tail:
        log(f"rank {failure.rank} | {line}")


def update_summary(
    failure: Failure, ranks: int, run_dir: Path, summary_modified_at: int | None, *, restarts: int
) -> None:
    """Record the failure in `summary.json`, unless rank 0 has done so (`summary_modified_at` is outdated)."""
    if not (run_dir / "run.yaml").exists():
        return  # a run that did not start
    if refused_to_resume(run_dir, failure.code, summary_modified_at):
        return
    status = None
    if modified_at(run_dir / "summary.json") != summary_modified_at:
        status = read_json(run_dir / "summary.json").get("status")
    interrupted = failure.interrupted is not None and failure.code == 128 + failure.interrupted
    if interrupted and status in ("interrupted", "finished", "solved"):
        return
    from lockstep.record.run_dir import mark_failed

    status = "interrupted" if interrupted else "failed"
    try:
        mark_failed(run_dir, failure.message, status, ranks, restarts)
    except OSError as error:
        log(f"lockstep: {run_dir / 'summary.json'} could not be written ({error.strerror})")


def refused_to_resume(run_dir: Path, code: int, summary_modified_at: int | None) -> bool:
    """Whether a start with exit code `code` was refused before it resumed the run, which stays as it was.

    A start that resumes a run removes its summary; one that is refused later writes another.
    """
    if code != ConfigError.exit_code or modified_at(run_dir / "summary.json") != summary_modified_at:
        return False
    return summary_modified_at is not None or (run_dir / "metrics.jsonl").exists()


def log(line: str) -> None:
    """Print one line on stderr, which may be closed: the exit code and the summary say the same."""
    with suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)


def _tail(path: Path) -> list[str]:
    """The last lines of the last attempt."""
    return _last_attempt(path, 1 << 14)[-_TAIL_LINES:]


def _user_error(path: Path, message: str = "") -> list[str]:
    """The rank's last error with these words, and what it printed afterwards: a table, or what libraries say at exit.

    Empty if the log has none: of other programs, code 2 need not mean a user error.
    """
    words = " ".join(message.partition("\n")[0].split())
    lines = _last_attempt(path, 1 << 14)
    found = [number for number, line in enumerate(lines) if line.startswith(_ERROR) and words in line]
    return lines[found[-1] :] if found else []


def _last_attempt(path: Path, num_bytes: int) -> list[str]:
    """The lines of the last attempt, among the last bytes of a log."""
    lines = [line for line in read_end(path, num_bytes).decode(errors="replace").splitlines() if line.strip()]
    starts = [number for number, line in enumerate(lines) if line.startswith(ATTEMPT_PREFIX)]
    return lines[starts[-1] + 1 if starts else 0 :]


def _with_error(failure: Failure, error: str) -> Failure:
    """Add what the rank at fault printed, which it could not record, as on a full disk."""
    if failure.code == ConfigError.exit_code:
        return replace(failure, message=error)  # complete: nothing is wrong with the rank
    return replace(failure, message=f"{failure.message}: {error.removeprefix(_ERROR)}")


def _with_error_of_nccl(failure: Failure, run_dir: Path) -> Failure:
    """Add what torch logged before it aborted a rank because of a collective of NCCL that failed or timed out."""
    if failure.rank is None or failure.code != 128 + signal.SIGABRT:
        return failure
    for line in _last_attempt(log_path(run_dir, failure.rank), 1 << 16):
        if (match := _NCCL_ERROR.search(line)) is not None:
            return replace(failure, message=f"{failure.message}: {match[1].strip()}")
    return failure
