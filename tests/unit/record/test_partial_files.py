"""What a killed run leaves half-written goes; what is whole stays."""

import os

from lockstep.estimators.result import ESTIMATES_FILE
from lockstep.preflight import compare
from lockstep.record.partial_files import ATOMICALLY_WRITTEN, remove_partial_files, remove_results
from lockstep.record.run_dir import INIT_FROM_FILE, RUN_FILE, SUMMARY_FILE
from lockstep.record.trackers.open import IDS_FILE
from lockstep.session.policy_file import BEST_POLICY_FILE, POLICY_FILE
from lockstep.session.profile import PROFILE_FILE
from lockstep.system.files import write_atomically


def files(path):
    return sorted(str(found.relative_to(path)) for found in path.rglob("*"))


def test_half_written_goes_and_whole_stays(tmp_path):
    for name in ("checkpoints/step_10", "checkpoints/.step_20", "checkpoints/.step_20/deep", "logs"):
        (tmp_path / name).mkdir(parents=True)
    whole = ["run.yaml", ".mine", ".mine.yaml", "policy.safetensors", "checkpoints/LATEST", "checkpoints/step_10/a"]
    whole += [".env.2", ".history.1", "checkpoints/.notes.2", "checkpoints/.step_by_step"]
    half = [".summary.json.123", ".policy.safetensors.123", "checkpoints/.LATEST.9", "checkpoints/.step_20/deep/b"]
    for name in whole + half:
        (tmp_path / name).write_text("")
    (tmp_path / "logs" / "rank_0.stack").write_text("process 1, rank 0\n")
    (tmp_path / "logs" / "rank_1.stack").write_text("process 1, rank 1\nThread 0x1\n  File\n")
    whole.append("logs/rank_1.stack")
    (tmp_path / ".mine.7").mkdir()
    remove_partial_files(tmp_path)
    assert files(tmp_path) == sorted([*whole, "checkpoints", "checkpoints/step_10", "logs", ".mine.7"])


def test_a_checkpoint_that_was_being_replaced_is_there_again(tmp_path):
    """A kill between the two renames leaves the complete old one beside the new one, which is not known to be whole."""
    for name in (".replaced_step_10/a", ".step_10/b", ".replaced_step_20/a", "step_20/b"):
        (tmp_path / "checkpoints" / name).parent.mkdir(parents=True)
        (tmp_path / "checkpoints" / name).write_text("")
    remove_partial_files(tmp_path)
    assert files(tmp_path / "checkpoints") == ["step_10", "step_10/a", "step_20", "step_20/b"]


def test_what_an_atomic_write_leaves_is_known_by_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: os.rename(tmp_path / left, tmp_path / "kept"))
    left = f".summary.json.{os.getpid()}"
    try:
        write_atomically(tmp_path / "summary.json", "{}")
    except FileNotFoundError:
        (tmp_path / "kept").rename(tmp_path / left)
    assert files(tmp_path) == [left]
    remove_partial_files(tmp_path)
    assert files(tmp_path) == []


def test_the_names_are_those_of_the_writers():
    """The guardian, which has the standard library alone, cannot read them there."""
    names = {RUN_FILE, INIT_FROM_FILE, SUMMARY_FILE, compare.FILE, IDS_FILE, ESTIMATES_FILE}
    assert {*ATOMICALLY_WRITTEN} == names | {POLICY_FILE, BEST_POLICY_FILE, PROFILE_FILE}


def test_what_a_link_points_to_stays(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_text("")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / ".step_5").symlink_to(tmp_path / "elsewhere")
    remove_partial_files(tmp_path)
    assert files(tmp_path) == ["checkpoints", "elsewhere", "elsewhere/file"]


def test_nothing_there_is_no_error(tmp_path):
    remove_partial_files(tmp_path / "nowhere")
    remove_results(tmp_path / "nowhere")
    (tmp_path / "checkpoints").write_text("a file")
    remove_partial_files(tmp_path)
    assert files(tmp_path) == ["checkpoints"]


def test_results_of_a_start_go_and_its_config_stays(tmp_path):
    (tmp_path / "tensorboard").mkdir()
    for name in ("run.yaml", "metrics.jsonl", "evaluations.jsonl", "tensorboard/events", "summary.json"):
        (tmp_path / name).write_text("")
    remove_results(tmp_path)
    assert files(tmp_path) == ["run.yaml"]
