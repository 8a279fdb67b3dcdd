"""Weights & Biases in offline mode, and MLflow with a server of its own, in real runs: what they kept is read back.

`make test-trackers` installs what this needs.
"""

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

import lockstep
from lockstep.record.run_dir import METRICS_FILE
from lockstep.record.trackers import background
from lockstep.run import Run, override

# `LOCKSTEP_TEST_MLFLOW`: the command `mlflow` of another environment, since its server and client need other packages.
MLFLOW = os.environ.get("LOCKSTEP_TEST_MLFLOW") or (shutil.which("mlflow") if find_spec("flask") else None)
RETURN = "episode/return_mean_100"

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # their packages warn about each other


def small_run(*trackers, total_steps=512):
    run = Run(task="CartPole-v1", total_steps=total_steps, evaluate_every=256, evaluate_episodes=2, log_every=128)
    return override(run, {"num_steps": 16, "num_epochs": 1, "num_shards": 1, "trackers": list(trackers)})


def in_process(line, **environment):
    """Run a line of Python in another process, as W&B keeps a service per process."""
    script = f"import lockstep; from {__name__} import small_run; {line}"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), **environment}
    return subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=300)


def logged(run_dir):
    """Step and mean return of each line of the run's own metrics."""
    lines = [json.loads(line) for line in (Path(run_dir) / METRICS_FILE).read_text().splitlines()]
    return [(line["step"], line[RETURN]) for line in lines if RETURN in line]


