"""Experiment trackers: what they receive, and that a slow, failing or missing one costs a warning, never the run."""

import json
import math
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

import lockstep
from lockstep.config import settings
from lockstep.errors import ConfigError
from lockstep.record.journal import Journal
from lockstep.record.progress import Progress
from lockstep.record.run_dir import RunDir
from lockstep.record.trackers import background
from lockstep.record.trackers.background import BackgroundCalls
from lockstep.record.trackers.interface import evaluation_metrics
from lockstep.record.trackers.open import Trackers, check_trackers
from lockstep.run import Run, override
from lockstep.world import World

SINK = """
import json
from pathlib import Path

class Sink:
    def start(self, run):
        self.write("start", run.id, run.name, run.config["seed"], sorted(run.code))
        return run.id or "first"
    def write(self, *values):
        with Path("sink.jsonl").open("a") as file:
            file.write(json.dumps(values) + "\\n")
    def metrics(self, step, metrics):
        self.write("metrics", step, metrics)
    def evaluation(self, step, returns, lengths):
        self.write("evaluation", step, returns, lengths)
    def file(self, path, step):
        self.write("file", step, path.name)
    def finish(self, summary):
        self.write("finish", summary["status"])

class Broken(Sink):
    def metrics(self, step, metrics):
        raise OSError("the server is down")

class Unstartable(Sink):
    def start(self, run):
        raise RuntimeError("no such project")
"""


@pytest.fixture
def sinks(here):
    (here / "sinks.py").write_text(SINK)
    (here / "run").mkdir()
    return here


def opened(*names, warnings=None):
    run = Run(task="CartPole-v1", trackers=names)
    return Trackers(run.trackers, run, Path("run"), (warnings if warnings is not None else []).append)


def received():
    return [json.loads(line) for line in Path("sink.jsonl").read_text().splitlines()]


def test_tracker_receives_config_metrics_evaluations_videos_and_summary(sinks):
    trackers = opened("sinks.py:Sink")
    trackers.metrics(10, {"loss": 1.5, "lost": math.nan})
    (sinks / "run" / "videos").mkdir()
    (sinks / "run" / "videos" / "step_20.gif").touch()
    trackers.evaluation(20, [1.0, 2.0], [3, 4])
    (sinks / "run" / "run.yaml").touch()
    trackers.finish({"env_steps": 30, "status": "solved"}, ("run.yaml", "missing.json"))
    trackers.close()
    start, *rest = received()
    assert start[:4] == ["start", None, "run", 0] and {"lockstep", "python", "torch"} <= set(start[4])
    assert rest == [
        ["metrics", 10, {"loss": 1.5}],
        ["evaluation", 20, [1.0, 2.0], [3, 4]],
        ["file", 20, "step_20.gif"],
        ["file", 30, "run.yaml"],
        ["finish", "solved"],
    ]


def test_resumed_run_continues_the_run_of_the_tracker(sinks):
    opened("sinks.py:Sink").close()
    (sinks / "run" / "videos").mkdir()
    (sinks / "run" / "videos" / "step_20.gif").touch()
    trackers = opened("sinks.py:Sink")
    trackers.evaluation(30, [1.0], [1])
    trackers.close()
    assert [line[1] for line in received() if line[0] == "start"] == [None, "first"]
    assert not [line for line in received() if line[0] == "file"]  # sent by the first start


def test_a_video_that_a_resumed_run_makes_anew_is_sent(sinks):
    video = sinks / "run" / "videos" / "step_20.gif"
    video.parent.mkdir()
    (sinks / "run" / "run.yaml").touch()
    video.touch()
    run = Run(task="CartPole-v1", trackers=("sinks.py:Sink",))
    journal = Journal(run, World(), RunDir.join("run"), started_by_lockstep=True, exists=True)
    journal.resume()  # from before its first evaluation
    assert not video.exists()
    video.touch()
    journal.record_evaluation(Progress(100, env_steps=20), [1.0], [1], None, 1.0)
    journal.close()
    assert [line[1:] for line in received() if line[0] == "file"] == [[20, "step_20.gif"]]


