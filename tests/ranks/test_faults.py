"""Nothing hangs in silence: whatever a rank does, the run ends within a bound, names it, and leaves nothing behind."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from running import small, timeless

from lockstep.cli.chaos.faults import InjectedFault
from lockstep.launch.rank_environment import free_port
from lockstep.run import dump

ENVS = Path(__file__).with_name("rank_envs.py")
KEYS = [
    "schema", "status", "error", "task", "algo", "ml_framework", "seed", "world_size", "num_shards",
    "shards_pinned", "backend", "devices",
    "env_steps", "updates", "episodes", "wall_time_s", "startup_s", "steps_per_second", "return_mean_100",
    "eval_return_mean", "eval_return_std", "eval_episodes", "solved_at_step", "solved_at_s", "params_fingerprint",
    "phases_s", "ranks", "restarts", "resumed_from", "versions",
]  # fmt: skip
START_S = 40.0  # to start two ranks on a machine that is busy with other things


class Run:
    """One command that ended, or was ended: its code, what it said and what it left."""

    def __init__(self, tmp_path, fault="", *, launcher="lockstep", ranks=2, run_dir="run", more=(), **changes):
        planted = fault if isinstance(fault, InjectedFault) else None  # from outside, else by the environment itself
        kwargs = {} if planted else {"env.kwargs": {"fault": fault, **changes.pop("env", {})}}
        changes = {"total_steps": 100_000_000, "timeout_s": 4.0, **changes}
        task = "CartPole-v1" if planted else f"{ENVS}:Faulty"
        (tmp_path / "fault.yaml").write_text(dump(small(task, **changes, **kwargs)))
        self.run_dir = Path(tmp_path, run_dir)
        command = ["lockstep.cli.chaos.faults", planted.to_json(), "train"] if planted else ["lockstep.cli", "train"]
        if launcher == "torchrun":
            command = [
                "torch.distributed.run",
                "--nnodes=1",
                f"--nproc_per_node={ranks}",
                f"--master_port={free_port()}",
            ]
            command += ["-m", "lockstep.train"]
        command += ["fault.yaml", "--run-dir", str(self.run_dir)]
        command += [f"--ranks={ranks}", *more] if launcher == "lockstep" else []
        self.out, self.err = tmp_path / "out", tmp_path / "err"
        environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")} | {
            "OMP_NUM_THREADS": "1"
        }
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *command], cwd=tmp_path, env=environment, stdout=out, stderr=err
            )

    def wait(self, within_s):
        """The exit code; fails the test when the run did not end by itself."""
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the run did not end within {within_s} s:\n{self.text}")
        finally:
            if self.process.poll() is None:
                for pid in [self.process.pid, *self.left()]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                self.process.wait()

    def until_it_trains(self):
        metrics, deadline = self.run_dir / "metrics.jsonl", time.monotonic() + START_S
        while not (metrics.exists() and metrics.read_text()):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.wait(0.01)
                pytest.fail(f"the run did not come to train:\n{self.text}")
            time.sleep(0.05)

    def left(self):
        """Processes of this run that still live."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if str(self.run_dir).encode() in (path / "cmdline").read_bytes():
                    found.append(int(path.name))
        return found

    def gone(self, within_s=2.0):
        deadline = time.monotonic() + within_s
        while self.left() and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.left() == []

    @property
    def text(self):
        return self.err.read_text()

    @property
    def summary(self):
        return json.loads((self.run_dir / "summary.json").read_text())

    def check(self, code, status, *words):
        """What every end has to leave."""
        assert self.process.returncode == code, self.text
        assert self.gone(), "processes were left behind"
        summary = self.summary
        assert list(summary) == KEYS, "summary.json lacks keys"
        assert summary["status"] == status
        assert summary["world_size"] == 2
        assert [str(path) for path in self.run_dir.rglob(".*")] == [], "half-written files were left"
        for word in words:
            assert word in summary["error"], (word, summary["error"])


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        ("raise", 1, ["rank 1", "ValueError: the motor is hot"]),
        pytest.param("3", 3, ["rank 1 exited with code 3"], marks=pytest.mark.slow),
        pytest.param("0", 1, ["rank 1"], marks=pytest.mark.slow),
        ("kill", 137, ["rank 1 was killed by SIGKILL"]),
    ],
)
def test_a_rank_that_fails_ends_the_run_and_is_named(tmp_path, fault, code, words):
    run = Run(tmp_path, fault)
    run.wait(START_S)
    run.check(code, "failed", *words)
    said = run.text
    assert all(word in said for word in words), said
    if fault != "raise":
        assert "Traceback" not in said.split("rank 1 |")[0]


def test_the_one_who_writes_the_summary_is_killed(tmp_path):
    run = Run(tmp_path, "kill", env={"on": 0})
    run.wait(START_S)
    run.check(137, "failed", "rank 0 was killed by SIGKILL")
    assert "rank 0 was killed by SIGKILL" in run.text


