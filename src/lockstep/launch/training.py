"""The ranks of one training on this machine: what each of them runs, at first and after a failure."""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.errors import ConfigError
from lockstep.launch.local import Restarts, launch
from lockstep.launch.verdict import say
from lockstep.record.leftovers import remove_results
from lockstep.record.run_dir import hold, write_config

if TYPE_CHECKING:
    from lockstep.run import Run

PROGRAM = (sys.executable, "-m", "lockstep.train")
_ENDS_THAT_SAY_ALL = (0, ConfigError.exit_code, *(128 + n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)))


def launch_training(  # noqa: PLR0913  # all that a start of a training can be told, by keyword
    run_dir: Path,
    ranks: int,
    *,
    config: "Run | None" = None,
    resume: Path | None = None,
    init_from: Path | None = None,
    debug: bool = False,
    max_restarts: int = 0,
    program: Sequence[str] = PROGRAM,
) -> int:
    """Start one process per rank, each of which reads the same `run.yaml`, and stay until all are gone.

    Args:
        run_dir: the run's directory, with its `run.yaml`.
        ranks: how many.
        config: what `run.yaml` is to say from now on; None: what it says.
        resume: the run directory or checkpoint to go on from; None: a new run.
        init_from: the policy that a new run starts from.
        debug: whether ranks show tracebacks.
        max_restarts: how often all ranks may start anew, each time from the newest checkpoint.
        program: what takes the arguments of `lockstep train`.

    Returns:
        The exit code, as `launch` has it.
    """
    always = ["--joined", *(["--debug"] if debug else [])]
    first = [str(run_dir / "run.yaml"), "--run-dir", str(run_dir), *always]
    first += ["--init-from", str(init_from)] if init_from is not None else []
    if resume is not None:
        first = ["--resume", str(resume), *always]
    before = _latest_written_at(run_dir)

    def again() -> tuple[list[str], str]:
        from lockstep.resume import prepare

        # The checkpoint that the user named need not be the newest, until this run has written one of its own.
        path = resume if resume is not None and _latest_written_at(run_dir) == before else run_dir
        step = prepare(path, {}).step
        if step is None and resume is None:
            remove_results(run_dir)
            return [*program, *first], "from the start"
        return [*program, "--resume", str(path), *always], "from the start" if step is None else f"from step {step}"

    # The ranks import what this process could: modules beside a recipe script, and in the working directory.
    inherited = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    search = dict.fromkeys([os.getcwd(), *(entry for entry in sys.path if entry), *inherited])
    held = hold(run_dir)
    try:
        if config is not None:
            write_config(run_dir, config)
        code = launch(
            [*program, *first],
            ranks=ranks,
            run_dir=run_dir,
            environment={"PYTHONPATH": os.pathsep.join(search)},
            restarts=Restarts(maximum=max_restarts, again=again),
        )
    finally:
        os.close(held)
    if code not in _ENDS_THAT_SAY_ALL and _latest_written_at(run_dir) is not None:
        say(f"go on with: lockstep train --resume {run_dir}")
    return code


def _latest_written_at(run_dir: Path) -> int | None:
    try:
        return (run_dir / "checkpoints" / "LATEST").stat().st_mtime_ns
    except OSError:
        return None
