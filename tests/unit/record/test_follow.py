"""Reading files that another process may still write."""

import fcntl
import json
import os
import subprocess
import sys
import time

import pytest

from lockstep.record import run_status
from lockstep.record.follow import _END_BYTES, JsonLinesFollower, last_line
from lockstep.record.json_lines import JsonLines
from lockstep.record.run_dir import RunDir, lock_run_dir
from lockstep.record.run_status import is_running, written_at


def test_only_complete_lines_are_read_and_each_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    follower = JsonLinesFollower(path)
    assert not follower.update() and follower.lines == []
    path.write_text('{"step": 1}\n{"step"')
    assert follower.update() and follower.lines == [{"step": 1}]
    assert not follower.update()
    with path.open("a") as file:
        file.write(': 2}\nnot json\n[3]\n{"step": 4}\n')
    assert follower.update() and follower.lines == [{"step": 1}, {"step": 2}, {"step": 4}]


def test_a_file_that_is_cut_or_replaced_is_read_again(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n')
    follower = JsonLinesFollower(path)
    follower.update()
    os.truncate(path, 12)  # a resumed run removes what came after its checkpoint
    assert follower.update() and follower.lines == [{"step": 1}]
    (tmp_path / "new").write_text('{"step": 7}\n{"step": 8}\n{"step": 9}\n')
    (tmp_path / "new").rename(path)
    assert follower.update() and [line["step"] for line in follower.lines] == [7, 8, 9]
    path.unlink()
    assert follower.update() and follower.lines == []


def test_of_many_lines_the_newest_are_kept(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n')
    follower = JsonLinesFollower(path, keep=2)
    follower.update()
    assert [line["step"] for line in follower.lines] == [2, 3] and len(follower.added) == 3
    with path.open("a") as file:
        file.write('{"step": 4}\n')
    follower.update()
    assert [line["step"] for line in follower.lines] == [3, 4] and follower.added == [{"step": 4}]
    follower.update()
    assert [line["step"] for line in follower.lines] == [3, 4] and follower.added == []


@pytest.mark.parametrize("value", [1.0, 2.25])
def test_a_file_that_was_cut_and_has_grown_past_its_old_end_is_read_again(tmp_path, value):
    """Between two looks: a run that is resumed writes the lines after its checkpoint again."""
    path = tmp_path / "metrics.jsonl"
    lines = JsonLines(path)
    for step in range(7):
        lines.write({"step": step, "value": 3.0})
    follower = JsonLinesFollower(path)
    follower.update()
    lines.rewind(3)
    for step in range(4, 10):
        lines.write({"step": step, "value": value})
    lines.close()
    assert follower.update() and not follower.update()
    assert [(line["step"], line["value"]) for line in follower.lines] == [
        *((step, 3.0) for step in range(4)),
        *((step, value) for step in range(4, 10)),
    ]


def test_last_line_skips_one_that_is_incomplete(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert last_line(path) == {}
    path.write_text("".join(json.dumps({"step": i, "pad": "x" * 1000}) + "\n" for i in range(200)) + '{"step": 20')
    assert last_line(path)["step"] == 199


def test_last_line_may_be_longer_than_what_is_read_at_once(tmp_path):
    path = tmp_path / "evaluations.jsonl"
    lines = [json.dumps({"step": step, "returns": [step + 0.123456789] * 20_000}) + "\n" for step in (1, 2)]
    assert len(lines[0]) > 3 * _END_BYTES
    path.write_text(lines[0])
    assert last_line(path)["step"] == 1
    path.write_text("".join(lines) + lines[1][:100_000])
    assert last_line(path)["step"] == 2
    path.write_text("x" * (3 * _END_BYTES))
    assert last_line(path) == {}


def test_locked_run_is_running_and_a_finished_or_killed_one_is_not(tmp_path):
    run = RunDir.create(tmp_path / "run", {"task": "x"}).path
    assert not is_running(run)  # its files are fresh, but on this machine the lock decides
    lock = lock_run_dir(run)
    assert is_running(run)
    os.close(lock)
    assert not is_running(run)
    assert time.time() - written_at(run) < 60 and not is_running(tmp_path / "missing")


LOOP = """
import sys
from lockstep import RunDir
with RunDir.create(sys.argv[1], {"task": "x"}) as run:
    run.write_metrics(1, 1.0, {"a": 1.0})
    print("recorded", flush=True)
    sys.stdin.read()
"""


def test_loop_of_ones_own_is_running_while_it_records(tmp_path):
    """Its records are locked, and not its directory, which a CheckpointManager may lock."""
    path = tmp_path / "run"
    child = subprocess.Popen([sys.executable, "-c", LOOP, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout.readline() == b"recorded\n"
        assert is_running(path)
        os.close(lock_run_dir(path))
    finally:
        child.kill()
        child.communicate()
    assert not is_running(path)


def test_loop_whose_records_a_reader_held_is_running_from_its_next_line(tmp_path):
    with RunDir.create(tmp_path / "run") as run, (tmp_path / "run" / "metrics.jsonl").open("ab") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        run.write_metrics(1, 1.0, {"a": 1.0})
        fcntl.flock(reader, fcntl.LOCK_UN)
        assert not is_running(run.path)
        run.write_metrics(2, 2.0, {"a": 1.0})
        assert is_running(run.path)
        run.write_summary({"status": "finished"})
        assert not is_running(run.path)


@pytest.mark.parametrize(("kind", "running"), [("nfs4", True), ("fuse.sshfs", True), ("ext4", False)])
def test_run_on_a_network_file_system_is_running_while_it_writes(tmp_path, monkeypatch, kind, running):
    run = RunDir.create(tmp_path / "run", {"task": "x"}).path
    device = run.stat().st_dev
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"36 35 {os.major(device)}:{os.minor(device)} / /mnt rw,noatime - {kind} server:/data rw\n")
    monkeypatch.setattr(run_status, "_MOUNTS", mounts)
    assert is_running(run) == running
    monkeypatch.setattr(run_status, "FRESH_S", 0.0)
    assert not is_running(run)