def test_a_rank_that_sleeps_in_env_step_is_named_with_its_phase(tmp_path):
    run = Run(tmp_path, "sleep")
    run.wait(START_S)
    run.check(1, "failed", "rank 1 has been in env.step, update 3 for", "rank 0 waits in moments")
    assert "rank 1 has been in env.step" in run.text
    waited = float(run.summary["error"].partition(" for ")[2].split()[0])
    assert 4 <= waited < 9, "the stall was seen too late"


def test_a_stopped_rank_is_told_from_a_dead_one(tmp_path):
    run = Run(tmp_path, InjectedFault("stop", 1, 2))
    run.wait(START_S)
    run.check(1, "failed", "rank 1 is stopped (SIGSTOP) in env.step, update 3", "kill -CONT", "rank 0 waits in")
    assert "rank 1 is stopped (SIGSTOP) in env.step" in run.text


def test_a_killed_rank_costs_the_steps_since_the_last_checkpoint_and_nothing_else(tmp_path):
    """4 pinned shards: the run that never stopped may have had any number of ranks, here one."""
    changes = {"num_shards": 4, "total_steps": 12 * 128, "log_every": 128, "checkpoint_every": 4 * 128}
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    steady = Run(tmp_path / "one", ranks=1, fault=InjectedFault("kill", 7, 0), **changes)
    steady.wait(START_S)
    run = Run(tmp_path / "two", InjectedFault("kill", 1, 7, saved=True), more=["--max-restarts", "1"], **changes)
    run.wait(2 * START_S)
    run.check(0, "finished")
    assert run.summary["restarts"] == 1
    assert "lockstep: rank 1 was killed by SIGKILL (signal 9); restart 1 of 1 from step " in run.text
    assert run.summary["params_fingerprint"] == steady.summary["params_fingerprint"]
    assert timeless(str(run.run_dir)) == timeless(str(steady.run_dir))


@pytest.mark.slow
def test_a_rank_that_stalls_under_torchrun_is_named_too(tmp_path):
    run = Run(tmp_path, "sleep", launcher="torchrun")
    run.wait(START_S + 10)
    run.check(1, "failed", "rank 1 has been in env.step", "rank 0 waits in moments")
    assert "rank 1 has been in env.step" in run.text


@pytest.mark.slow
def test_a_rank_killed_under_torchrun_is_named_too(tmp_path):
    run = Run(tmp_path, "kill", launcher="torchrun")
    run.wait(START_S + 10)
    run.check(1, "failed", "rank 1")


@pytest.mark.slow
def test_the_others_write_the_summary_where_torchrun_does_not(tmp_path):
    run = Run(tmp_path, "kill", env={"on": 0}, launcher="torchrun")
    run.wait(START_S + 10)
    run.check(1, "failed", "rank 0")


@pytest.mark.parametrize(
    ("number", "code", "name"),
    [
        (signal.SIGINT, 130, "SIGINT"),
        pytest.param(signal.SIGTERM, 143, "SIGTERM", marks=pytest.mark.slow),
        pytest.param(signal.SIGUSR1, 138, "SIGUSR1", marks=pytest.mark.slow),
    ],
)
def test_a_signal_to_the_launcher_interrupts(tmp_path, number, code, name):
    run = Run(tmp_path, log_every=128, timeout_s=30.0)
    run.until_it_trains()
    run.process.send_signal(number)
    run.wait(15)
    run.check(code, "interrupted", name)
    ranks = run.summary["ranks"]
    assert len(ranks) == 2, "an interrupted run still tells what each rank did"
    assert len({rank["params_fingerprint"] for rank in ranks}) == 1
    assert len({rank["first_rollout_fingerprint"] for rank in ranks}) == 2


@pytest.mark.slow
def test_ctrl_c_while_a_rank_does_not_come_back(tmp_path):
    """The stuck rank never sees the flag: it is killed, and the run still says that it was interrupted."""
    run = Run(tmp_path, "sleep", timeout_s=300.0, log_every=128)
    run.until_it_trains()
    time.sleep(0.5)
    run.process.send_signal(signal.SIGINT)
    run.wait(20)
    run.check(130, "interrupted")


def test_a_reward_that_is_not_a_number_names_its_environment(tmp_path):
    run = Run(tmp_path, "nan")
    run.wait(START_S)
    run.check(1, "failed", "environment 10 gave a reward that is not finite", "rank 1")
    lines = [line for line in run.text.splitlines() if "environment 10" in line]
    assert lines, run.text
    assert "Traceback" not in run.text


def test_nothing_stays_when_all_are_killed_at_once(tmp_path):
    run = Run(tmp_path, log_every=128)
    run.until_it_trains()
    for pid in [run.process.pid, *run.left()]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    run.wait(5)
    assert run.gone()  # and with them the shared memory, which has no name


def test_ranks_die_with_their_launcher(tmp_path):
    run = Run(tmp_path, log_every=128)
    run.until_it_trains()
    run.process.kill()
    run.wait(5)
    assert run.gone(5.0), "ranks outlive a launcher that was killed"
