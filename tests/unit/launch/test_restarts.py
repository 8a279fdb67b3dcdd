"""All ranks start anew after a failure: counts, codes, what is kept, and what ends it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lockstep.errors import ConfigError
from lockstep.launch.local import RestartPolicy, launch
from lockstep.launch.supervise import Bounds
from lockstep.record.failure import read_failure

pytestmark = pytest.mark.real_start  # they count processes, and their ranks import nothing

QUICK = Bounds(stop_s=0.5, grace_s=0.5)
RANK = "import os, signal, sys, time; rank = int(os.environ['RANK']); restarts = int(os.environ['LOCKSTEP_RESTARTS'])\n"


def command(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", RANK + code]


def run(code: str, tmp_path: Path, maximum: int = 3, next_command=None, **options) -> int:
    policy = RestartPolicy(max_restarts=maximum, next_command=next_command)
    return launch(command(code), ranks=2, run_dir=tmp_path, restart_policy=policy, **{"bounds": QUICK, **options})


def log(tmp_path: Path, rank: int) -> list[str]:
    return (tmp_path / "logs" / f"rank_{rank}.log").read_text().splitlines()


def test_a_failure_starts_all_ranks_anew_with_a_fresh_rendezvous(tmp_path, capfd):
    code = "print(restarts, os.environ['MASTER_PORT'], flush=True)\n"
    code += "if restarts < 2 and rank == 1: sys.exit(3 + restarts)\ntime.sleep(60 if restarts < 2 else 0)"
    assert run(code, tmp_path) == 0
    assert capfd.readouterr().err.splitlines() == [
        "lockstep: rank 1 exited with code 3; restart 1 of 3 from the start",
        "lockstep: rank 1 exited with code 4; restart 2 of 3 from the start",
    ]
    for rank in range(2):
        lines = log(tmp_path, rank)
        assert [line.split()[0] for line in lines[::2]] == ["0", "1", "2"]
        assert len({line.split()[1] for line in lines[::2]}) == 3, "a port was used again"
        assert lines[1].startswith("--- lockstep: restart 1 of 3 from the start, 2")
        assert lines[3].startswith("--- lockstep: restart 2 of 3 from the start, 2")
    kept = [json.loads((tmp_path / "logs" / f"failure_{n}.json").read_text())["code"] for n in (1, 2)]
    assert kept == [3, 4]
    assert read_failure(tmp_path) is None


def test_a_killed_rank_and_one_that_leaves_early_are_restarted_too(tmp_path, capfd):
    code = "if restarts == 0 and rank == 0: os.kill(os.getpid(), 9)\nif restarts == 1 and rank == 1: sys.exit(0)\n"
    assert run(code + "time.sleep(60 if restarts < 2 else 0)", tmp_path, bounds=Bounds(stop_s=0.5, early_s=0.3)) == 0
    first, second = capfd.readouterr().err.splitlines()
    assert first.startswith("lockstep: rank 0 was killed by SIGKILL (signal 9); restart 1 of 3")
    assert second.startswith("lockstep: rank 1 exited early with code 0 while rank 0 was still running; restart 2 of 3")


def test_the_code_of_the_last_failure_is_returned_when_restarts_are_used_up(tmp_path, capfd):
    (tmp_path / "run.yaml").write_text("task: CartPole-v1\n")
    assert run("print('start', restarts); sys.exit(3 + restarts) if rank else time.sleep(60)", tmp_path, 2) == 5
    said = capfd.readouterr().err.splitlines()
    assert [line.rpartition("; ")[2] for line in said[:2]] == [
        "restart 1 of 2 from the start",
        "restart 2 of 2 from the start",
    ]
    path = tmp_path / "logs" / "rank_1.log"
    assert said[2] == (
        f"lockstep: rank 1 exited with code 5; the other ranks were stopped; this was start 3; log: {path}"
    )
    assert said[3:] == ["rank 1 | start 2"], "lines of an earlier start are no news"
    assert read_failure(tmp_path)["code"] == 5
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["status"], summary["restarts"]) == ("failed", 2)
    assert sorted(p.name for p in (tmp_path / "logs").glob("failure*")) == [
        "failure.json", "failure_1.json", "failure_2.json",
    ]  # fmt: skip


def test_the_next_start_may_be_another_command(tmp_path, capfd):
    steps = iter(["from step 100", "from step 200"])

    def next_command():
        return command("sys.exit(4) if restarts == 1 and rank == 0 else print('went on')"), next(steps)

    assert run("sys.exit(3)", tmp_path, next_command=next_command) == 0
    said = [line.rpartition("; ")[2] for line in capfd.readouterr().err.splitlines()]
    assert said == ["restart 1 of 3 from step 100", "restart 2 of 3 from step 200"]
    assert log(tmp_path, 0)[-1] == "went on"


def test_nothing_to_go_on_from_ends_it(tmp_path, capfd):
    def next_command():
        raise ConfigError("no checkpoint is whole")

    assert run("sys.exit(3)", tmp_path, next_command=next_command) == 3
    first, second = capfd.readouterr().err.splitlines()[:2]
    assert first == "lockstep: no restart 1 of 3: no checkpoint is whole"
    assert "exited with code 3" in second


@pytest.mark.parametrize(
    ("code", "returned"), [("sys.exit(2)", 2), ("time.sleep(0.2 * rank); sys.exit(143)", 143), ("time.sleep(60)", 1)]
)
def test_a_mistake_an_interruption_and_the_runs_bound_are_no_reason_to_start_anew(code, returned, tmp_path, capfd):
    (tmp_path / "count").write_text("")
    count = f"open({str(tmp_path / 'count')!r}, 'a').write(str(restarts))\n"
    assert run(count + code, tmp_path, timeout_s=2 if returned == 1 else None) == returned
    assert (tmp_path / "count").read_text() == "00"
    assert "restart" not in capfd.readouterr().err


def test_the_runs_bound_counts_all_starts(tmp_path, capfd):
    start = time.monotonic()
    assert run("if restarts == 0: time.sleep(2.5); sys.exit(3)\ntime.sleep(60)", tmp_path, timeout_s=3.5) == 1
    assert 3.5 <= time.monotonic() - start < 6
    assert capfd.readouterr().err.count("still running after timeout_s=3.5") == 1


def test_a_second_failure_while_the_first_is_cleaned_up_counts_once(tmp_path, capfd):
    code = "signal.signal(signal.SIGTERM, lambda *_: os._exit(7))\nopen(sys.argv[1] + str(rank), 'w')\n"
    code += "while not (os.path.exists(sys.argv[1] + '0') and os.path.exists(sys.argv[1] + '1')): time.sleep(0.01)\n"
    code += "if restarts == 0 and rank == 1: sys.exit(3)\ntime.sleep(60 if restarts == 0 else 0)"
    policy = RestartPolicy(max_restarts=1)
    done = launch(
        [*command(code), str(tmp_path / "up")], ranks=2, run_dir=tmp_path, restart_policy=policy, bounds=QUICK
    )
    assert done == 0
    assert capfd.readouterr().err.splitlines() == ["lockstep: rank 1 exited with code 3; restart 1 of 1 from the start"]
    assert [p.name for p in (tmp_path / "logs").glob("failure*")] == ["failure_1.json"]


def test_what_a_failed_start_left_half_written_is_gone_before_the_next(tmp_path):
    code = "import pathlib; half = pathlib.Path(sys.argv[1], 'checkpoints/.step_7')\n"
    code += "if restarts: sys.exit(half.exists() or half.parents[1].joinpath('.summary.json.1').exists())\n"
    code += "half.mkdir(parents=True, exist_ok=True); (half.parents[1] / '.summary.json.1').touch()\n"
    # Without the guardian, who would do it too.
    code += "for pid in open(f'/proc/{os.getppid()}/task/{os.getppid()}/children').read().split():\n"
    code += "    if 'guardian' in open(f'/proc/{pid}/cmdline').read(): os.kill(int(pid), 9)\n"
    code += "os.kill(os.getpid(), 9)"
    words = [*command(code), str(tmp_path)]
    assert launch(words, ranks=2, run_dir=tmp_path, restart_policy=RestartPolicy(max_restarts=1), bounds=QUICK) == 0
    assert launch(words, ranks=2, run_dir=tmp_path, bounds=QUICK) == 137
    assert sorted(os.listdir(tmp_path)) == ["checkpoints", "logs"]
    assert os.listdir(tmp_path / "checkpoints") == []


LAUNCHER = """
import sys, time
from pathlib import Path
from lockstep.launch.local import RestartPolicy, launch
from lockstep.launch.supervise import Bounds
command, path = [sys.executable, "-S", "-c", sys.argv[1], sys.argv[2]], Path(sys.argv[2])
def again():
    print("between", flush=True)
    time.sleep(float(sys.argv[4]))
    return command, "from step 5"