def records(path):
    """The records of a `.wandb` file, whose format is LevelDB's log with a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    data, at, part = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (room := 32768 - at % 32768) < 7:
            at += room
            continue
        size, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        part += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # a whole record, or its last part
            yield wandb_internal_pb2.Record.FromString(part)
            part = b""


def test_wandb_offline_keeps_a_run_and_its_resumption(here):
    pytest.importorskip("wandb")
    for change in ("run_dir='run'", "resume='run', total_steps=1024"):
        done = in_process(f"lockstep.train(small_run('wandb'), {change})", WANDB_MODE="offline")
        said = [
            line for line in done.stderr.splitlines() if not line.startswith("lockstep: note: total_steps is 1024 ")
        ]
        assert done.returncode == 0 and not said, done.stderr
    number = json.loads(Path("run/trackers.json").read_text())["wandb"]
    files = sorted(Path("run/wandb").glob(f"offline-run-*/run-{number}.wandb"))
    assert len(files) == 2  # one for each start, of the same run
    rows, codes, config, files_kept = [], [], {}, set()
    for record in (record for file in files for record in records(file)):
        kind = record.WhichOneof("record_type")
        if kind == "history":
            items = record.history.item
            rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
        elif kind == "run":
            assert record.run.run_id == number
            config = {item.key: item.value_json for item in record.run.config.update}
        elif kind == "exit":
            codes.append(record.exit.exit_code)
        elif kind == "files":
            files_kept |= {item.path for item in record.files.files}
    assert [(row["step"], row[RETURN]) for row in rows if RETURN in row] == logged("run")
    assert [row["step"] for row in rows if "evaluation/return_mean" in row] == [256, 512, 768, 1024]
    assert config["total_steps"] == "1024" and json.loads(config["code"])["lockstep"]
    assert codes == [0, 0]
    assert {path.name for path in files[1].parent.glob("files/*")} >= {"run.yaml", "summary.json"}


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A server of MLflow with SQLite; the process, which a test may kill."""
    pytest.importorskip("mlflow")
    if MLFLOW is None:
        pytest.skip("needs a server: pip install mlflow, or LOCKSTEP_TEST_MLFLOW=path of the command mlflow")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [MLFLOW, "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += [
        "--backend-store-uri",
        f"sqlite:///{tmp_path}/runs.db",
        "--artifacts-destination",
        str(tmp_path / "files"),
    ]
    with (tmp_path / "server.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    until = time.monotonic() + 180
    while time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        assert process.poll() is None, (tmp_path / "server.log").read_text()
        time.sleep(0.5)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
    yield process
    kill(process)


def kill(process):
    """The server and its workers, which share a process group."""
    try:
        os.killpg(process.pid, 9)
    except ProcessLookupError:
        return
    process.wait()


def test_mlflow_server_keeps_a_run_and_its_resumption(here, server, monkeypatch):
    from mlflow import MlflowClient

    monkeypatch.setattr(background, "CLOSE_TIMEOUT_S", 120.0)

    lockstep.train(small_run("mlflow"), run_dir="run")
    lockstep.train(small_run("mlflow", total_steps=1024), resume="run")
    client, number = MlflowClient(), json.loads(Path("run/trackers.json").read_text())["mlflow"]
    found = client.get_run(number)
    assert found.info.status == "FINISHED" and found.info.run_name == "run"
    assert found.data.params["algorithm.num_steps"] == "16"
    assert found.data.params["total_steps"] == "512" and found.data.tags["resumed.total_steps"] == "1024"
    history = [(metric.step, metric.value) for metric in client.get_metric_history(number, RETURN)]
    assert history == logged("run")
    evaluations = client.get_metric_history(number, "evaluation/return_mean")
    assert [metric.step for metric in evaluations] == [256, 512, 768, 1024]
    assert {item.path for item in client.list_artifacts(number)} == {"run.yaml", "summary.json"}
    assert len(client.search_runs([found.info.experiment_id])) == 1


KILL_SERVER = """
import os, signal
from lockstep.record.trackers.mlflow_tracker import MlflowTracker

class Tracker(MlflowTracker):
    def metrics(self, step, metrics):
        if step == 256:
            os.killpg({pid}, signal.SIGKILL)
        super().metrics(step, metrics)
"""


def test_mlflow_server_killed_during_the_run_costs_a_warning(here, server, capfd):
    Path("killer.py").write_text(KILL_SERVER.format(pid=server.pid))
    start = time.monotonic()
    summary = lockstep.train(small_run("killer.py:Tracker"), run_dir="run")
    assert summary["status"] == "finished" and len(logged("run")) == 4
    assert time.monotonic() - start < 60
    assert capfd.readouterr().out.count("warning: trackers=killer.py:Tracker") == 1


def test_wandb_with_a_server_that_is_down_ends_in_bounded_time(here):
    pytest.importorskip("wandb")
    start = time.monotonic()
    down = {"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": "0" * 40, "WANDB_MODE": "online"}
    done = in_process("lockstep.train(small_run('wandb'), run_dir='run')", **down)
    assert done.returncode == 0, done.stderr
    assert "trackers=wandb" in done.stdout and len(logged("run")) == 4
    assert "Traceback" not in done.stderr
    assert time.monotonic() - start < 75  # W&B alone waits 90 s longer


FULL_DISK = """
from dataclasses import replace
from pathlib import Path

from lockstep.record.trackers.wandb_tracker import WandbTracker


class Tracker(WandbTracker):
    def start(self, run):
        number = super().start(replace(run, directory=Path({disk!r})))
        with open({disk!r} + "/rest", "wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError as error:
                print("the disk is full:", error.errno)
        return number
"""


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_full_disk_of_a_tracker_does_not_end_the_run(here, small_disk):
    pytest.importorskip("wandb")
    Path("full.py").write_text(FULL_DISK.format(disk=str(small_disk)))
    start = time.monotonic()
    done = in_process("lockstep.train(small_run('full.py:Tracker'), run_dir='run')", WANDB_MODE="offline")
    assert done.returncode == 0, done.stderr
    assert "the disk is full: 28" in done.stdout  # ENOSPC, from its start on
    assert json.loads(Path("run/summary.json").read_text())["status"] == "finished" and len(logged("run")) == 4
    assert time.monotonic() - start < 75
