"""What a user sees at once: one line, before a framework is loaded, with the run directory that will be used."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lockstep.errors import ConfigError
from lockstep.launch import gpus
from lockstep.launch.rank_environment import free_port
from lockstep.launch.startup_line import startup_line
from lockstep.record.pending_run import PendingRun
from lockstep.record.run_dir import RunDir
from lockstep.run import OfflineRun, Run, override
from lockstep.world import World
from quick import others_slow

RUN = Run(task="lockstep/Corridor-v0", num_envs=8, total_steps=256)
SMALL = ["lockstep/Corridor-v0", "--num-envs=8", "--set=num_steps=8", "--set=num_minibatches=2"]
SMALL += ["--set=evaluate_episodes=4", "--set=total_steps=128"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_says_what_starts(here):
    assert startup_line(RUN, World(size=2), here / "runs" / "a") == (
        "lockstep/Corridor-v0: ppo, torch, 2 ranks on cpu; num_envs=8 num_steps=128 total_steps=256 "
        "learning_rate=0.00025 seed=0 num_shards=2 (follows the ranks); run directory runs/a"
    )
    dqn = override(RUN, {"algo": "dqn", "ml_framework": "jax", "seed": 3, "num_shards": 4, "precision": "bfloat16"})
    line = startup_line(dqn, World(), here / "b", num_shards=2, step=128)
    assert line.startswith("lockstep/Corridor-v0: dqn, jax, 1 rank on cpu; num_envs=8 ")
    assert line.endswith("precision=bfloat16 seed=3 num_shards=4 (pinned); resuming from step 128; run directory b")
    assert " num_shards=2 (of the checkpoint); resuming" in startup_line(RUN, World(), here, num_shards=2, step=128)
    line = startup_line(OfflineRun(data="prepared"), World(), None)
    assert line.startswith("logged data in prepared: dqn, torch, 1 rank on cpu; epochs=100 batch_size=")


def test_a_run_directory_elsewhere_has_its_whole_path(here, monkeypatch):
    """As of a rank that Ray starts in a directory of its own."""
    (here / "ray" / "session").mkdir(parents=True)
    monkeypatch.chdir(here / "ray" / "session")
    assert startup_line(RUN, World(), here / "runs" / "a").endswith(f"; run directory {here}/runs/a")
    assert startup_line(RUN, World(), Path("../b")).endswith(f"; run directory {here}/ray/b")
    assert startup_line(RUN, World(), Path("..c")).endswith("; run directory ..c")


def test_a_gpu_is_found_without_a_framework(monkeypatch):
    monkeypatch.setattr(gpus, "nvidia_gpu_present", lambda: True)
    monkeypatch.setattr(gpus, "num_gpus", lambda: 2)
    for built, device in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(gpus, "_torch_has_cuda", lambda built=built: built)
        assert f" on {device};" in startup_line(RUN, World(), None)


def started(*arguments: str, ranks: int = 1, environment: dict[str, str] | None = None) -> list[tuple[float, str]]:
    """What `lockstep train` prints, and after how many seconds."""
    began, found = time.monotonic(), []
    program = [sys.executable, "-m", "lockstep.cli", "train", *arguments, f"--ranks={ranks}"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True, env=os.environ | (environment or {})) as process:
        assert process.stdout is not None
        found = [(time.monotonic() - began, line.rstrip("\n")) for line in process.stdout]
    assert process.returncode == 0, found
    return found


@pytest.mark.parametrize(
    ("framework", "ranks"),
    others_slow([("torch", 1), ("torch", 2), ("jax", 1)], ("torch", 2), several=True),
)
@pytest.mark.real_start
def test_it_comes_first_and_is_in_the_log(here, framework, ranks):
    pytest.importorskip(framework)
    found = started(*SMALL, "--run-dir=my run", f"--ml-framework={framework}", ranks=ranks)
    lines = [line for _, line in found]
    assert lines[0].startswith(f"lockstep/Corridor-v0: ppo, {framework}, {ranks} rank")
    assert lines[0].endswith("; run directory my run")
    assert found[0][0] < found[-1][0] / 2, "before what takes long"
    assert ("compiling ..." in lines) == (framework == "jax")
    assert Path("my run", "logs", "rank_0.log").read_text().splitlines() == lines, "the log holds what was shown"
    if ranks == 2:
        assert "finished" not in Path("my run", "logs", "rank_1.log").read_text()
    again = [line for _, line in started("--resume=my run", "--set=total_steps=256", ranks=ranks)]
    assert "; resuming from step 128; run directory my run" in again[0]
    assert f"num_shards={ranks} (of the checkpoint);" in again[0]


def test_no_framework_is_loaded_before_it(here):
    code = """
