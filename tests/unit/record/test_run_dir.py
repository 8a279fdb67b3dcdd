"""What a run leaves on the disk."""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from lockstep.errors import ConfigError
from lockstep.record import run_dir as module
from lockstep.record.run_dir import RunDir, mark_failed
from lockstep.record.summary import empty_summary
from lockstep.run import Run, load

RUN = Run(task="lockstep/Cartpole-v0", seed=3, num_shards=4)
NAN = float("nan")


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_config_is_there_before_anything_else(tmp_path):
    made = RunDir.create(tmp_path / "deep" / "run", RUN)
    assert os.listdir(made.path) == ["run.yaml"]
    assert load(made.path / "run.yaml") == RUN


def test_a_config_may_hold_numpys_numbers_and_paths(tmp_path):
    given = {"lr": np.float64(0.5), "nested": {"sizes": [np.int64(3)]}, "data": Path("logs/a")}
    RunDir.create(tmp_path / "run", given).close()
    stored = {"lr": 0.5, "nested": {"sizes": [3]}, "data": "logs/a"}
    assert yaml.safe_load((tmp_path / "run" / "run.yaml").read_text()) == stored


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (argparse.Namespace(lr=1), r"run=Namespace\(lr=1\) must be .* give vars\(args\)"),
        ({"a": {"b": [1, {2}]}}, r"\(a\.b\[1\]=\{2\}, of type set\)"),
    ],
)
def test_a_config_that_cannot_be_stored_is_named_and_nothing_is_made(tmp_path, config, said):
    with pytest.raises(ConfigError, match=said):
        RunDir.create(tmp_path / "run", config)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        (None, "^metrics=None must be numbers by name"),
        ({"a": 1.0, "b": "2"}, "^metric b='2' must be one number"),
        ({"a": None}, "^metric a=None must be one number"),
        ({"a": np.zeros(3)}, "^metric a=array.* must be one number"),
    ],
)
def test_metrics_that_are_no_numbers_are_named_before_anything_is_written(tmp_path, metrics, said):
    with RunDir.create(tmp_path / "run") as run_dir:
        run_dir.write_metrics(1, 0.5, {"a": np.float32(0.5), "b": np.ones(1), "c": True})
        with pytest.raises(ConfigError, match=said):
            run_dir.write_metrics(2, 1.0, metrics)
    assert [line["step"] for line in lines(tmp_path / "run" / "metrics.jsonl")] == [1]


def test_default_names_are_made_of_the_task_and_unique(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module.time, "strftime", lambda _: "20260101-000000")
    made = [RunDir.create(None, RUN).path for _ in range(3)]
    first = Path("runs/lockstep-Cartpole-v0-ppo-20260101-000000")
    assert made == [first, Path(f"{first}-2"), Path(f"{first}-3")]
    assert RunDir.create(None, {"lr": 1e-3}, name="mine").path.name == "mine-20260101-000000"
    assert RunDir.create(None).path.name == "run-20260101-000000"
    for attempt in range(4, 1000):
        Path(f"{first}-{attempt}").mkdir()
    others = len(list(Path("runs").glob("lockstep-*"))) - 1
    with pytest.raises(ConfigError, match=rf"run_dir={first} and {others} like it exist; choose one with --run-dir"):
        RunDir.create(None, RUN)


@pytest.mark.parametrize(
    ("name", "made"), [("ALE/Pong-v5", "ALE-Pong-v5"), ("../../x", "x"), ("a b:c", "a-b-c"), ("/", "run")]
)
def test_a_name_is_no_path(tmp_path, monkeypatch, name, made):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module.time, "strftime", lambda _: "now")
    assert RunDir.create(None, {"lr": 1.0}, name=name).path == Path(f"runs/{made}-now")


@pytest.mark.parametrize("data", [None, 3, {"train": "x"}])
def test_data_of_a_loop_of_ones_own_may_be_anything(tmp_path, monkeypatch, data):
    monkeypatch.chdir(tmp_path)
    with RunDir.create(None, {"data": data, "task": "mine"}) as run_dir:
        assert run_dir.path.name.startswith("mine-")


