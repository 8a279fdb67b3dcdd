"""MLflow. Server and experiment are those of its own variables (`MLFLOW_TRACKING_URI`, `MLFLOW_EXPERIMENT_NAME`)."""

import os
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from lockstep.record.trackers.interface import TrackedRun, evaluation_metrics

mlflow: Any = import_module("mlflow")  # an extra, which not every installation has
_MAX_LETTERS, _MAX_PARAMS = 500, 100  # of a value, and of one request
_STATUS = {"finished": "FINISHED", "solved": "FINISHED", "interrupted": "KILLED"}


class MlflowTracker:
    """A run of an MLflow experiment, without MLflow's global state."""

    def start(self, run: TrackedRun) -> str:
        """Create or continue the run. Parameters of MLflow cannot change: later ones are tags `resumed.NAME`."""
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")  # the defaults retry for minutes
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        self._client = client = mlflow.MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "lockstep")
        found = client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else client.create_experiment(name)
        self._id: str = run.id or client.create_run(experiment, run_name=run.name).info.run_id
        client.update_run(self._id, status="RUNNING")
        known = client.get_run(self._id).data.params
        texts = {name: str(value)[:_MAX_LETTERS] for name, value in run.config.items()}
        new = [mlflow.entities.Param(name, text) for name, text in texts.items() if name not in known]
        for i in range(0, len(new), _MAX_PARAMS):
            client.log_batch(self._id, params=new[i : i + _MAX_PARAMS])
        tags = {f"resumed.{name}": text for name, text in texts.items() if known.get(name, text) != text}
        tags |= {f"version.{name}": version for name, version in run.code.items()}
        client.log_batch(self._id, tags=[mlflow.entities.RunTag(name, text) for name, text in tags.items()])
        return self._id

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log one row in one request."""
        now = int(time.time() * 1000)
        row = [mlflow.entities.Metric(name, value, now, step) for name, value in metrics.items()]
        self._client.log_batch(self._id, metrics=row)

    def evaluation(self, step: int, returns: Sequence[float], lengths: Sequence[int]) -> None:
        """Log mean and standard deviation."""
        self.metrics(step, evaluation_metrics(returns, lengths))

    def file(self, path: Path, step: int) -> None:
        """Log an artifact; videos have a folder of their own."""
        self._client.log_artifact(self._id, str(path), "videos" if path.suffix == ".gif" else None)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Log numbers of the summary as metrics, and end the run."""
        numbers = {name: float(value) for name, value in summary.items() if type(value) in (int, float)}
        self.metrics(summary["env_steps"], {f"summary/{name}": value for name, value in numbers.items()})
        self._client.set_terminated(self._id, _STATUS.get(summary["status"], "FAILED"))