import sys
from lockstep.cli import main as cli
from lockstep.record.pending_run import PendingRun
def announce(self, line):
    print(sorted({"torch", "jax", "pandas", "rich", "tensorboard"} & set(sys.modules)), line)
    raise SystemExit(0)
PendingRun.announce = announce
cli.main(["train", "cartpole"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.startswith("[] CartPole-v1: ppo, torch, 1 rank"), done.stderr
    assert list(here.rglob("*")) in ([], [here / "runs"]), "a run that did not begin leaves nothing"


@pytest.mark.parametrize("command", [["--set", "num_minibatches=7"], ["--run-dir", "full"]])
def test_what_cannot_run_is_refused_before_it(here, command):
    Path("full").mkdir()
    Path("full", "thing").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "lockstep.cli", "train", "cartpole", *command], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")


def test_what_takes_long_is_named(here, capsys, monkeypatch):
    monkeypatch.setattr("lockstep.record.pending_run._REPORT_AFTER_S", 0.05)
    pending = PendingRun()
    pending.start_phase("importing torch")
    pending.start_phase("connecting the ranks")
    time.sleep(0.5)
    pending.end_phase()
    pending.start_phase("never said")
    pending.discard()
    time.sleep(0.2)
    assert capsys.readouterr().out == "connecting the ranks ...\n"
    assert pending.printed == ["connecting the ranks ..."]


def test_a_directory_is_made_at_once_and_removed_if_the_run_does_not_begin(here):
    pending = PendingRun()
    assert pending.make(RUN, alone=True)
    assert pending.path is not None and (pending.path / "run.yaml").is_file()
    pending.discard()
    assert not list(here.iterdir())
    begun = PendingRun(here / "a" / "b")
    begun.make(RUN, alone=True)
    assert begun.run_dir(RUN).path == here / "a" / "b"
    begun.discard()
    assert (here / "a" / "b" / "run.yaml").is_file(), "it began"
    (here / "mine").mkdir()
    made = RunDir.create(here / "mine", RUN)
    made.discard()
    assert (here / "mine").is_dir(), "it was there before"


def test_a_refusal_waits_for_the_other_ranks(here):
    (here / "full").mkdir()
    (here / "full" / "thing").write_text("")
    with pytest.raises(ConfigError, match="already holds files"):
        PendingRun(here / "full").make(RUN, alone=True)
    pending = PendingRun(here / "full")
    assert not pending.make(RUN, alone=False)
    with pytest.raises(ConfigError, match="already holds files"):
        pending.run_dir(RUN)


def test_under_torchrun_rank_0_says_it(here):
    pytest.importorskip("torch")
    port = f"--master_port={free_port()}"  # the default may be in use
    program = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1", "--nproc_per_node=2", port, "-m"]
    done = subprocess.run([*program, "lockstep.train", *SMALL], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    firsts = re.findall(r"^lockstep/Corridor-v0: ppo.*run directory (\S+)$", done.stdout, re.MULTILINE)
    assert len(firsts) == 1
    assert json.loads((Path(firsts[0]) / "summary.json").read_text())["status"] in ("finished", "solved")
    assert firsts[0] in Path(firsts[0], "logs", "rank_0.log").read_text().splitlines()[0]