bounds = Bounds(stop_s=float(sys.argv[3]), grace_s=float(sys.argv[3]))
policy = RestartPolicy(max_restarts=3, next_command=again)
sys.exit(launch(command, ranks=2, run_dir=path, restart_policy=policy, bounds=bounds))
"""


@pytest.fixture
def start(tmp_path):
    """`start(code, stop_s, between_s)`: a launcher in a process of its own."""
    started = []

    def start(code: str, stop_s: float = 0.5, between_s: float = 0.0) -> subprocess.Popen:
        arguments = [sys.executable, "-c", LAUNCHER, RANK + code, str(tmp_path), str(stop_s), str(between_s)]
        started.append(subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def until(ready) -> None:
    deadline = time.monotonic() + 20
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def logged(tmp_path: Path, rank: int, word: str) -> bool:
    path = tmp_path / "logs" / f"rank_{rank}.log"
    return path.exists() and word in path.read_text()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 138)])
def test_a_signal_between_two_starts_ends_it(number, code, tmp_path, start):
    (tmp_path / "run.yaml").write_text("task: CartPole-v1\n")
    launcher = start("print('start'); sys.exit(3)", between_s=1.0)
    assert launcher.stdout.readline() == "between\n"
    launcher.send_signal(number)
    _, err = launcher.communicate(timeout=20)
    assert launcher.returncode == code
    first, second = err.splitlines()[:2]
    assert first.startswith("lockstep: rank ") and first.endswith("exited with code 3")
    assert second.startswith(f"lockstep: interrupted by {number.name} (signal {int(number)}) before restart 1 of 3")
    assert log(tmp_path, 0) == ["start"]
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "interrupted"


def test_a_signal_while_a_failed_start_is_cleaned_up_ends_it(tmp_path, start):
    code = "signal.signal(signal.SIGTERM, lambda *_: print('asked', flush=True)); print('up', flush=True)\n"
    code += "while not os.path.exists(sys.argv[1] + '/go'): time.sleep(0.01)\nif rank == 1: sys.exit(3)\n"
    launcher = start(code + "while True: time.sleep(60)", stop_s=2.0)
    until(lambda: logged(tmp_path, 0, "up"))
    (tmp_path / "go").touch()
    until(lambda: logged(tmp_path, 0, "asked"))
    launcher.send_signal(signal.SIGTERM)
    out, err = launcher.communicate(timeout=20)
    assert (launcher.returncode, out) == (143, "")
    assert "before restart 1 of 3" in err


def test_a_restarted_run_is_interrupted_like_any_other(tmp_path, start):
    code = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)); print('up', restarts, flush=True)\n"
    launcher = start(code + "if restarts == 0 and rank == 1: sys.exit(3)\ntime.sleep(60)", stop_s=5.0)
    until(lambda: all(logged(tmp_path, rank, "up 1") for rank in range(2)))
    launcher.send_signal(signal.SIGTERM)
    _, err = launcher.communicate(timeout=20)
    assert launcher.returncode == 143
    assert "interrupted by SIGTERM (signal 15); all ranks were stopped; this was start 2" in err


def test_a_stopped_rank_hears_a_signal(tmp_path, start):
    code = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)); print('up', flush=True)\n"
    launcher = start(code + "if rank == 1: os.kill(os.getpid(), signal.SIGSTOP)\ntime.sleep(60)", stop_s=15.0)
    until(lambda: all(logged(tmp_path, rank, "up") for rank in range(2)))
    time.sleep(0.2)
    begun = time.monotonic()
    launcher.send_signal(signal.SIGTERM)
    _, err = launcher.communicate(timeout=20)
    assert launcher.returncode == 143
    assert time.monotonic() - begun < 10
    assert "SIGKILL" not in err


def test_a_summary_of_an_earlier_start_does_not_speak_for_this_one(tmp_path, start):
    (tmp_path / "run.yaml").write_text("task: CartPole-v1\n")
    (tmp_path / "summary.json").write_text('{"status": "finished", "error": null, "env_steps": 5}')
    launcher = start("print('up', flush=True); time.sleep(60)")
    until(lambda: all(logged(tmp_path, rank, "up") for rank in range(2)))
    launcher.send_signal(signal.SIGTERM)
    launcher.communicate(timeout=20)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["status"], summary["env_steps"]) == ("interrupted", 5)


def test_the_guardian_removes_what_is_half_written_when_the_launcher_is_killed(tmp_path, start, gone):
    code = "half = sys.argv[1] + '/checkpoints/.step_7'; os.makedirs(half, exist_ok=True)\n"
    code += "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nopen(sys.argv[1] + '/.run.yaml.5', 'w').close()\n"
    # Ranks that write until the very end: what they leave is removed only once they are gone.
    code += "print('up', os.getpid(), flush=True)\n"
    code += "while True: os.makedirs(half, exist_ok=True); open(half + '/part', 'w').close(); time.sleep(0.001)"
    launcher = start(code)
    until(lambda: all(logged(tmp_path, rank, "up") for rank in range(2)))
    family = [int(pid) for pid in Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()]
    assert len(family) == 3
    launcher.kill()
    launcher.wait()
    assert gone(family, within_s=10)
    assert sorted(os.listdir(tmp_path)) == ["checkpoints", "logs"]
    assert os.listdir(tmp_path / "checkpoints") == []
