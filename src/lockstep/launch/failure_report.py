"""Say why a run ended: on stderr, in `logs/failure.json` and in `summary.json`."""

import contextlib
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from lockstep.errors import ConfigError
from lockstep.launch.rank import Rank
from lockstep.launch.supervise import Failure
from lockstep.record.failure import read_failure, record_failure
from lockstep.record.partial_files import written_at

MARK = "--- lockstep: "
"""How the line begins that separates the starts in a log."""
_TAIL_LINES = 15


def log_path(run_dir: Path, rank: int) -> Path:
    """Where a rank's own output goes."""
    return run_dir / "logs" / f"rank_{rank}.log"


def agree(seen: Failure, ended: list[Rank], run_dir: Path) -> Failure:
    """One verdict from what the launcher saw and what the ranks wrote down; written down if they did not.

    Args:
        seen: the first failure as the launcher saw it.
        ended: the ranks that ended by themselves.
        run_dir: the run's directory.
    """
    if seen.interrupted is not None:
        return seen
    record = read_failure(run_dir)
    if record is None:
        rank = seen.rank
        if rank is not None:
            if seen.code == ConfigError.exit_code:  # the user's mistake: the rank's own line says it all
                seen = replace(seen, message=(_tail(log_path(run_dir, rank)) or [seen.message])[-1])
            record_failure(run_dir, rank=rank, message=seen.message, code=seen.code)
        return seen
    rank, message, phase = int(record["rank"]), str(record["message"]), record.get("phase")
    code = {other.index: other.exit_code for other in ended}.get(rank) or seen.code
    if code == ConfigError.exit_code:
        lines = [line for line in _tail(log_path(run_dir, rank)) if message in line]
        return Failure((lines or [message])[-1], code, rank)
    if rank == seen.rank and code > 128:
        message = seen.message  # whoever wrote saw a connection close; we know why
    elif any(other.index == rank and other.exit_code == 0 for other in ended):
        message = f"rank {rank} left early with code 0 while others were still running"
    if f"rank {rank}" not in message:
        message = f"rank {rank}: {message}"
    if phase and phase not in message:
        headline, newline, rest = message.partition("\n")  # a stack may follow
        message = f"{headline} (in {phase}){newline}{rest}"
    return Failure(message, code, rank)


def report(failure: Failure, ranks: int, late: list[int], run_dir: Path | None, *, restarts: int = 0) -> None:
    """Tell the user on stderr: one clear line, then the last lines of the log of the rank at fault.

    Args:
        failure: the verdict.
        ranks: how many there were.
        late: the ranks that had to be killed.
        run_dir: where the logs are, if ranks have any.
        restarts: how many there were before.
    """
    if run_dir is not None and failure.code == ConfigError.exit_code:
        say(failure.message)
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
    log = None if run_dir is None or failure.rank is None else log_path(run_dir, failure.rank)
    if run_dir is not None:
        text += f"; log: {log}" if log is not None else f"; logs: {run_dir / 'logs'}"
    say(text)
    tail = [] if log is None else _tail(log)
    for line in failure.message.splitlines()[1:]:
        if not any(line in reported for reported in tail):  # the rank may have told its own stack
            say(line)
    for line in tail:
        say(f"rank {failure.rank} | {line}")


def mark(failure: Failure, ranks: int, run_dir: Path, before: int | None, *, restarts: int) -> None:
    """Make `summary.json` say what happened, unless rank 0 came to say it.

    Args:
        failure: the verdict.
        ranks: how many there were.
        run_dir: the run's directory.
        before: `written_at` of `summary.json` before the ranks were started.
        restarts: how often they were started again.
    """
    if not (run_dir / "run.yaml").exists():
        return  # not a training run, or one that never began
    status = None
    if written_at(run_dir / "summary.json") != before:
        with contextlib.suppress(OSError, ValueError, KeyError):
            status = json.loads((run_dir / "summary.json").read_text())["status"]
    if failure.interrupted is not None and status in ("interrupted", "finished", "solved"):
        return
    from lockstep.record.run_dir import mark_failed

    status = "failed" if failure.interrupted is None else "interrupted"
    mark_failed(run_dir, failure.message, status, ranks, restarts)


def say(line: str) -> None:
    """One line on stderr."""
    print(line, file=sys.stderr, flush=True)


def _tail(log: Path) -> list[str]:
    """The last lines of the last start."""
    with contextlib.suppress(OSError), open(log, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - (1 << 14)))
        lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
        starts = [number for number, line in enumerate(lines) if line.startswith(MARK)]
        return lines[starts[-1] + 1 if starts else 0 :][-_TAIL_LINES:]
    return []