def test_failing_tracker_costs_one_warning(sinks):
    warnings = []
    trackers = opened("sinks.py:Broken", "sinks.py:Sink", "sinks.py:Unstartable", warnings=warnings)
    for step in range(5):
        trackers.metrics(step, {"loss": 1.0})
    trackers.finish({"env_steps": 5, "status": "finished"}, ())
    trackers.close()
    assert len([line for line in received() if line[0] == "metrics"]) == 5
    assert len([line for line in received() if line[0] == "finish"]) == 2  # a tracker that failed is tried again
    assert sorted(warning[:60] for warning in warnings) == [
        "trackers=sinks.py:Broken failed (the server is down); traini",
        "trackers=sinks.py:Unstartable failed (no such project); trai",
    ]


def test_stuck_tracker_neither_blocks_the_run_nor_its_end(monkeypatch):
    monkeypatch.setattr(background, "QUEUE_SIZE", 10)
    warnings, released = [], threading.Event()
    begun = threading.Event()
    calls = BackgroundCalls("slow", lambda: (begun.set(), released.wait()), warnings.append)
    assert begun.wait(10)
    start = time.monotonic()
    for _ in range(10_000):
        calls.submit(lambda: None)
    assert not calls.close(0.2)
    assert time.monotonic() - start < 5
    released.set()
    assert "trackers=slow is too slow; entries are left out there" in warnings[0]
    assert "11 entries were not sent within 0.2 s" in warnings[1] and len(warnings) == 2


def test_calls_that_wait_are_done_at_the_end():
    done = []
    calls = BackgroundCalls("steady", lambda: time.sleep(0.1), done.append)
    for i in range(50):
        calls.submit(lambda i=i: done.append(i))
    assert calls.close() and done == list(range(50))


def test_unknown_and_missing_trackers_are_refused(here):
    with pytest.raises(ConfigError, match="trackers=wandbb is unknown; use wandb, mlflow, module:Class or file"):
        Run(task="CartPole-v1", trackers=("wandbb",))
    with pytest.raises(ConfigError, match="there is no file"):
        check_trackers(["nothing.py:Sink"])
    for name in ("wandb", "mlflow"):
        if find_spec(name) is None:
            with pytest.raises(ConfigError, match=rf"trackers={name} needs .* pip install 'lockstep-rl\[{name}\]'"):
                check_trackers([name])
    assert override(Run(task="CartPole-v1"), {"trackers": ["mlflow"]}).trackers == ("mlflow",)
    assert settings.leaves({"trackers": ("mlflow",)}) == {"trackers": ["mlflow"]}


def test_training_gives_the_same_bits_with_a_tracker(sinks, capfd):
    run = Run(task="CartPole-v1", total_steps=512, evaluate_every=None, evaluate_episodes=2, log_every=128)
    run = override(run, {"num_steps": 16, "num_epochs": 1, "checkpoint_every": None, "num_shards": 1})
    plain = lockstep.train(run, run_dir="plain")
    tracked = lockstep.train(override(run, {"trackers": ["sinks.py:Sink", "sinks.py:Broken"]}), run_dir="tracked")
    assert tracked["params_fingerprint"] == plain["params_fingerprint"]
    found = [line for line in received() if line[0] != "start"]
    assert [line[1] for line in found if line[0] == "metrics"] == [128, 256, 384, 512]
    assert found[-1] == ["finish", "finished"]
    assert capfd.readouterr().out.count("sinks.py:Broken failed") == 1
    ids = json.loads((sinks / "tracked" / "trackers.json").read_text())
    assert ids == {"sinks.py:Sink": "first", "sinks.py:Broken": "first"}


def test_episodes_without_a_return_do_not_spoil_the_means_of_an_evaluation():
    nan = float("nan")
    assert evaluation_metrics([1.0, nan, 3.0], [10, 20, 30]) == {
        "evaluation/return_mean": 2.0,
        "evaluation/return_std": 1.0,
        "evaluation/length_mean": 20.0,
    }
    assert evaluation_metrics([nan], [10]) == {} == evaluation_metrics([], [])
