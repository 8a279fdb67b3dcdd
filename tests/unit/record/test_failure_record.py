"""`logs/failure.json` has the first failure of a start, or is not there."""

import subprocess
import sys

from lockstep.record.failure import read_failure, record_failure

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
