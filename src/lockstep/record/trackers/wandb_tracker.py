"""Weights & Biases. Project, entity, mode and server are those of its own variables (`WANDB_PROJECT`, ...)."""

import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from lockstep.record.run_status import COMPLETE
from lockstep.record.trackers.background import kill_at_exit
from lockstep.record.trackers.interface import TrackedRun, evaluation_metrics, finite_returns

wandb: Any = import_module("wandb")  # an extra, which not every installation has


class WandbTracker:
    """A run of Weights & Biases; its local files are in `wandb/` of the run directory."""

    def start(self, run: TrackedRun) -> str:
        """Create or continue the run; metrics have `step` as their axis, since a resumed run repeats some steps."""
        number = run.id or secrets.token_hex(4)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "lockstep"),
            id=number,
            name=run.name,
            dir=run.directory,
            config={**run.config, "code": dict(run.code)},
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(console="off", silent=True),
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        return number

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log one row."""
        self._run.log({**metrics, "step": step})

    def evaluation(self, step: int, returns: Sequence[float], lengths: Sequence[int]) -> None:
        """Log mean and standard deviation, and the histogram of the returns."""
        row = {**evaluation_metrics(returns, lengths), "evaluation/returns": wandb.Histogram(finite_returns(returns))}
        self._run.log({**row, "step": step})

    def file(self, path: Path, step: int) -> None:
        """Log a video as media, and add other files to those of the run."""
        if path.suffix == ".gif":
            self._run.log({"video": wandb.Video(str(path), format="gif"), "step": step})
        else:
            shutil.copy(path, self._run.dir)  # all files there are sent at the end

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the summary and end the run; all but a finished one have an exit code of 1."""
        self._run.summary.update({f"summary/{name}": value for name, value in summary.items()})
        self._run.finish(exit_code=0 if summary["status"] in COMPLETE else 1)

    def abandon(self) -> None:
        """Bound the exit, where W&B waits minutes for a server that is down; `wandb sync` sends the files later."""
        kill_at_exit("wandb-core")