def test_a_directory_that_holds_files_is_refused_and_kept(tmp_path):
    (tmp_path / "precious").write_text("x")
    with pytest.raises(ConfigError, match=r"run_dir=.* already holds files.*--run-dir"):
        RunDir.create(tmp_path, RUN)
    assert os.listdir(tmp_path) == ["precious"]
    with pytest.raises(ConfigError, match="is a file"):
        RunDir.create(tmp_path / "precious", RUN)


def test_of_two_runs_that_begin_at_once_in_one_directory_the_second_is_refused(tmp_path, monkeypatch):
    make_empty = module._make_empty

    def slowly(path, made):
        monkeypatch.setattr(module, "_make_empty", make_empty)
        target = make_empty(path, made)
        RunDir.create(path, {"seed": 1})
        return target

    monkeypatch.setattr(module, "_make_empty", slowly)
    with pytest.raises(ConfigError, match="already holds files"):
        RunDir.create(tmp_path / "run", {"seed": 2})
    assert (tmp_path / "run" / "run.yaml").read_text() == "seed: 1\n"


def test_an_empty_directory_is_used(tmp_path):
    assert RunDir.create(tmp_path, RUN).path == tmp_path


@pytest.mark.parametrize("make", [lambda path: path / "file" / "a" / "b", lambda _: Path("/proc/nowhere/run")])
def test_what_cannot_be_written_is_one_line(tmp_path, make):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match=r"run_dir=.* cannot be written") as caught:
        RunDir.create(make(tmp_path), RUN)
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == ["file"]


def test_nothing_is_left_behind_when_the_config_cannot_be_written(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_atomically", full)
    with pytest.raises(ConfigError, match="No space left"):
        RunDir.create(tmp_path / "a" / "b", RUN)
    assert os.listdir(tmp_path) == []
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="plain values"):
        RunDir.create(tmp_path / "a" / "b", {"f": object()})
    assert os.listdir(tmp_path) == []


def test_discard_removes_the_runs_folder_that_create_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    RunDir.create(None, RUN).discard()
    assert os.listdir(tmp_path) == []


