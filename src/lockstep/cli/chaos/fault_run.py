"""Run `lockstep train` with one fault after another, and evaluate each run by its files and exit code."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import psutil

from lockstep.cli.chaos.faults import INJECTED_FILE, InjectedFault
from lockstep.cli.sweep.processes import start_run
from lockstep.errors import RunError
from lockstep.launch.signals import Interrupted
from lockstep.record.file_numbers import number_of
from lockstep.record.follow import read_json
from lockstep.run import Run

CONFIG_FILE = "config.yaml"
"""The config of all runs, in the directory that holds them."""
_MAX_RESTARTS = 2
_MARK = "LOCKSTEP_CHAOS"  # inherited by all processes of a run: one that has it after the run is an orphan
_EXIT_S = 5.0
_MESSAGE_WIDTH = 160
_COLUMNS = ("fault", 11), ("rank", 5), ("update", 7), ("step", 10), ("detected", 9), ("restarts", 9), ("lost", 8)
HEAD = "".join(f"{name:{width}}" for name, width in _COLUMNS) + f"{'code':5}{'same':13}{'verdict':14}message"
"""The header of the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultResult:
    """The outcome of one fault."""

    fault: str
    """One of `lockstep.cli.chaos.faults.KINDS`."""
    rank: int
    """The rank of the fault."""
    update: int
    """Number of updates before the fault."""
    step: int
    """Environment steps before the fault, all ranks."""
    detected_s: float | None
    """Seconds until the run detected the fault; None if there was nothing to detect."""
    restarts: int
    """Number of restarts, including a manual resume."""
    steps_lost: int
    """Environment steps that were repeated."""
    exit_code: int | None
    """Exit code of the command; None after a timeout."""
    same_parameters: bool
    """Whether the final parameters are those of the undisturbed run."""
    message: str
    """The message of the run about the fault."""
    problems: list[str] = field(default_factory=list[str])
    """Reasons why it did not survive; empty if it did."""

    @property
    def survived(self) -> bool:
        """Whether there were no problems."""
        return not self.problems

    def row(self, exact: bool) -> str:
        """One line of the table."""
        detected = "-" if self.detected_s is None else f"{self.detected_s:.1f} s"
        cells = (self.fault, self.rank, self.update, self.step, detected, self.restarts, self.steps_lost)
        text = "".join(f"{cell!s:{width}}" for cell, (_, width) in zip(cells, _COLUMNS, strict=True))
        same = ("yes" if self.same_parameters else "no") if exact or self.same_parameters else "not promised"
        code = "-" if self.exit_code is None else self.exit_code
        verdict = "survived" if self.survived else "NOT survived"
        return f"{text}{code!s:5}{same:13}{verdict:14}{_shortened('; '.join(self.problems) or self.message)}"


