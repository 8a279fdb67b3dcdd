"""`python -m lockstep.launch.jax`: any script once per rank, on this machine. Real processes, no framework in most."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from lockstep.launch.rank_environment import free_port

BOUND_S = 60.0
NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
JAX_NAMES = (
    "JAX_RANK",
    "JAX_WORLD_SIZE",
    "JAX_LOCAL_RANK",
    "JAX_LOCAL_WORLD_SIZE",
    "JAX_NODE_RANK",
    "JAX_COORDINATOR_ADDR",
    "JAX_COORDINATOR_PORT",
)
TELL = f"""
import json, os, sys
names = {(*NAMES, *JAX_NAMES)}
print(json.dumps([sys.argv, dict((name, os.environ[name]) for name in names if name in os.environ)]), flush=True)
"""
# How scripts for JAX are written today: from the variables alone, with a default for each.
THEIRS = """
import os, sys
import jax

jax.config.update("jax_platforms", "cpu")
rank, size = int(os.getenv("JAX_RANK", "0")), int(os.getenv("JAX_WORLD_SIZE", "1"))
address = os.getenv("JAX_COORDINATOR_ADDR", "127.0.0.1") + ":" + os.getenv("JAX_COORDINATOR_PORT", "1234")
jax.distributed.initialize(coordinator_address=address, num_processes=size, process_id=rank)
from jax.experimental.multihost_utils import process_allgather

total = float(process_allgather(jax.numpy.ones(1) * 10**rank).sum())
print(f"rank {rank} of {size}: {total:.0f}, local {os.environ['JAX_LOCAL_RANK']}, pid {os.getpid()}", flush=True)
process_allgather(jax.numpy.zeros(1))  # nobody fails before all have told
how = sys.argv[1] if rank == 1 else "wait"
if how == "exit":
    sys.exit(7)
if how == "raise":
    raise ValueError("boom")
if how == "kill":
    os.kill(os.getpid(), 9)
if sys.argv[1] != "end":
    process_allgather(jax.numpy.ones(1))
"""
needs_jax = pytest.mark.skipif(find_spec("jax") is None, reason="needs JAX")


def clean():
    """Our environment without a launcher's variables."""
    return {k: v for k, v in os.environ.items() if k not in (*NAMES, *JAX_NAMES, "OMP_NUM_THREADS")}


class Launcher:
    def __init__(self, folder: Path, *words: str, **environment: str) -> None:
        command = [sys.executable, "-m", "lockstep.launch.jax", *map(str, words)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, **pipes, cwd=folder, env=clean() | environment)

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=BOUND_S)
        return self.process.returncode, out, err


@pytest.fixture
def launch(tmp_path):
    """`launch(code, *flags, arguments=[...])` starts a launcher whose ranks run `code`."""
    started = []

    def _launch(code, *flags, arguments=(), **environment):
        if code is not None:
            (tmp_path / "script.py").write_text(code)
        script = () if code is None else ("script.py",)
        started.append(Launcher(tmp_path, *flags, *script, *arguments, **environment))
        return started[-1]

    yield _launch
    for one in started:
        one.process.kill()
        one.process.communicate()


def test_ranks_get_the_variables_of_jax_and_none_of_torchrun(launch):
    """skrl opens a process group of torch as soon as it finds WORLD_SIZE."""
    port = free_port()
    flags = ("--nnodes=1", "--nproc_per_node", "3", f"--coordinator-address=localhost:{port}")
    code, out, _ = launch(TELL, *flags, arguments=["--its", "own", "--nnodes=9"]).end()
    assert code == 0
    told = sorted((json.loads(line) for line in out.splitlines()), key=lambda one: one[1]["JAX_RANK"])
    assert [words for words, _ in told] == [["script.py", "--its", "own", "--nnodes=9"]] * 3
    for rank, (_, variables) in enumerate(told):
        assert variables == {
            "JAX_RANK": str(rank),
            "JAX_WORLD_SIZE": "3",
            "JAX_LOCAL_RANK": str(rank),
            "JAX_LOCAL_WORLD_SIZE": "3",
            "JAX_NODE_RANK": "0",
            "JAX_COORDINATOR_ADDR": "127.0.0.1",
            "JAX_COORDINATOR_PORT": str(port),
        }


def test_without_an_address_ranks_meet_at_a_free_port_and_are_as_many_as_there_are_gpus_or_one(launch):
    code, out, _ = launch(TELL).end()
    variables = json.loads(out)[1]
    assert (code, variables["JAX_WORLD_SIZE"], variables["JAX_COORDINATOR_ADDR"]) == (0, "1", "127.0.0.1")
    assert int(variables["JAX_COORDINATOR_PORT"]) > 1023


