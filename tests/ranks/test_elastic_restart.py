"""Launchers that start their ranks again, nodes that come and go: what is trained stays one run, bit by bit."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from running import lines, small, timeless

from lockstep.cli.chaos.faults import InjectedFault
from lockstep.launch.rank_environment import free_port
from lockstep.run import dump
from lockstep.train import train

BOUND_S = 180
ENDED_S = 10  # for ranks whose launcher was killed
HALF_WAY = 10 * 128
"""`checkpoint_every` with one checkpoint before the last, so that a fault finds a moment when none is being written."""


def pinned(**changes):
    return small(
        "CartPole-v1",
        **{"checkpoint_every": 4 * 128, "log_every": 128, "num_shards": 4, "normalize_observation": True, **changes},
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The run as one process trains it."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    train(pinned(), run_dir=folder)
    return folder


def torchrun(tmp_path, *words, **options):
    """A torchrun of ranks that train `run.yaml`, its output in `N.log`."""
    return launcher(tmp_path, "-m", "torch.distributed.run", *words, **options)


def launcher(tmp_path, *words, run=None, program=sys.executable, **variables):
    """As `torchrun`, with any module or other program that starts ranks."""
    (tmp_path / "run.yaml").write_text(dump(run or pinned()))
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("LOCKSTEP_LAUNCHER", "TORCHELASTIC"))}
    clean |= {"OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path), "PACE": str(tmp_path / "pace")}
    clean["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    log = tmp_path / f"{len(list(tmp_path.glob('*.log')))}.log"
    with log.open("wb") as output:
        agent = subprocess.Popen(
            [program, *words],
            env=clean | variables,
            cwd=tmp_path,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return agent, log


def finished(tmp_path, *words, **options):
    """What torchrun and its ranks said, once they are done with success."""
    agent, log = torchrun(tmp_path, *words, **options)
    try:
        code = agent.wait(BOUND_S)
    finally:
        agent.kill()
        agent.wait()
    assert code == 0, log.read_text()
    return log.read_text()


def until(condition, what, *logs):
    bound = time.monotonic() + BOUND_S
    while not (found := condition()):
        assert time.monotonic() < bound, f"no {what}:\n" + "\n".join(log.read_text() for log in logs)
        time.sleep(0.05)
    return found


def killed(**when):
    """The program of a rank that a fault kills, in the first start."""
    return ["-m", "lockstep.cli.chaos.faults", InjectedFault("kill", rank=1, **when).to_json(), "train", "run.yaml"]


def equal_to(undisturbed, run_dir):
    """The run's summary, after it was found to be the undisturbed run's in every bit."""
    expected, summary = (json.loads((folder / "summary.json").read_text()) for folder in (undisturbed, run_dir))
    for key in ("params_fingerprint", "env_steps", "updates", "episodes", "status", "eval_return_mean"):
        assert summary[key] == expected[key], key
    assert timeless(str(run_dir)) == timeless(str(undisturbed))
    assert lines(str(run_dir), "evaluations.jsonl") == lines(str(undisturbed), "evaluations.jsonl")
    return summary


@pytest.mark.parametrize(
    "share",
    [pytest.param("0", id="its store shared"), pytest.param("1", id="a store of its own")],
)
@pytest.mark.slow
def test_a_killed_rank_is_started_again_and_the_run_goes_on_exactly(undisturbed, share, tmp_path):
    """With the directory named: the second start is not refused because it exists."""
    said = finished(
        tmp_path,
        *("--nnodes=1", "--nproc_per_node=2", "--max-restarts=2", "--rdzv_backend=c10d", "--rdzv_id=123"),
        *killed(update=12, saved=True),
        "--run-dir=out",
        run=pinned(checkpoint_every=HALF_WAY),
        TORCH_DISABLE_SHARE_RDZV_TCP_STORE=share,
    )
    summary = equal_to(undisturbed, tmp_path / "out")
    assert summary["restarts"] == 1
    assert summary["resumed_from"] is not None
    assert "restart 1 of out, on 2 ranks" in said


@pytest.mark.slow  # quick for the memo alone, in tests/unit/launch/test_elastic.py
def test_before_its_first_checkpoint_a_run_begins_again_where_it_was(undisturbed, tmp_path):
    run = pinned(checkpoint_every=None)
    said = finished(tmp_path, "--standalone", "--nproc_per_node=2", "--max-restarts=2", *killed(update=6), run=run)
    (run_dir,) = (tmp_path / "runs").iterdir()
    summary = equal_to(undisturbed, run_dir)
    assert (summary["restarts"], summary["resumed_from"]) == (1, None)
    assert "begins from its start" in said


@pytest.mark.slow  # quick for the memo alone, in tests/unit/launch/test_elastic.py
def test_a_policy_to_start_from_counts_until_there_is_a_checkpoint(undisturbed, tmp_path):
    train(pinned(), run_dir=tmp_path / "whole", init_from=undisturbed)
    run, source = pinned(checkpoint_every=None), f"--init-from={undisturbed}"
    code = "from lockstep.session.checkpoints import Checkpoints as C; C._take = lambda *_: None; "  # none at the start
    code += "from lockstep.cli.chaos.faults import main; main()"
    program = ["--no-python", sys.executable, "-c", code, *killed(update=6)[2:], source, "--run-dir=out"]
    finished(tmp_path, "--standalone", "--nproc_per_node=2", "--max-restarts=1", *program, run=run)
    assert equal_to(tmp_path / "whole", tmp_path / "out")["restarts"] == 1


@pytest.mark.slow
def test_a_script_that_trains_two_runs_goes_on_with_the_second(undisturbed, tmp_path):
    """What was finished before the restart is not trained again, and does not become the other run."""
    program = str(Path(__file__).with_name("two_runs.py"))
    said = finished(
        tmp_path, "--standalone", "--nproc_per_node=2", "--max-restarts=1", program, "run.yaml", "out"
    )  # fmt: skip
    assert "nothing is left to do" in said
    equal_to(undisturbed, tmp_path / "out" / "first")
    second = json.loads((tmp_path / "out" / "second" / "summary.json").read_text())
    assert (second["seed"], second["status"], second["env_steps"]) == (1, "finished", 2560)
    assert second["restarts"] == 1


def ranks_of(agent):
    """Processes whose parent, or grandparent, is the agent."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    children = {pid for pid, parent in parents.items() if parent == agent.pid}
    return children | {pid for pid, parent in parents.items() if parent in children}


def lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize(
    "wrapped",
    [pytest.param(False, marks=pytest.mark.slow, id="started by it"), pytest.param(True, id="behind a shell")],
)
def test_ranks_end_when_their_torchrun_is_killed(wrapped, tmp_path):
    run, program = pinned(total_steps=10**7, timeout_s=120.0), ["-m", "lockstep.train", "run.yaml", "--run-dir=out"]
    if wrapped:
        shell = f"'{sys.executable}' {' '.join(program)}; exit $?"
        program = ["--no-python", "bash", "-c", shell]
    agent, log = torchrun(tmp_path, "--standalone", "--nproc_per_node=2", *program, run=run)
    try:
        until(lambda: (tmp_path / "out" / "metrics.jsonl").exists(), "first line", log)
        ranks = ranks_of(agent)
        assert len(ranks) >= 2
    finally:
        agent.kill()
        agent.wait()
    asked = time.monotonic()
    while (left := [pid for pid in ranks if lives(pid)]) and time.monotonic() < asked + ENDED_S:
        time.sleep(0.05)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == [], log.read_text()


# torchrun's wait for more nodes is 2 s instead of 30 s here, and ours is as it is.
ELASTIC = {
    "torchrun": ["torch.distributed.run", "--rdzv_backend=c10d", "--rdzv_id=123", "--rdzv-conf=last_call_timeout=2"],
    "lockstep": ["lockstep.cli", "launch", "--rdzv_id=123"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lockstep", "torchrun"])
def test_a_node_joins_and_leaves_and_nothing_is_lost(name, tmp_path):
    """One rank per node: 1 rank, then 2, then 1."""
    run = pinned(total_steps=200 * 128, checkpoint_every=8 * 128, evaluate_episodes=4)
    (tmp_path / "pace").touch()
    words = ["-m", *ELASTIC[name], "--nnodes=1:2", "--nproc_per_node=1", "--max-restarts=3"]
    words += [f"--rdzv_endpoint=127.0.0.1:{free_port()}", "-m", "paced", "run.yaml", "--run-dir=out"]
    variables = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    first, log = launcher(tmp_path, *words, run=run, **variables)
    second = None
    try:
        until(lambda: "steps" in log.read_text(), "first step", log)
        second, other = launcher(tmp_path, *words, run=run, **variables)
        until(
            lambda: re.search(r"restart 1 of \S+, on 2 ranks", log.read_text() + other.read_text()), "join", log, other
        )
        joined = until(
            lambda: re.findall(r"resumed from step (\d+)", log.read_text() + other.read_text()), "resume", log, other
        )
        assert re.findall(r"interrupted after (\d+) steps", log.read_text()) == joined  # not a step is taken twice
        until(lambda: lines(str(tmp_path / "out"))[-1]["step"] > int(joined[0]) + 8 * 128, "progress", log, other)
        second.kill()
        until(lambda: re.search(r"restart 2 of \S+, on 1 rank\b", log.read_text()), "end without the node", log, other)
        (tmp_path / "pace").unlink()
        assert first.wait(BOUND_S) == 0, log.read_text()
    finally:
        for agent in filter(None, (first, second)):
            agent.kill()
            agent.wait()
    train(run, run_dir=tmp_path / "whole")
    summary = equal_to(tmp_path / "whole", tmp_path / "out")
    assert (summary["restarts"], summary["world_size"], summary["num_shards"]) == (2, 1, 4)


def two_agents(tmp_path, *words, restarts=0, **options):
    """Two torchruns of one rank each; the first has the store."""
    port = free_port()
    words = [*(f"--{name}" for name in ("nnodes=2", "nproc_per_node=1", "rdzv_backend=c10d", "rdzv_id=123")), *words]
    words = [f"--rdzv_endpoint=127.0.0.1:{port}", f"--max-restarts={restarts}", *words, "--run-dir=out"]
    first, log = torchrun(tmp_path, *words, **options)

    def listens():
        with socket.socket() as asking:
            return asking.connect_ex(("127.0.0.1", port)) == 0

    until(listens, "store", log)
    second, other = torchrun(tmp_path, *words, **options)
    return (first, log), (second, other), words


@pytest.fixture
def ended():
    """Agents to kill after the test."""
    agents = []
    yield agents
    for agent in agents:
        agent.kill()
        agent.wait()


@pytest.mark.slow
def test_a_killed_rank_of_two_agents_is_started_again_by_both(undisturbed, ended, tmp_path):
    run = pinned(checkpoint_every=HALF_WAY)
    agents = two_agents(tmp_path, *killed(update=12, saved=True), restarts=2, run=run)[:2]
    ended += [agent for agent, _ in agents]
    logs = [log for _, log in agents]
    until(lambda: all(agent.poll() is not None for agent, _ in agents), "end", *logs)
    assert [agent.returncode for agent, _ in agents] == [0, 0], "\n".join(log.read_text() for log in logs)
    summary = equal_to(undisturbed, tmp_path / "out")
    assert (summary["restarts"], summary["world_size"]) == (1, 2)
    assert summary["resumed_from"] is not None


@pytest.mark.slow
def test_a_killed_agent_ends_its_ranks_and_the_other_agent(ended, tmp_path):
    run = pinned(total_steps=10**7, timeout_s=5.0)
    (first, log), (second, other), _ = two_agents(tmp_path, "-m", "lockstep.train", "run.yaml", run=run)
    ended += [first, second]
    until(lambda: (tmp_path / "out" / "checkpoints" / "LATEST").exists(), "checkpoint", log, other)
    ranks = ranks_of(second)
    second.kill()
    until(lambda: first.poll() is not None, "end of the other agent", log, other)
    assert first.returncode == 1, log.read_text()
    until(lambda: not any(map(lives, ranks)), "end of the ranks", log, other)
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["status"] == "failed"
    assert re.search(r"lockstep: error: .*rank 1", log.read_text() + other.read_text())


@pytest.mark.slow
def test_a_node_whose_agent_was_killed_is_replaced(ended, tmp_path):
    """`--nnodes=2` is no range: the agent that is left waits for another one."""
    run = pinned(total_steps=40 * 128, checkpoint_every=8 * 128, evaluate_episodes=4, timeout_s=5.0)
    (tmp_path / "pace").touch()
    # Without the variable the agent that is left does not publish its address again.
    options = {"run": run, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    (first, log), (second, other), words = two_agents(tmp_path, "-m", "paced", "run.yaml", restarts=1, **options)
    ended += [first, second]
    until(lambda: (tmp_path / "out" / "checkpoints" / "LATEST").exists(), "checkpoint", log, other)
    second.kill()
    until(lambda: "lockstep: error: " in log.read_text(), "failure of the rank that is left", log, other)
    third, again = torchrun(tmp_path, *words, **options)
    ended.append(third)
    restarted = re.compile(r"restart 1 of out, on 2 ranks")
    until(lambda: restarted.search(log.read_text() + again.read_text()), "restart", log, again)
    (tmp_path / "pace").unlink()
    until(lambda: None not in (first.poll(), third.poll()), "end", log, again)
    assert (first.returncode, third.returncode) == (0, 0), log.read_text() + again.read_text()
    train(run, run_dir=tmp_path / "whole")
    assert equal_to(tmp_path / "whole", tmp_path / "out")["restarts"] == 1


@pytest.fixture
def torchx(tmp_path, ended):
    """Start ranks by torchx's local scheduler, which finds the torchrun of this environment."""
    program = shutil.which("torchx")
    if program is None:
        pytest.skip("needs the command `torchx`, which may be in an environment of its own")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

    def start(layout, *words, **options):
        words = ["run", "-s", "local_cwd", "dist.ddp", "-j", layout, "--env", "PET_MAX_RESTARTS=1", *words]
        started, log = launcher(tmp_path, *words, program=program, PATH=path, **options)
        ended.append(started)
        return started, log

    return start


@pytest.mark.slow
def test_a_killed_rank_under_torchx_is_started_again(undisturbed, torchx, tmp_path):
    module, name, *arguments = killed(update=12, saved=True)
    run = pinned(checkpoint_every=HALF_WAY)
    app, log = torchx("1x2", module, name, "--", *arguments, "--run-dir=out", run=run)
    assert app.wait(BOUND_S) == 0, log.read_text()
    summary = equal_to(undisturbed, tmp_path / "out")
    assert summary["restarts"] == 1
    assert summary["resumed_from"] is not None


@pytest.mark.slow
def test_torchx_ends_with_a_checkpoint_and_its_own_exit_code(torchx, tmp_path):
    run = pinned(total_steps=10**7, checkpoint_every=None)
    app, log = torchx("1x2", "-m", "lockstep.train", "--", "run.yaml", "--run-dir=out", run=run)
    until(lambda: (tmp_path / "out" / "metrics.jsonl").exists(), "first line", log)
    app.terminate()
    assert app.wait(BOUND_S) == 1, log.read_text()
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["status"] == "interrupted"
    assert (tmp_path / "out" / "checkpoints" / "LATEST").exists()


def test_a_torchrun_that_cannot_grow_is_refused_with_the_cure(tmp_path):
    program = ["-m", "lockstep.train", "run.yaml", "--run-dir=out"]
    for variables, shards, cure in (
        (
            {},
            4,
            r"TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 \S*python\S* -m torch.distributed.run --nnodes=1:2 .*--run-dir=out",
        ),
        ({"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}, 2, "--nnodes=1:2 may grow to 4 ranks.*add --set num_shards=4"),
    ):
        words = ["--nnodes=1:2", "--nproc_per_node=2", "--rdzv_backend=c10d", "--rdzv-conf=last_call_timeout=1"]
        words += [f"--rdzv_endpoint=localhost:{free_port()}"]
        agent, log = torchrun(tmp_path, *words, *program, run=pinned(num_shards=shards), **variables)
        try:
            agent.wait(BOUND_S)
        finally:
            agent.kill()
            agent.wait()
        said = log.read_text()
        assert re.search(f"lockstep: error: .*{cure}", said), said
        assert re.search(r"exitcode +: 2 ", said), said
        assert not (tmp_path / "out").exists()


def test_a_rank_that_waits_for_others_ends_when_it_is_told_to(tmp_path):
    """Nodes come one after another: each that comes stops ranks that have hardly started."""
    port = free_port()
    world = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    world |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    rank, log = launcher(tmp_path, "-m", "lockstep.train", "run.yaml", run=pinned(startup_timeout_s=120.0), **world)

    def waits():
        assert rank.poll() is None, log.read_text()
        with socket.socket() as asking:
            return asking.connect_ex(("127.0.0.1", port)) == 0

    try:
        until(waits, "place to meet", log)
        rank.terminate()
        rank.wait(ENDED_S)
    finally:
        rank.kill()
        rank.wait()
    assert rank.returncode in (-signal.SIGTERM, 128 + signal.SIGTERM), log.read_text()