class FaultRuns:
    """The runs of one `lockstep chaos`, below `folder`, which has `config.yaml`; `caught`: signals of this process."""

    def __init__(self, run: Run, ranks: int, folder: Path, caught: Sequence[int]) -> None:
        self._run, self._ranks, self._folder, self._caught = run, ranks, folder, caught
        self._rollout = run.num_envs * run.algorithm.num_steps
        self._mark = uuid4().hex
        self.exact = _can_save(run)
        """Whether the environments can be saved, so that a restarted run must end with the same bits."""
        self.fingerprint = ""
        """Of the final parameters of the undisturbed run."""
        self._undisturbed_s = 0.0

    def undisturbed(self) -> None:
        """Run without a fault, for comparison."""
        start = time.monotonic()
        code = self._start(["lockstep.train", *self._train("undisturbed")], "undisturbed", 3600.0)
        self._undisturbed_s = time.monotonic() - start
        summary = read_json(self._folder / "undisturbed" / "summary.json")
        if code != 0:
            why = summary.get("error") or ("it did not end within an hour" if code is None else f"exit code {code}")
            raise RunError(
                f"the undisturbed run failed: {why}; "
                f"see {self._folder / 'undisturbed.txt'}. Its timeout_s is {self._run.timeout_s:g}"
            )
        self.fingerprint = str(summary["params_fingerprint"])

    def try_fault(self, fault: InjectedFault) -> FaultResult:
        """Run with one fault."""
        name, problems = fault.fault, list[str]()
        limit = 60.0 + 3 * (self._undisturbed_s + self._run.timeout_s)
        command = ["lockstep.cli.chaos.faults", fault.to_json(), "train", *self._train(name)]
        code = self._start([*command, "--max-restarts", str(_MAX_RESTARTS)], name, limit)
        resumed = 0
        if name == "launcher":
            problems += self._clean_up(name)
            if code == -signal.SIGKILL:
                resumed = 1
                again = ["lockstep.train", "--resume", str(self._folder / name), "--ranks", str(self._ranks)]
                code = self._start(again, name, limit)
        problems += self._clean_up(name)
        return self._evaluate(fault, code, resumed, problems, limit)

    def _evaluate(
        self, fault: InjectedFault, code: int | None, resumed: int, problems: list[str], limit: float
    ) -> FaultResult:
        run_dir = self._folder / fault.fault
        summary, note = read_json(run_dir / "summary.json"), read_json(run_dir / INJECTED_FILE)
        restarts = int(summary.get("restarts") or 0) + resumed
        same = code == 0 and summary.get("params_fingerprint") == self.fingerprint
        if not note:
            problems.append("the fault was not injected")
        if code is None:
            problems.append(f"it did not end within {limit:.0f} s")
        elif code != 0:
            problems.append(f"{summary.get('error') or 'it failed'}; see {run_dir}.txt")
        elif not same and self.exact:
            problems.append("it ended with other parameters")
        elif note and not restarts and fault.fault != "diskfull":
            problems.append("the fault was not detected")
        message, detected = _explanation(run_dir, number_of(note.get("time_s")))
        message = "; ".join(filter(None, (message, _warnings(run_dir.with_suffix(".txt")))))
        at = int(note.get("at", fault.update))
        lost = max(0, at * self._rollout - _step(summary.get("resumed_from"))) if restarts else 0
        return FaultResult(
            fault=fault.fault,
            rank=fault.rank,
            update=at,
            step=at * self._rollout,
            detected_s=detected,
            restarts=restarts,
            steps_lost=lost,
            exit_code=code,
            same_parameters=same,
            message=message,
            problems=problems,
        )

    def _train(self, name: str) -> list[str]:
        config = str(self._folder / CONFIG_FILE)
        return [config, "--ranks", str(self._ranks), "--run-dir", str(self._folder / name)]

    def _start(self, module: list[str], name: str, limit_s: float) -> int | None:
        """Run a command with its output in `NAME.txt`; returns the exit code, or None after a timeout."""
        command = [sys.executable, "-m", *module]
        with (self._folder / f"{name}.txt").open("ab") as output:
            process = start_run(command, output, {_MARK: self._mark})
        deadline, forwarded = time.monotonic() + limit_s, 0
        while process.poll() is None:
            if len(self._caught) > forwarded:
                process.send_signal(self._caught[forwarded])
                forwarded += 1
            if time.monotonic() > deadline:
                process.kill()  # the guardian process ends its ranks
                process.wait()
                return None
            time.sleep(0.02)
        if self._caught:
            raise Interrupted(self._caught[0])
        return process.returncode

    def _clean_up(self, name: str) -> list[str]:
        """Kill processes that outlive a run; returns problems: such processes, and partial files."""
        deadline = time.monotonic() + _EXIT_S
        while (orphans := list(self._orphans())) and time.monotonic() < deadline:
            time.sleep(0.05)
        for pid in orphans:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        problems = [f"{len(orphans)} processes were left behind"] if orphans else []
        partial = sorted(str(path.relative_to(self._folder)) for path in (self._folder / name).rglob(".*"))
        return problems + ([f"half-written: {', '.join(partial)}"] if partial else [])

    def _orphans(self) -> Iterator[int]:
        for process in psutil.process_iter(["environ"]):
            if (process.info["environ"] or {}).get(_MARK) == self._mark:
                yield process.pid


def _can_save(run: Run) -> bool:
    from lockstep.envs.make import make_vector_env
    from lockstep.envs.state import can_save

    env = make_vector_env(run.task, run.env, 1)
    try:
        return can_save(env)
    finally:
        env.close()


def _step(resumed_from: object) -> int:
    """The step of a checkpoint path `.../step_N`; 0 without one."""
    name = Path(str(resumed_from)).name.removeprefix("step_")
    return int(name) if name.isdecimal() else 0


def _shortened(text: str) -> str:
    return text if len(text) <= _MESSAGE_WIDTH else f"{text[: _MESSAGE_WIDTH - 4]} ..."


def _warnings(printed: Path) -> str:
    lines = printed.read_text(encoding="utf-8", errors="replace").splitlines()
    return "; ".join(dict.fromkeys(line for line in lines if line.startswith("warning: ") and "checkpoint" in line))


def _explanation(run_dir: Path, injected_at: float | None) -> tuple[str, float | None]:
    """The message of the run's first failure, and the seconds from the fault to it; None if they are unknown."""
    path = run_dir / "logs" / "failure_1.json"
    if not path.exists():
        return "", None
    message = str(read_json(path).get("message", "")).partition("\n")[0]
    return message, None if injected_at is None else max(0.0, path.stat().st_mtime - injected_at)