def test_discard_keeps_a_runs_folder_that_other_runs_use(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused, other = RunDir.create(None, RUN), RunDir.create(None, RUN, name="other")
    refused.discard()
    assert list(Path("runs").iterdir()) == [other.path]


def test_a_runs_folder_that_is_removed_meanwhile_is_made_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mkdir = Path.mkdir

    def remove_first(path, *args, **kwargs):
        monkeypatch.setattr(Path, "mkdir", mkdir)
        mkdir(path, *args, **kwargs)
        path.rmdir()

    monkeypatch.setattr(Path, "mkdir", remove_first)
    assert RunDir.create(None, RUN).path.is_dir()


def test_metrics_are_on_the_disk_at_once_with_null_for_nan(tmp_path):
    made = RunDir.create(tmp_path / "run", RUN)
    made.write_metrics(10, 0.5, {"a": 1.0, "b": NAN, "c": float("inf"), "d": np.float32(2)})
    made.write_metrics(20, 1.0, {"a": 2})
    read = lines(made.path / "metrics.jsonl")  # before close
    assert read == [
        {"step": 10, "time_s": 0.5, "a": 1.0, "b": None, "c": None, "d": 2.0},
        {"step": 20, "time_s": 1.0, "a": 2},
    ]
    assert list(read[0])[:2] == ["step", "time_s"]
    made.close()


def test_evaluations_keep_every_episode(tmp_path):
    with RunDir.create(tmp_path / "run", RUN) as made:
        made.write_evaluation(10, [1.0, NAN], [3, 4])
        made.write_evaluation(20, np.array([1.5]), np.array([7]))
    assert lines(made.path / "evaluations.jsonl") == [
        {"step": 10, "returns": [1.0, None], "lengths": [3, 4]},
        {"step": 20, "returns": [1.5], "lengths": [7]},
    ]


def test_the_summary_is_replaced_as_a_whole(tmp_path, monkeypatch):
    made = RunDir.create(tmp_path / "run", RUN)
    made.write_summary({"status": "finished", "x": NAN})
    seen = []

    def rename(source, target):
        seen.append((json.loads(Path(source).read_text()), json.loads(Path(target).read_text())))
        raise OSError("power failure")

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(OSError, match="power failure"):
        made.write_summary({"status": "solved"})
    assert seen == [({"status": "solved"}, {"status": "finished", "x": None})]
    assert sorted(os.listdir(made.path)) == ["run.yaml", "summary.json"]


def test_join_opens_what_another_process_made(tmp_path):
    RunDir.create(tmp_path / "run", RUN)
    with RunDir(str(tmp_path / "run")) as joined:
        joined.write_metrics(1, 0.1, {"a": 1.0})
    assert len(lines(tmp_path / "run" / "metrics.jsonl")) == 1
    with pytest.raises(ConfigError, match="does not exist"):
        RunDir.join(tmp_path / "none")


def test_mark_failed_keeps_what_the_ranks_wrote(tmp_path):
    made = RunDir.create(tmp_path / "run", RUN)
    made.write_summary(empty_summary(RUN) | {"status": "finished", "env_steps": 77, "world_size": 2})
    mark_failed(made.path, "rank 1 was killed")
    read = json.loads((made.path / "summary.json").read_text())
    assert (read["status"], read["error"], read["env_steps"], read["world_size"]) == (
        "failed",
        "rank 1 was killed",
        77,
        2,
    )


def test_mark_failed_without_a_summary_tells_what_is_known(tmp_path):
    made = RunDir.create(tmp_path / "run", RUN)
    made.write_metrics(1000, 2.0, {"a": 1.0})
    made.write_metrics(2000, 4.0, {"progress/updates": 5.0, "progress/episodes": 7.0, "time/learn_s": 3.0})
    made.write_evaluation(1500, [1.0, 3.0, NAN], [4, 5, 6])
    made.close()
    with (made.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3000, "ti')  # killed while writing
    mark_failed(made.path, "gone", status="interrupted", processes=2)
    read = json.loads((made.path / "summary.json").read_text())
    assert list(read) == list(empty_summary(RUN))
    assert (read["status"], read["error"], read["task"], read["seed"]) == ("interrupted", "gone", RUN.task, 3)
    assert (read["env_steps"], read["wall_time_s"], read["steps_per_second"]) == (2000, 4.0, 500.0)
    assert (read["updates"], read["episodes"], read["phases_s"]["learn"]) == (5, 7, 3.0)
    assert (read["eval_return_mean"], read["eval_return_std"], read["eval_episodes"]) == (2.0, 1.0, 2)
    assert (read["world_size"], read["num_shards"]) == (2, 4)


def test_mark_failed_takes_damaged_lines(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"loss": 1}\n')
    (tmp_path / "evaluations.jsonl").write_text('{"step": "x", "returns": 3}\n')
    mark_failed(tmp_path, "gone", processes=2)
    read = json.loads((tmp_path / "summary.json").read_text())
    assert (read["env_steps"], read["eval_return_mean"], read["num_shards"]) == (0, None, 2)


def test_mark_failed_counts_each_device_of_a_process_as_a_rank(tmp_path):
    made = RunDir.create(tmp_path / "run", replace(RUN, ml_framework="jax", devices_per_process=4))
    mark_failed(made.path, "gone", processes=2)
    assert json.loads((made.path / "summary.json").read_text())["world_size"] == 8


@pytest.mark.parametrize("text", ["", "7", "{", "[1, 2]"])
def test_mark_failed_takes_any_config_file(tmp_path, text):
    (tmp_path / "run.yaml").write_text(text)
    mark_failed(tmp_path, "gone", processes=2)
    assert json.loads((tmp_path / "summary.json").read_text())["world_size"] == 2


def test_mark_failed_in_an_empty_directory(tmp_path):
    mark_failed(tmp_path, "gone")
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "failed"


def test_recording_loads_no_framework(tmp_path):
    code = f"""
import sys
from lockstep.record.run_dir import RunDir
made = RunDir.create({str(tmp_path / "run")!r}, {{"lr": 0.1}})
made.write_metrics(1, 0.1, {{"a": 1.0}})
made.close()
assert not {{"torch", "jax", "tensorflow", "gymnasium", "rich"}} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert any((tmp_path / "run" / "tensorboard").iterdir())


def test_a_run_that_another_process_trains_is_not_gone_on_with(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_LOCK_TIMEOUT_S", 0.2)
    held = module.lock_run_dir(tmp_path)
    with pytest.raises(ConfigError, match="is in use: another process trains this run"):
        module.lock_run_dir(tmp_path)
    os.close(held)
    os.close(module.lock_run_dir(tmp_path))
