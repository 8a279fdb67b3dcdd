"""`launch` with real processes: small Python ranks without a framework."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lockstep.errors import ConfigError
from lockstep.launch.child import launcher_variables
from lockstep.launch.local import launch
from lockstep.launch.supervise import Bounds
from lockstep.record.failure import read_failure, record_failure

pytestmark = pytest.mark.real_start  # they count processes, and their ranks import nothing

QUICK = Bounds(stop_s=0.5, grace_s=0.5)
RANK = "import os, signal, sys, time; rank = int(os.environ['RANK'])\n"


def command(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", RANK + code]


def run(code: str, tmp_path: Path, ranks: int = 2, **options) -> int:
    return launch(command(code), ranks=ranks, run_dir=tmp_path, **{"bounds": QUICK, **options})


def log(tmp_path: Path, rank: int) -> str:
    return (tmp_path / "logs" / f"rank_{rank}.log").read_text()


def children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_all_ranks_succeed_and_log_apart(tmp_path, capfd):
    assert run("print('out', rank); print('err', rank, file=sys.stderr)", tmp_path) == 0
    for rank in range(2):
        assert sorted(log(tmp_path, rank).splitlines()) == [f"err {rank}", f"out {rank}"]
    assert capfd.readouterr() == ("", "")
    assert read_failure(tmp_path) is None


def test_one_rank_is_started_like_many(tmp_path):
    assert run("print(os.environ['WORLD_SIZE'], os.getpid() == os.getsid(0))", tmp_path, ranks=1) == 0
    assert log(tmp_path, 0) == "1 True\n"


def test_first_failure_ends_all_and_is_told(tmp_path, capfd, gone):
    start = time.monotonic()
    code = (
        "if rank == 1:\n    for i in range(40): print('line', i)\n    sys.exit(3)\nprint(os.getpid()); time.sleep(60)"
    )
    assert run(code, tmp_path) == 3
    assert time.monotonic() - start < 20
    lines = capfd.readouterr().err.splitlines()
    path = tmp_path / "logs" / "rank_1.log"
    assert lines[0] == f"lockstep: rank 1 exited with code 3; the other ranks were stopped; log: {path}"
    assert lines[1:] == [f"rank 1 | line {i}" for i in range(25, 40)]
    assert read_failure(tmp_path) == {"rank": 1, "code": 3, "message": "rank 1 exited with code 3", "phase": None}
    assert gone([int(log(tmp_path, 0))])


def test_a_raising_rank_is_code_1_with_its_traceback(tmp_path, capfd):
    assert run("if rank == 0: raise ValueError('boom')\ntime.sleep(60)", tmp_path) == 1
    lines = capfd.readouterr().err.splitlines()
    assert lines[0].startswith("lockstep: rank 0 exited with code 1; the other ranks were stopped; log: ")
    assert lines[-1] == "rank 0 | ValueError: boom"


def test_a_killed_rank_is_named_with_its_signal(tmp_path, capfd):
    assert run("if rank == 1: os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(60)", tmp_path) == 128 + 9
    assert "lockstep: rank 1 was killed by SIGKILL (signal 9); the other ranks" in capfd.readouterr().err
    assert read_failure(tmp_path)["code"] == 137


def test_a_killed_rank_is_the_cause_even_if_a_peer_is_seen_first(tmp_path, capfd):
    # Rank 0 falls first, as when the kernel closes a dying process's sockets long before its end can be seen.
    code = "ready = os.environ['READY']\n"
    code += "if rank == 1: open(ready, 'x').close(); time.sleep(0.05); os.kill(os.getpid(), 9)\n"
    code += "while not os.path.exists(ready): time.sleep(0.002)\nsys.exit(1)"
    assert run(code, tmp_path, environment={"READY": str(tmp_path / "ready")}) == 137
    assert "rank 1 was killed by SIGKILL" in capfd.readouterr().err


def test_a_rank_that_leaves_early_with_0_is_a_failure(tmp_path, capfd):
    assert run("if rank == 0: time.sleep(60)", tmp_path, bounds=Bounds(stop_s=0.5, early_s=0.5)) == 1
    assert "rank 1 exited early with code 0 while rank 0 was still running" in capfd.readouterr().err
    assert read_failure(tmp_path)["rank"] == 1


def test_a_rank_may_end_a_little_before_the_others(tmp_path):
    assert run("time.sleep(0.2 * rank)", tmp_path) == 0


def test_a_failure_after_an_early_leaver_names_both(tmp_path, capfd):
    assert run("if rank == 0: time.sleep(1); sys.exit(1)", tmp_path) == 1
    assert "rank 0 exited with code 1 after rank 1 had exited early with code 0" in capfd.readouterr().err


def test_a_rank_that_wrote_down_the_failure_is_believed(tmp_path, capfd):
    code = "import json; open(os.environ['DIR'] + '/logs/failure.json', 'x').write(json.dumps(dict("
    code += "rank=1, code=1, message='rank 1 has been in env.step for 42 s', phase='env.step')))\nsys.exit(1)"
    waiting = "if rank == 1: time.sleep(60)\n"
    assert run(waiting + code, tmp_path, environment={"DIR": str(tmp_path)}) == 1
    first = capfd.readouterr().err.splitlines()[0]
    assert first.startswith("lockstep: rank 1 has been in env.step for 42 s; the other ranks were stopped; log: ")
    assert first.endswith("rank_1.log")


@pytest.mark.parametrize("told", [0, 1])
def test_a_report_of_several_lines_is_told_once(told, tmp_path, capfd):
    code = "import json; open(os.environ['DIR'] + '/logs/failure.json', 'x').write(json.dumps(dict(\n"
    code += "rank=1, code=1, message='rank 1 is stuck\\n  File a\\n  File b', phase='act')))\n"
    code += (
        f"if {told}: open(os.environ['DIR'] + '/logs/rank_1.log', 'a').write('lockstep: stuck\\n  File a\\n  File b')\n"
    )
    assert (
        run("if rank == 1: time.sleep(60)\n" + code + "sys.exit(1)", tmp_path, environment={"DIR": str(tmp_path)}) == 1
    )
    first, *rest = capfd.readouterr().err.splitlines()
    assert first.startswith("lockstep: rank 1 is stuck (in act); the other ranks were stopped; log: ")
    told_by_rank = ["rank 1 | lockstep: stuck", "rank 1 |   File a", "rank 1 |   File b"]
    assert rest == (told_by_rank if told else ["  File a", "  File b"])


def test_a_failure_of_an_earlier_start_is_forgotten(tmp_path, capfd):
    (tmp_path / "logs").mkdir()
    record_failure(tmp_path, rank=0, message="old", code=1)
    assert run("sys.exit(3)", tmp_path, ranks=1) == 3
    assert "old" not in capfd.readouterr().err


def test_a_rank_that_ignores_sigterm_is_killed(tmp_path, gone):
    code = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(os.getpid(), flush=True)\n"
    code += "if rank == 1: time.sleep(0.3); sys.exit(3)\ntime.sleep(60)"
    start = time.monotonic()
    assert run(code, tmp_path) == 3
    assert 0.5 < time.monotonic() - start < 20
    assert gone([int(log(tmp_path, 0))], within_s=0.1)


def test_children_of_ranks_are_ended_with_them(tmp_path, gone):
    code = "import subprocess; ignore = 'trap \"\" TERM; ' * (rank == 1)\n"
    code += "child = subprocess.Popen(['sh', '-c', ignore + 'sleep 60 & sleep 60'])\nprint(child.pid, flush=True)\n"
    code += "time.sleep(0.3)\nos._exit(0)"
    assert run(code, tmp_path) == 0
    assert gone([int(log(tmp_path, rank)) for rank in range(2)], within_s=0.5)


def test_a_run_has_a_bound(tmp_path, capfd):
    assert run("time.sleep(60)", tmp_path, timeout_s=0.3) == 1
    assert "ranks 0, 1 were still running after timeout_s=0.3" in capfd.readouterr().err


def test_a_command_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="'/no/such/program' cannot be started: No such file"):
        launch(["/no/such/program"], ranks=2, run_dir=tmp_path)
    with pytest.raises(ConfigError, match="ranks=0 must be at least 1"):
        launch(["true"], ranks=0, run_dir=tmp_path)


def test_without_a_run_directory_ranks_print_where_we_print(capfd):
    assert launch(command("print('LOCKSTEP_TERMINAL_FD' in os.environ)"), ranks=1, run_dir=None) == 0
    assert capfd.readouterr() == ("False\n", "")


def test_only_rank_0_is_given_the_terminal(tmp_path, capfd):
    code = "fd = os.environ.get('LOCKSTEP_TERMINAL_FD', ''); print(not fd)\n"
    code += "if fd: os.write(int(fd.split(':')[0]), b'progress\\n')"
    assert run(code, tmp_path) == 0
    assert capfd.readouterr().out == "progress\n"
    assert [log(tmp_path, rank) for rank in range(2)] == ["False\n", "True\n"]


def summary_of(tmp_path: Path, code: str, **options) -> dict:
    (tmp_path / "run.yaml").write_text("task: CartPole-v1\n")
    run(code, tmp_path, **options)
    return json.loads((tmp_path / "summary.json").read_text())


def test_the_summary_of_a_failed_run_says_so(tmp_path):
    summary = summary_of(tmp_path, "time.sleep(60 * (1 - rank)); os.kill(os.getpid(), 9)")
    assert summary["status"] == "failed"
    assert summary["error"] == "rank 1 was killed by SIGKILL (signal 9)"
    assert summary["world_size"] == 2


def test_a_launched_command_without_a_run_gets_no_summary(tmp_path):
    run("sys.exit(1)", tmp_path)
    assert not (tmp_path / "summary.json").exists()


LAUNCHER = """
import sys
from pathlib import Path
from lockstep.launch.local import launch
from lockstep.launch.supervise import Bounds
bounds = Bounds(stop_s=0.5, grace_s=float(sys.argv[3]))
sys.exit(launch([sys.executable, "-c", sys.argv[1]], ranks=2, run_dir=Path(sys.argv[2]), bounds=bounds))
"""


class Launcher:
    """A launcher in a process of its own, its ranks ready; by default one of ranks that run `code`."""

    def __init__(
        self, code: str = "", tmp_path: Path = Path(), gone=None, grace_s: float = 0.5, command: list[str] | None = None
    ) -> None:
        self.gone = gone
        arguments = command or [sys.executable, "-c", LAUNCHER, RANK + code, str(tmp_path), str(grace_s)]
        # Like `command &` in a script, where SIGINT starts out ignored.
        ignored = signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)
        signal.signal(signal.SIGINT, ignored)
        logs = [tmp_path / "logs" / f"rank_{rank}.log" for rank in range(2)]
        deadline = time.monotonic() + 20
        while not all(path.exists() and "ready" in path.read_text() for path in logs):
            assert time.monotonic() < deadline and self.process.poll() is None
            time.sleep(0.01)
        self.family = children(self.process.pid)
        self.family += [pid for child in self.family for pid in children(child)]

    def end(self) -> tuple[int, str]:
        _, err = self.process.communicate(timeout=20)
        assert self.gone(self.family)
        return self.process.returncode, err


@pytest.fixture
def start(tmp_path, gone):
    """Starts launchers; kills what a failed test leaves."""
    started = []

    def start(code: str = "", **options) -> Launcher:
        started.append(Launcher(code, tmp_path, gone, **options))
        return started[-1]

    yield start
    for launcher in started:
        launcher.process.kill()
        launcher.process.wait()
        launcher.process.stderr.close()


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 138)])
def test_a_signal_is_forwarded_and_returned(number, code, tmp_path, start):
    (tmp_path / "run.yaml").write_text("task: CartPole-v1\n")
    ranks = "from lockstep.launch.child import die_with_launcher; die_with_launcher()\n"
    ranks += "def stop(n, frame): print('got', n, flush=True); sys.exit(128 + n)\n"
    ranks += "for n in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1): signal.signal(n, stop)\n"
    launcher = start(ranks + "print('ready', flush=True); time.sleep(60)", grace_s=5)
    launcher.process.send_signal(number)
    returned, err = launcher.end()
    assert returned == code
    assert err.startswith(
        f"lockstep: interrupted by {number.name} (signal {int(number)}); all ranks were stopped; logs"
    )
    assert [log(tmp_path, rank).count(f"got {int(number)}") for rank in range(2)] == [1, 1]
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "interrupted"


def test_a_rank_asleep_does_not_outlast_an_interrupt(tmp_path, start):
    launcher = start("signal.signal(2, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)")
    launcher.process.send_signal(signal.SIGINT)
    returned, err = launcher.end()
    assert returned == 130
    assert "all ranks were stopped, ranks 0, 1 with SIGKILL" in err


def test_a_second_interrupt_kills_at_once(tmp_path, start):
    code = "signal.signal(2, lambda *_: print('got it', flush=True)); print('ready', flush=True)\n"
    launcher = start(code + "while True: time.sleep(60)", grace_s=30)
    launcher.process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + 5
    while "got it" not in log(tmp_path, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    launcher.process.send_signal(signal.SIGINT)
    assert launcher.end()[0] == 130


def test_ranks_that_agreed_to_stop_on_a_signal_may_finish(tmp_path, capfd):
    # The signal reached the ranks only; rank 0 still writes when rank 1 has exited.
    code = (
        "signal.signal(signal.SIGTERM, lambda *_: None)\nif rank == 0: time.sleep(0.3); print('written')\nsys.exit(143)"
    )
    assert run(code, tmp_path, bounds=Bounds(stop_s=0.1, grace_s=5)) == 143
    assert "written" in log(tmp_path, 0)
    assert "interrupted by SIGTERM" in capfd.readouterr().err


WITH_CHILD = """
import subprocess
subprocess.Popen(["sh", "-c", "trap '' TERM; exec sleep 60"])
time.sleep(0.2); print("ready", flush=True); time.sleep(60)
"""


@pytest.mark.parametrize("prepare", ["", "from lockstep.launch.child import die_with_launcher as d; d()\n"])
def test_nothing_survives_a_killed_launcher(prepare, tmp_path, start):
    launcher = start(prepare + WITH_CHILD)
    assert len(launcher.family) == 5  # guardian, two ranks, a child of each
    launcher.process.kill()
    assert launcher.end()[0] == -9


def test_a_rank_dies_with_its_launcher_even_without_a_guardian(tmp_path, start):
    code = "from lockstep.launch.child import die_with_launcher; die_with_launcher(); die_with_launcher()\n"
    launcher = start(code + "print('ready', flush=True); time.sleep(60)")
    guardian = next(pid for pid in launcher.family if "guardian" in Path(f"/proc/{pid}/cmdline").read_text())
    os.kill(guardian, signal.SIGKILL)
    launcher.process.kill()
    launcher.end()


def test_a_rank_whose_launcher_is_already_dead_ends():
    dead = subprocess.Popen(["true"])
    dead.wait()
    code = "from lockstep.launch.child import die_with_launcher; die_with_launcher(); print('alive')"
    environment = {**os.environ, **launcher_variables(), "LOCKSTEP_LAUNCHER_PID": str(dead.pid)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    assert (done.returncode, done.stdout) == (-9, b"")


def test_a_rank_in_a_container_does_not_look_for_its_launcher_among_other_processes():
    """With process ids of its own it ended without a word, as its launcher's number was nobody's there."""
    dead = subprocess.Popen(["true"])
    dead.wait()
    code = "from lockstep.launch.child import die_with_launcher; die_with_launcher(); import os\n"
    code += "print('alive', [name for name in os.environ if 'LAUNCHER' in name])"
    given = {**os.environ, "LOCKSTEP_LAUNCHER_PID": str(dead.pid), "LOCKSTEP_LAUNCHER_NAMESPACE": "pid:[1]"}
    done = subprocess.run([sys.executable, "-c", code], env=given, capture_output=True)
    assert (done.returncode, done.stdout) == (0, b"alive []\n")


KILLED_AT_A_START = """
import os, signal, time
from pathlib import Path
from lockstep.launch.supervise import DEFAULT_BOUNDS, RankGroup

