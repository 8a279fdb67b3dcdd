"""Lines survive a full disk and a resumed run; TensorBoard files are read back by TensorBoard's own reader."""

import contextlib
import importlib
import json
import resource
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from lockstep.record import event_file
from lockstep.record.json_lines import JsonLines
from lockstep.record.run_dir import RunDir
from lockstep.record.tensorboard import TensorBoard
from lockstep.record.video import write_gif
from lockstep.run import Run


def read(directory):
    loader = importlib.import_module("tensorboard.backend.event_processing.event_file_loader")
    scalars = []
    for file in sorted(directory.iterdir()):
        for event in loader.LegacyEventFileLoader(str(file)).Load():
            scalars += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
    return scalars


@pytest.mark.filterwarnings("ignore")  # the reader's, not ours
def test_scalars_arrive_at_their_step_without_what_is_not_finite(tmp_path):
    board = TensorBoard(tmp_path / "tb")
    board.write(5, {"a/b": 1.5, "bad": float("nan")})
    board.write(9, {"a/b": 2.5, "worse": float("inf")})
    board.close()
    assert read(tmp_path / "tb") == [(5, "a/b", 1.5), (9, "a/b", 2.5)]


@pytest.mark.filterwarnings("ignore")
def test_scalars_leave_when_they_are_old_enough(tmp_path):
    board = TensorBoard(tmp_path / "tb", flush_every_s=0.0)
    board.write(1, {"a": 1.0})
    assert read(tmp_path / "tb") == [(1, "a", 1.0)]  # not closed yet
    patient = TensorBoard(tmp_path / "patient", flush_every_s=1000.0)
    patient.write(1, {"a": 1.0})
    assert not (tmp_path / "patient").exists()
    board.close()


def test_nothing_written_makes_no_file(tmp_path):
    TensorBoard(tmp_path / "tb").close()
    assert not (tmp_path / "tb").exists()


def test_a_missing_package_costs_one_line(tmp_path, monkeypatch, capsys):
    def missing(name):
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(event_file, "import_module", missing)
    board = TensorBoard(tmp_path / "tb", flush_every_s=0.0)
    for step in range(3):
        board.write(step, {"a": 1.0})
    board.close()
    said = capsys.readouterr().err
    assert said.count("\n") <= 2
    assert "pip install tensorboard" in said
    assert not (tmp_path / "tb").exists()
    assert "tensorflow" not in sys.modules


