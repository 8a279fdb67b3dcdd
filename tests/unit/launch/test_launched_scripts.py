"""`lockstep launch` with scripts of the user's, as a shell starts it: what is theirs, and what they find."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lockstep.cli.main import main as cli
from lockstep.launch.jax import main as jax_launcher
from lockstep.launch.rank_environment import free_port
from lockstep.launch.supervise import Bounds

pytestmark = pytest.mark.real_start
BOUND_S = 60.0


@pytest.fixture
def launch(tmp_path):
    """`launch(code, *flags)` starts a launcher whose ranks run `code` in the folder `here`."""
    started = []
    (tmp_path / "here").mkdir()

    def _launch(code, *flags):
        script = tmp_path / "script.py"
        script.write_text(f"import os, pathlib, signal, sys, time\nrank = int(os.environ['RANK'])\n{code}\n")
        command = [sys.executable, "-m", "lockstep.cli", "launch", *flags, str(script)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, cwd=tmp_path / "here", **pipes))
        return started[-1]

    yield _launch
    for process in started:
        process.kill()
        process.communicate()


def until(condition):
    deadline = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def end(launcher):
    """The exit code, and what was printed on both streams."""
    out, err = launcher.communicate(timeout=BOUND_S)
    return launcher.returncode, out, err


@pytest.mark.parametrize("launcher", [["launch"], None], ids=["any", "jax"])
def test_a_log_directory_that_cannot_be_made_is_refused_before_ranks_start(launcher, tmp_path, capsys, monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    (script := tmp_path / "script.py").write_text(f"open({str(tmp_path / 'started')!r}, 'w')")
    (file := tmp_path / "file").touch()
    for given, reason in ((file, "Not a directory"), ("/proc/none", "No such file or directory")):
        words = ["--ranks", "2", "--log-dir", str(given), str(script)]
        assert (jax_launcher(words) if launcher is None else cli([*launcher, *words])) == 2
        said = f"lockstep: error: --log-dir {given} cannot be made: {reason}; give another folder\n"
        assert capsys.readouterr().err == said
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("before", [[], ["--ranks", "1"]], ids=["behind the script", "before it, too"])
@pytest.mark.parametrize("flag", ["--ranks", "--nproc_per_node"])
@pytest.mark.parametrize("jax", [False, True], ids=["any", "jax"])
def test_a_number_of_ranks_behind_the_script_goes_to_it_and_the_launcher_says_so(
    tmp_path, capfd, monkeypatch, before, flag, jax
):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    (script := tmp_path / "script.py").write_text("import sys\nprint(sys.argv[1:])\n")
    words = [*before, str(script), flag, "2"]
    assert (jax_launcher(words) if jax else cli(["launch", *words])) == 0
    out, err = capfd.readouterr()
    assert f"['{flag}', '2']" in out
    launcher = "python -m lockstep.launch.jax" if jax else "lockstep launch"
    assert (f"to start several ranks: {launcher} {flag} N {script}\n" in err) == (not before)


@pytest.mark.parametrize("killed", [False, True], ids=["fails", "killed"])
def test_files_in_the_log_directory_are_the_users(launch, tmp_path, gone, killed):
    """None is removed, though the names are those of our partial files, by the launcher or by its guardian."""
    here = tmp_path / "here"
    theirs = [".notes.1", ".backup.20240101", "checkpoints/.step_mine/weights", "logs/rank_7.stack", "run.yaml"]
    for name in theirs:
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text("task: CartPole-v1\n")
    code = "print('up', flush=True); " + ("time.sleep(60)" if killed else "sys.exit(3)")
    launcher = launch(code, "--log-dir", ".")
    if killed:
        log = here / "logs/rank_0.log"
        until(lambda: log.exists() and "up" in log.read_text())
        family = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
        os.kill(launcher.pid, signal.SIGKILL)
        assert end(launcher)[0] == -9
        assert gone([int(pid) for pid in family], 10.0)
    else:
        assert end(launcher)[0] == 3
        assert "up" in (here / "logs/rank_0.log").read_text()
    assert all((here / name).exists() for name in theirs)
    assert not (here / "summary.json").exists()


def test_the_ranks_of_a_killed_launcher_cannot_tell_others_to_end(launch, tmp_path, gone):
    """A rank that handled SIGTERM would end the ranks of nodes that go on."""
    told, here = tmp_path / "told", tmp_path / "here"
    code = f"import signal; signal.signal(signal.SIGTERM, lambda *_: open({str(told)!r}, 'w').close()); "
    launcher = launch(code + "print('up', flush=True); time.sleep(60)", "--log-dir", ".")
    log = here / "logs/rank_0.log"
    until(lambda: log.exists() and "up" in log.read_text())
    family = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    os.kill(launcher.pid, signal.SIGKILL)
    end(launcher)
    assert gone([int(pid) for pid in family], 10.0)
    assert not told.exists()


@pytest.fixture
def started(monkeypatch, tmp_path):
    """What the launchers would start, in this process."""
    calls = []

    def start(command, **options):
        calls.append(options)
        return 0

    monkeypatch.setattr("lockstep.launch.commands.launch", start)
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE", "JAX_RANK", "JAX_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "script.py").touch()
    return calls


def test_ranks_of_a_script_may_end_minutes_apart(started):
    """One may save what all have computed; a training of ours ends on all ranks at once."""
    assert cli(["launch", "--ranks", "2", "--grace-s", "7", "script.py"]) == 0
    assert jax_launcher(["--ranks", "2", "script.py"]) == 0
    assert [call["bounds"] for call in started] == [Bounds(early_s=300.0, grace_s=7.0), Bounds(early_s=300.0)]
    assert Bounds().early_s == 10.0


def test_ranks_of_one_machine_meet_at_the_port_of_the_flag(launch):
    """As under torchrun, whose default address is this machine's own."""
    port = free_port()
    code, out, _ = end(launch("print(os.environ['MASTER_ADDR'], os.environ['MASTER_PORT'])", f"--master_port={port}"))
    assert (code, out) == (0, f"127.0.0.1 {port}\n")


@pytest.mark.parametrize("flag", ["--rdzv-endpoint=192.0.2.1:29400", "--master-addr=192.0.2.1"])
@pytest.mark.parametrize("command", [["launch"], ["train", "cartpole"], ["doctor"]], ids=lambda command: command[0])
def test_a_place_on_another_machine_is_refused_for_one(started, command, flag, capsys):
    """Each machine would start alone."""
    script = ["script.py"] if command == ["launch"] else []
    assert cli([*command, "--nnodes=1", flag, *script]) == 2
    said = capsys.readouterr().err
    assert f"lockstep: error: {flag.partition('=')[0]}" in said
    assert "192.0.2.1 is not an address of this machine, and --nnodes is 1; leave it out, or say how many" in said
    assert started == []


@pytest.mark.parametrize("host", ["localhost", "cannot-be-resolved.invalid"])
def test_a_place_on_this_machine_or_an_unknown_one_is_accepted_for_one(started, host):
    """As commands of torchrun and of job systems have it; one machine needs no place."""
    assert cli(["launch", "--nnodes=1", f"--rdzv-endpoint={host}:29400", "script.py"]) == 0
    assert len(started) == 1


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["launch", "--master-addr=192.0.2.1", "script.py"], "192.0.2.1 is not an address of this machine"),
        (["train", "--master-port=29777", "cartpole"], "--master-port 29777 is where the ranks"),
    ],
    ids=["launch", "train"],
)
def test_a_place_to_meet_that_would_be_ignored_is_refused(started, command, says, capsys):
    assert cli(command) == 2
    assert says in capsys.readouterr().err
    assert started == []