def killed_instead(group, rank):
    while not Path("ready").exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)

RankGroup._tell_guardian = killed_instead
environment = {**os.environ, "LOCKSTEP_LAUNCHER_PID": str(os.getpid())}
with RankGroup(DEFAULT_BOUNDS) as group:
    group.start(["sh", "-c", "sleep 60 & echo $$ $! > family; mv family ready; wait"], environment, output=None)
"""


def test_a_rank_of_which_the_guardian_has_not_been_told_ends_with_its_launcher(tmp_path, gone):
    launcher = subprocess.run([sys.executable, "-c", KILLED_AT_A_START], cwd=tmp_path)
    assert launcher.returncode == -signal.SIGKILL
    assert gone([int(pid) for pid in (tmp_path / "ready").read_text().split()], within_s=10)


def test_what_a_script_starts_in_a_session_of_its_own_outlives_a_launcher_that_ends_by_itself(tmp_path, gone):
    code = "import subprocess; p = subprocess.Popen(['sleep', '60'], start_new_session=True, stdin=-3, stdout=-3)\n"
    assert run(code + f"open({str(tmp_path / 'daemon')!r}, 'w').write(str(p.pid))", tmp_path, ranks=1) == 0
    daemon = int((tmp_path / "daemon").read_text())
    try:
        assert not gone([daemon], within_s=0.5)
    finally:
        os.kill(daemon, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("how", [["lockstep.cli", "launch"], ["lockstep.launch.jax"]], ids=["any", "jax"])
def test_grace_period_is_the_one_of_the_flag(how, tmp_path, start):
    """The ranks ignore SIGTERM, so that only SIGKILL ends them."""
    (tmp_path / "script.py").write_text(
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "os.write(1, b'ready')\n"
        "time.sleep(99)\n"
    )
    words = ["--ranks", "2", "--grace-s", "3", "--log-dir", str(tmp_path), str(tmp_path / "script.py")]
    launcher = start(command=[sys.executable, "-m", *how, *words])
    launcher.process.send_signal(signal.SIGTERM)
    signalled = time.monotonic()
    returned, err = launcher.end()
    assert returned == 143
    assert "ranks 0, 1 with SIGKILL" in err
    assert 3 < time.monotonic() - signalled < 10


@pytest.mark.parametrize(
    ("how", "world_size"),
    [(["lockstep.cli", "launch"], "WORLD_SIZE"), (["lockstep.launch.jax"], "JAX_WORLD_SIZE")],
    ids=["any", "jax"],
)
def test_ranks_count_as_processes_per_node(tmp_path, how, world_size):
    (tmp_path / "script.py").write_text(f"import os\nos.write(1, (os.environ['{world_size}'] + '\\n').encode())\n")

    def typed(*words):
        clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
        command = [sys.executable, "-m", *how, *words, str(tmp_path / "script.py")]
        done = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout.split(), done.stderr

    assert typed("--ranks", "2")[:2] == (0, ["2", "2"])
    for words, said in (
        (["--ranks", "2", "--nproc-per-node", "2"], "give one"),
        (["--ranks", "2", "--nnodes", "2"], "--nproc-per-node K"),
        (["--ranks", "0"], "--ranks 0"),
    ):
        code, printed, told = typed(*words)
        assert (code, printed) == (2, []) and said in told
