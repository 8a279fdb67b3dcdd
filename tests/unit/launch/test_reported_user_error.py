"""What the launcher shows of a rank that ends with code 2, which is a user error of ours."""

import sys
from pathlib import Path

import pytest

from lockstep.launch.local import launch
from lockstep.launch.supervise import Bounds
from lockstep.record.failure import read_failure

pytestmark = pytest.mark.real_start  # the ranks import nothing


def run(code: str, tmp_path: Path, ranks: int = 2) -> int:
    return launch(
        [sys.executable, "-S", "-c", "import sys\n" + code], ranks=ranks, run_dir=tmp_path, bounds=Bounds(stop_s=0.5)
    )


def test_the_users_mistake_is_one_plain_line(tmp_path, capfd):
    code = "print('starting'); print('lockstep: error: num_envs=3 is odd', file=sys.stderr); sys.exit(2)"
    assert run(code, tmp_path) == 2
    assert capfd.readouterr().err == "lockstep: error: num_envs=3 is odd\n"


def test_what_libraries_say_at_exit_does_not_hide_the_users_mistake(tmp_path, capfd):
    code = "print('lockstep: error: num_envs=3 is odd'); print('[W1129 TCPStore.cpp:125] recvValue failed')"
    assert run(f"{code}; sys.exit(2)", tmp_path) == 2
    assert read_failure(tmp_path)["message"] == "lockstep: error: num_envs=3 is odd"
    told = capfd.readouterr().err.splitlines()
    assert told == ["lockstep: error: num_envs=3 is odd", "[W1129 TCPStore.cpp:125] recvValue failed"]


def test_code_2_of_another_program_is_reported_with_its_rank_and_log(tmp_path, capfd):
    assert run("print('panic: index out of range'); print('  main.go:12'); sys.exit(2)", tmp_path, ranks=1) == 2
    first, *rest = capfd.readouterr().err.splitlines()
    assert first.startswith("lockstep: rank 0 exited with code 2; log: ") and first.endswith("rank_0.log")
    assert rest == ["rank 0 | panic: index out of range", "rank 0 |   main.go:12"]


def test_an_error_that_a_rank_could_not_record_is_in_the_first_line(tmp_path, capfd):
    """As on a full disk, where neither its record nor its summary was written."""
    code = "print('lockstep: error: policy.safetensors could not be written: full'); print('more'); sys.exit(1)"
    assert run(code, tmp_path, ranks=1) == 1
    first = capfd.readouterr().err.splitlines()[0]
    assert first.startswith("lockstep: rank 0 exited with code 1: policy.safetensors could not be written: full; log: ")
