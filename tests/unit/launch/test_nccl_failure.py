"""A collective of NCCL that fails aborts its process: the launcher reports the reason, which is in the log."""

import signal
from dataclasses import dataclass

import pytest

from lockstep.launch.failure_report import log_path, merge_failures
from lockstep.launch.supervise import Failure
from lockstep.record.failure import read_failure

pytestmark = pytest.mark.slow
LOG = """\
--- lockstep: start 1
[rank1]:[E1123 15:20:12.3 ProcessGroupNCCL.cpp:685] [Rank 1] some other run timed out
--- lockstep: start 2
update 7
[rank1]:[I1123 15:20:11.9 ProcessGroupNCCL.cpp:1000] [PG ID 0 Rank 1] initialized
[rank1]:[E1123 15:20:12.3 ProcessGroupNCCL.cpp:685] [Rank 1] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=5, OpType=ALLREDUCE, Timeout(ms)=122000) ran for 122010 milliseconds before timing out.
terminate called after throwing an instance of 'c10::DistBackendError'
"""


@dataclass
class Aborted:
    index = 1
    code = -signal.SIGABRT
    exit_code = 128 + signal.SIGABRT

    def describe(self):
        return "rank 1 was killed by SIGABRT"


def test_abort_by_nccl_is_named(tmp_path):
    log_path(tmp_path, 1).parent.mkdir()
    log_path(tmp_path, 1).write_text(LOG)
    observed = Failure(Aborted().describe(), Aborted.exit_code, 1)
    message = merge_failures(observed, [Aborted()], tmp_path).message
    assert message.startswith("rank 1 was killed by SIGABRT: Watchdog caught collective operation timeout: WorkNCCL")
    assert read_failure(tmp_path)["message"] == message


def test_abort_for_another_reason_is_reported_as_it_is(tmp_path):
    log_path(tmp_path, 1).parent.mkdir()
    log_path(tmp_path, 1).write_text("a C extension aborted\n")
    observed = Failure(Aborted().describe(), Aborted.exit_code, 1)
    assert merge_failures(observed, [Aborted()], tmp_path).message == observed.message
