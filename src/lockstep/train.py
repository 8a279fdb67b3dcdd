"""Train a run: `python -m lockstep.train ...` is `lockstep train ...`; `train(run)` is for Python callers."""

import atexit
import os
import signal
import sys
from pathlib import Path
from typing import Any

from lockstep.errors import ConfigError
from lockstep.run import Run, override
from lockstep.world import World


def train(
    run: Run,
    *,
    run_dir: Path | str | None = None,
    init_from: Path | str | None = None,
    resume: Path | str | None = None,
    world: World | None = None,
    joined: bool = False,
    **overrides: Any,
) -> dict[str, Any]:
    """Train in this process and return the summary; under a launcher, as one of its ranks.

    Args:
        run: the complete config.
        run_dir: where to write; default: a new directory below `runs/`.
        init_from: a run directory or policy file whose parameters to start from.
        resume: a run directory or one of its checkpoints to go on from; `run` is then what
            `lockstep.resume.prepare(resume, changes).run` gives.
        world: who takes part; default: what a launcher's variables say, else this process alone.
        joined: the run directory was made by the launcher.
        overrides: settings to change, by name: `train(run, seed=3, total_steps=3_000_000)`.
    """
    if overrides:
        run = override(run, overrides)
    if run.ml_framework != "torch":
        raise ConfigError(f"ml_framework={run.ml_framework} does not exist yet; use ml_framework=torch")
    from lockstep.torch import ppo
    from lockstep.torch.session import Session

    session = Session(
        run,
        world,
        run_dir=Path(run_dir) if run_dir else None,
        init_from=Path(init_from) if init_from else None,
        resume=Path(resume) if resume else None,
        joined=joined,
    )
    with session:
        ppo.train(session)
    return session.summary


def exit_code(summary: dict[str, Any]) -> int:
    """0 done, 1 failed, 128 + n after signal n."""
    if summary["status"] == "interrupted":
        return 128 + signal.Signals[summary["error"].rpartition(" ")[2]]
    return 0 if summary["status"] in ("finished", "solved") else 1


def main(arguments: list[str] | None = None) -> int:
    """The command line of one rank, or of a run without launcher."""
    from lockstep.launch.child import die_with_launcher

    die_with_launcher()
    from lockstep import cli

    return cli.main(["train", *(sys.argv[1:] if arguments is None else arguments)])


if __name__ == "__main__":
    code = main()
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of a group that lost a rank may neither keep this one from ending nor abort it
