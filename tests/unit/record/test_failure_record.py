"""`logs/failure.json` has the first failure of a start, or is not there."""

import json
import subprocess
import sys

import pytest

from lockstep.record.failure import read_failure, record_failure
from lockstep.record.journal import Journal
from lockstep.record.progress import Progress
from lockstep.record.run_dir import RUN_FILE, SUMMARY_FILE, RunDir
from lockstep.run import Run
from lockstep.world import World

STALLED = """
import resource, sys
from pathlib import Path
from lockstep.distributed.watch import Observed
from lockstep.record.journal import Journal
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # every write to a file fails, as on a full disk
journal = Journal.__new__(Journal)
journal.path, journal._begun = Path(sys.argv[1]), False
journal.stalled(Observed(1, "running", 0, 42.0, 3), "rank 1 has been in env.step for 42 s")
"""


def test_on_a_full_disk_a_stall_is_reported_and_no_empty_file_stays(tmp_path):
    command = [sys.executable, "-c", STALLED, str(tmp_path)]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "lockstep: rank 1 has been in env.step for 42 s\n")
    assert not list((tmp_path / "logs").iterdir())


def test_a_failure_counts_as_the_first_where_no_file_can_be(tmp_path):
    (tmp_path / "logs").write_text("not a directory")
    for _ in range(2):
        assert record_failure(tmp_path, rank=1, message="lost", code=1)
    assert read_failure(tmp_path) is None


@pytest.fixture
def peer(tmp_path):
    """The journal of rank 1 of two, in a run that rank 0 has begun."""
    RunDir.create(tmp_path / "run", Run(task="CartPole-v1")).close()
    world = World(rank=1, size=2)
    journal = Journal(Run(task="CartPole-v1"), world, RunDir.join(tmp_path / "run"), started_by_lockstep=True)
    yield journal
    journal.close()


def test_the_result_is_written_by_others_where_rank_0_is_lost(peer):
    peer.fail(1, "rank 1 failed", Progress(100), 1.0)
    assert not (peer.path / SUMMARY_FILE).exists(), "rank 0 lives, and knows more"
    (peer.path / "logs" / "failure.json").unlink()
    peer.fail(0, "lost the connection to rank 0", Progress(100), 1.0)
    summary = json.loads((peer.path / SUMMARY_FILE).read_text())
    assert (summary["status"], summary["error"]) == ("failed", "lost the connection to rank 0")
    assert summary["world_size"] == 2


def test_a_result_of_rank_0_stays(peer):
    (peer.path / SUMMARY_FILE).write_text('{"status": "failed", "error": "its own", "env_steps": 7}')
    peer.fail(0, "lost the connection to rank 0", Progress(100), 1.0)
    assert json.loads((peer.path / SUMMARY_FILE).read_text())["error"] == "its own"


def test_no_result_is_written_where_the_run_is_on_another_disk(peer):
    (peer.path / RUN_FILE).unlink()
    peer.fail(0, "lost the connection to rank 0", Progress(100), 1.0)
    assert not (peer.path / SUMMARY_FILE).exists()