@pytest.fixture
def small_disk():
    """Files of this process cannot grow beyond a limit: what fits of a write is written, as on a disk that fills up."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def limit(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))

    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_on_a_full_disk_lines_wait_and_none_is_cut_or_missing(tmp_path, small_disk, capsys):
    path = tmp_path / "lines.jsonl"
    lines = JsonLines(path)
    lines.write({"step": 1})
    small_disk(path.stat().st_size + 5)
    lines.write({"step": 2})
    lines.write({"step": 3})
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{"step": 1}]
    assert capsys.readouterr().err.count("cannot be written") == 1
    small_disk(10_000)
    lines.write({"step": 4})
    lines.close()
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3, 4]


def test_the_warning_may_go_to_the_same_full_disk(tmp_path, small_disk, monkeypatch):
    lines = JsonLines(tmp_path / "lines.jsonl")
    lines.write({"step": 1})
    full = open("/dev/full", "w", buffering=1)  # noqa: SIM115  # its close fails
    try:
        monkeypatch.setattr(sys, "stderr", full)
        small_disk(5)
        lines.write({"step": 2})
        small_disk(10_000)
        lines.close()
    finally:
        with contextlib.suppress(OSError):  # what it kept cannot be written
            full.close()
    assert len((tmp_path / "lines.jsonl").read_text().splitlines()) == 2


def test_lines_that_wait_for_space_are_written_before_a_checkpoint(tmp_path):
    path = tmp_path / "lines.jsonl"
    lines = JsonLines(path)
    path.mkdir()  # as an error of the disk
    lines.write({"step": 1})
    path.rmdir()
    lines.flush()
    assert path.read_text() == '{"step": 1}\n'
    lines.close()


def test_a_file_is_set_back_to_a_step_and_loses_a_line_that_was_cut(tmp_path):
    path = tmp_path / "lines.jsonl"
    lines = JsonLines(path)
    for step in (1, 2, 3):
        lines.write({"step": step})
    with path.open("a") as file:
        file.write('{"step": 2')
    lines.rewind(2)
    lines.write({"step": 5})
    lines.close()
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 5]
    path.write_text('{"step": 1}\n{"step": 2')
    JsonLines(path).rewind(9)
    assert path.read_text() == '{"step": 1}\n'
    JsonLines(path).rewind(-1)
    assert path.read_text() == ""
    JsonLines(tmp_path / "none.jsonl").rewind(3)
    assert not (tmp_path / "none.jsonl").exists()


def test_a_damaged_line_does_not_take_those_after_it_along(tmp_path):
    path = tmp_path / "lines.jsonl"
    damaged = ["{", '{"at": 1}', '{"step": null}', "[]", "\0\0"]
    path.write_text("\n".join(['{"step": 1}', *damaged, '{"step": 2}', '{"step": 3}', '{"step": 2}', ""]))
    JsonLines(path).rewind(2)
    assert path.read_text().splitlines() == ['{"step": 1}', *damaged, '{"step": 2}']


def test_tensorboard_forgets_what_lies_after_the_step_of_a_resumed_run(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for start, steps in ((None, (10, 20, 30)), (20, (30, 40))):
        board = TensorBoard(tmp_path)
        if start is not None:
            board.rewind(start)
        for step in steps:
            board.write(step, {"x": step + (0.5 if start else 0)})
        board.close()
        # Files are read in the order of their names: the second, then a number that counts up, and 10 is before 9.
        time.sleep(1.0)
    seen = EventAccumulator(str(tmp_path)).Reload().Scalars("x")
    assert [(event.step, event.value) for event in seen] == [(10, 10), (20, 20), (30, 30.5), (40, 40.5)]


def test_tensorboard_keeps_evaluations_between_the_last_log_line_and_the_checkpoint(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run_dir = RunDir.create(tmp_path / "run", Run(task="CartPole-v1"))
    run_dir.write_metrics(10, 1.0, {"x": 1.0})
    for step in (10, 12, 14):
        run_dir.write_evaluation(step, [float(step)], [1])
    run_dir.close()
    time.sleep(1.0)  # event files are named by the second
    run_dir = RunDir.join(run_dir.path)
    run_dir.rewind(10, 12)
    run_dir.write_metrics(20, 2.0, {"x": 2.0})
    run_dir.close()
    seen = EventAccumulator(str(run_dir.path / "tensorboard")).Reload()
    assert [(one.step, one.value) for one in seen.Scalars("x")] == [(10, 1.0), (20, 2.0)]
    assert [one.step for one in seen.Scalars("evaluation/return_mean")] == [10, 12]


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_has_what_was_written_before_a_checkpoint_though_its_run_is_killed(tmp_path):
    code = "import os; from lockstep import train; "
    code += "from lockstep.record.checkpoint_writer import CheckpointWriter as W; take = W.take\n"
    code += (
        "def kill(self, *args):\n    take(self, *args)\n    self.finish(lambda: None)\n    os.kill(os.getpid(), 9)\n"
    )
    code += "W.take = kill\ntrain('CartPole-v1', num_envs=8, num_steps=8, num_minibatches=2, log_every=64, "
    code += f"checkpoint_every=256, run_dir={str(tmp_path / 'run')!r})"
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9
    logged = [line["step"] for line in map(json.loads, (tmp_path / "run" / "metrics.jsonl").open())]
    seen = [step for step, name, _ in read(tmp_path / "run" / "tensorboard") if name == "progress/updates"]
    assert seen == logged == [64, 128, 192, 256]


def test_videos_after_the_point_of_a_resumption_go(tmp_path):
    """They are not shown before the run is there again, nor in place of those that it makes then."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run_dir = RunDir.create(tmp_path / "run", Run(task="CartPole-v1"))
    videos = run_dir.path / "videos"
    for step in (10, 20, 30):
        write_gif(videos / f"step_{step}.gif", np.zeros((2, 30, 40, 3), np.uint8), 15)
    (videos / "mine.gif").touch()
    run_dir.close()
    run_dir = RunDir.join(run_dir.path)
    run_dir.rewind(10, 10)
    assert {path.name for path in videos.iterdir()} == {"step_10.gif", "mine.gif"}
    run_dir.write_metrics(15, 1.0, {"x": 1.0})
    run_dir.flush()
    write_gif(videos / "step_20.gif", np.zeros((2, 30, 50, 3), np.uint8), 15)
    run_dir.write_metrics(25, 2.0, {"x": 2.0})
    run_dir.close()
    seen = EventAccumulator(str(run_dir.path / "tensorboard")).Reload()
    assert [(video.step, video.width) for video in seen.Images("video")] == [(20, 50)]


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_has_config_code_evaluations_videos_and_summary(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run_dir = RunDir.create(tmp_path / "run", Run(task="CartPole-v1", seed=7))
    frames = np.zeros((2, 30, 40, 3), np.uint8)
    write_gif(run_dir.path / "videos" / "step_20.gif", frames, 15)
    run_dir.close()
    run_dir = RunDir.join(run_dir.path)  # as at a resumption: the video is not new
    run_dir.rewind(20, 20)
    run_dir.write_metrics(30, 1.0, {"loss/value": 0.5})
    for step in (40, 100):  # by name, the second is the first
        write_gif(run_dir.path / "videos" / f"step_{step}.gif", frames, 15)
    run_dir.write_evaluation(40, [1.0, 3.0, float("nan")], [10, 20, 30])
    run_dir.write_summary({"env_steps": 40, "status": "finished"})
    run_dir.close()
    seen = EventAccumulator(str(run_dir.path / "tensorboard")).Reload()
    scalars = {name: [(one.step, one.value) for one in seen.Scalars(name)] for name in seen.Tags()["scalars"]}
    assert scalars == {
        "loss/value": [(30, 0.5)],
        "evaluation/return_mean": [(40, 2.0)],
        "evaluation/return_std": [(40, 1.0)],
        "evaluation/length_mean": [(40, 20.0)],
    }
    texts = {name: seen.Tensors(name)[0].tensor_proto.string_val[0].decode() for name in seen.Tags()["tensors"]}
    assert "seed: 7" in texts["run/config"] and '"finished"' in texts["run/summary"]
    assert "lockstep" in texts["run/code"] and "torch" in texts["run/code"]
    video, later = seen.Images("video")
    assert later.step == 100
    assert (video.step, video.width, video.height, video.encoded_image_string[:3]) == (40, 40, 30, b"GIF")


@pytest.mark.parametrize("moved", [True, False])
def test_a_run_directory_that_is_moved_or_removed_is_told_once(tmp_path, capsys, moved):
    """The open file takes all that is written, and what is opened later goes to the old path."""
    run_dir = RunDir.create(tmp_path / "run", {"lr": 1.0})
    run_dir.write_metrics(1, 1.0, {"loss/value": 1.0})
    assert capsys.readouterr().err == ""
    if moved:
        (tmp_path / "run").rename(tmp_path / "other")
    else:
        shutil.rmtree(tmp_path / "run")
    for step in (2, 3):
        run_dir.write_metrics(step, 1.0, {"loss/value": 1.0})
    wanted = f"was moved to {tmp_path}/other/metrics.jsonl" if moved else "was removed while it is written"
    run_dir.close()
    said = capsys.readouterr().err
    assert said.startswith(f"lockstep: warning: {tmp_path}/run/metrics.jsonl {wanted}") and said.count("\n") == 1


def test_a_run_directory_that_a_link_leads_to_is_in_its_place(tmp_path, capsys):
    run_dir = RunDir.create(tmp_path / "run", {"lr": 1.0})
    run_dir.write_metrics(1, 1.0, {"loss/value": 1.0})
    (tmp_path / "run").rename(tmp_path / "other")
    (tmp_path / "run").symlink_to("other")
    run_dir.write_metrics(2, 1.0, {"loss/value": 1.0})
    run_dir.close()
    assert capsys.readouterr().err == ""


def test_lines_that_a_full_disk_has_no_space_for_at_the_end_are_told(tmp_path, capsys):
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    lines = JsonLines(tmp_path / "metrics.jsonl")
    lines.write({"step": 1})
    lines.write({"step": 2})
    assert "its lines wait in memory" in capsys.readouterr().err
    lines.close()
    assert "metrics.jsonl lacks its last 2 lines, which could not be written" in capsys.readouterr().err