def test_a_module_is_run_as_python_runs_it(launch, tmp_path):
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "__init__.py").touch()
    (tmp_path / "packed" / "part.py").write_text(
        "import sys; print(__name__, __spec__.name, sys.argv[1:], sys.path[0])"
    )
    code, out, err = launch(None, "-m", "packed.part", "--flag").end()
    assert (code, out.strip(), err) == (0, f"__main__ packed.part ['--flag'] {tmp_path}", "")


def test_a_script_is_the_main_program_of_its_process(launch, tmp_path):
    (tmp_path / "beside.py").write_text("x = 3")
    code = "import beside, pickle, sys\nclass A: pass\nassert __name__ == '__main__' and __file__\n"
    code += "assert type(pickle.loads(pickle.dumps(A()))) is A and sys.modules['__main__'].A is A\nprint(beside.x)"
    assert launch(code).end()[:2] == (0, "3\n")


def test_a_program_that_is_not_python(launch):
    code, out, _ = launch(None, "--no_python", "--nproc_per_node=2", "sh", "-c", "echo $JAX_RANK; exit 5").end()
    assert code == 5
    assert set(out.split()) <= {"0", "1"} and out


@pytest.mark.parametrize(("end", "code"), [("sys.exit(7)", 7), ("sys.exit('no way')", 1), ("raise OSError('gone')", 1)])
def test_the_code_of_the_rank_that_fails_is_returned(launch, gone, end, code):
    """The namesake of this launcher returns 0 and lets rank 0 run on."""
    script = (
        f"import os, sys, time\nprint(os.getpid(), flush=True)\nif os.environ['JAX_RANK'] == '1': {end}\ntime.sleep(99)"
    )
    start = time.monotonic()
    returned, out, err = launch(script, "--nproc_per_node=2").end()
    assert returned == code
    assert err.splitlines()[-1] == f"lockstep: rank 1 exited with code {code}; the other ranks were stopped"
    assert time.monotonic() - start < 20
    assert gone([int(pid) for pid in out.split()])
    if code == 1:
        assert ("no way" if "no way" in end else "OSError: gone") in err
        assert "runpy" not in err and "lockstep/launch" not in err


def test_lines_of_ranks_that_print_at_once_stay_whole(launch):
    code = "import os, sys\nassert not sys.stdout.write_through, 'a line and its end are written separately'\n"
    code += "for line in range(300): print(os.environ['JAX_RANK'] * 50)"
    code, out, err = launch(code, "--nproc_per_node=4", PYTHONUNBUFFERED="1").end()
    assert code == 0, err
    assert sorted(out.splitlines()) == sorted(str(rank) * 50 for rank in range(4) for _ in range(300))


@needs_jax
def test_a_script_for_jax_runs_unchanged(launch):
    code, out, err = launch(THEIRS, "--nproc_per_node=2", arguments=["end"]).end()
    assert code == 0, err
    for rank in range(2):
        assert f"rank {rank} of 2: 11, local {rank}" in out


@needs_jax
@pytest.mark.parametrize(("how", "code"), [("exit", 7), ("raise", 1), ("kill", 137)])
def test_a_rank_that_fails_after_jax_has_met_ends_all_soon(launch, gone, how, code):
    """Python's own end would wait for all ranks in `jax.distributed`, 300 s by default."""
    launcher = launch(THEIRS, "--nproc_per_node=2", arguments=[how])
    returned, out, err = launcher.end()
    how = "was killed by SIGKILL (signal 9)" if code == 137 else f"exited with code {code}"
    assert (returned, err.splitlines()[-1]) == (code, f"lockstep: rank 1 {how}; the other ranks were stopped")
    pids = [int(line.rpartition("pid ")[2]) for line in out.splitlines() if "pid" in line]
    assert len(pids) == 2 and gone(pids), out + err


@needs_jax
def test_sigterm_ends_ranks_that_jax_has_met_at_once(launch, gone):
    """JAX's own preemption service would catch the signal and go on; then they would be killed 30 s later."""
    waits = THEIRS.replace("process_allgather(jax.numpy.ones(1))\n", "import time; time.sleep(99)\n")
    launcher = launch(waits, "--nproc_per_node=2", "--log-dir=here", arguments=["wait"])
    pids = ready(launcher, 2)
    launcher.process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    code, _, err = launcher.end()
    assert code == 143 and "SIGKILL" not in err, err
    assert time.monotonic() - began < 15
    assert gone(pids)


def ready(launcher, count):
    """The process ids that ranks wrote into their logs below `here`."""
    deadline, cwd = time.monotonic() + BOUND_S, Path(os.readlink(f"/proc/{launcher.process.pid}/cwd"))
    while time.monotonic() < deadline:
        logs = [path.read_text() for path in cwd.glob("here/logs/rank_*.log")]
        found = [int(line.rpartition("pid ")[2]) for log in logs for line in log.splitlines() if "pid " in line]
        if len(found) == count:
            return found
        assert launcher.process.poll() is None, launcher.end()
        time.sleep(0.05)
    pytest.fail(f"not ready: {logs}")


WAIT = "import os, sys, time\nprint('pid', os.getpid(), flush=True)\ntime.sleep(99)"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_is_forwarded_and_returned(launch, gone, number, code):
    launcher = launch(WAIT, "--nproc_per_node=2", "--log_dir", "here")
    pids = ready(launcher, 2)
    launcher.process.send_signal(number)
    returned, _, err = launcher.end()
    assert returned == code
    assert f"lockstep: interrupted by {number.name}" in err and "SIGKILL" not in err
    assert gone(pids)


@pytest.mark.real_start  # the guardian finds a rank that it was not told of by its environment, which a fork has not
def test_nothing_survives_a_killed_launcher(launch, gone):
    launcher = launch(WAIT, "--nproc_per_node=2", "--log_dir", "here")
    pids = ready(launcher, 2)
    launcher.process.kill()
    assert gone(pids)


def test_ranks_start_again_as_often_as_asked(launch):
    code = "import os, sys\nprint(os.environ['LOCKSTEP_RESTARTS'], flush=True)\nsys.exit(3)"
    returned, out, err = launch(code, "--max-restarts=2").end()
    assert (returned, out.split()) == (3, ["0", "1", "2"])
    assert "restart 1 of 2" in err and "this was start 3" in err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--coordinator_address=10.0.0.1"], "10.0.0.1 has no port; write HOST:PORT, such as 10.0.0.1:5555"),
        (["--coordinator_address=10.0.0.1:"], "has no port"),
        (["--coordinator_address=:5555"], "has no host; write HOST:PORT"),
        (["--coordinator_address=a:99999"], "port 99999 must be a port, at most 65535"),
        (["--coordinator_address=a:b"], "port b"),
        (["--coordinator_address=192.0.2.77:5555"], "192.0.2.77 is not an address of this machine, and --nnodes is 1"),
        (["--coordinator_address=no.such.host.invalid:5555"], "cannot be resolved"),
        (["--coordinator_address=::1:5555"], "in brackets"),
        (["--nnodes=2"], "--nnodes 2: the nodes need a place to meet; give all of them --coordinator_address"),
        (["--nnodes=0"], "--nnodes 0"),
        (["--nnodes=1:2"], "--nnodes 1:2"),
        (["--nnodes=1", "--node_rank=1"], "--node_rank 1 does not exist with --nnodes 1; node ranks go from 0 to 0"),
        (["--nnodes=2", "--node_rank=2", "--coordinator_address=127.0.0.1:5"], "node ranks go from 0 to 1"),
        (["--node_rank=-1"], "--node_rank -1"),
        (["--nproc_per_node=0"], "--nproc-per-node 0"),
        (["--nproc_per_node=gpu"], "no GPU that jax can use"),
        (["--max_restarts=x"], "--max-restarts x"),
        (["--no-such-flag"], "unrecognized arguments: --no-such-flag"),
        (["--token-file=none"], "--token-file none cannot be read"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_one_line_before_anything_starts(launch, tmp_path, flags, said):
    if flags == ["--nproc_per_node=gpu"] and Path("/dev/nvidia0").exists():
        pytest.skip("there is a GPU")
    start = time.monotonic()
    code, out, err = launch("open('began', 'x')", *flags).end()
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1 and err.startswith("lockstep: error: ") and said in err, err
    assert not (tmp_path / "began").exists()
    assert time.monotonic() - start < 10


def test_a_port_in_use_is_refused(launch):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        code, out, err = launch(TELL, f"--coordinator_address=127.0.0.1:{port}").end()
    assert (code, out) == (2, "")
    assert err.startswith(f"lockstep: error: --coordinator_address: 127.0.0.1:{port} is in use by another program")


def test_a_script_that_does_not_exist_or_a_rank_that_starts_ranks_is_refused(launch):
    assert "script nowhere.py does not exist" in launch(None, "nowhere.py").end()[2]
    for variables in ({"RANK": "0", "WORLD_SIZE": "2"}, {"JAX_RANK": "0", "JAX_WORLD_SIZE": "2"}):
        code, _, err = launch(TELL, **variables).end()
        assert code == 2
        assert "python -m lockstep.launch.jax starts ranks, but this process is rank 0 of one already" in err


def test_no_framework_is_imported(tmp_path):
    (tmp_path / "script.py").write_text("import sys; assert not {'jax', 'torch', 'numpy'} & set(sys.modules)")
    code = "import sys\nfrom lockstep.launch.jax import main\nassert main(['--nproc_per_node=2', 'script.py']) == 0\n"
    code += "assert not {'jax', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env=clean(), timeout=BOUND_S)
