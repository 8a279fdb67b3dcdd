"""`python -m lockstep.workflows.rsl_rl` on two ranks, with a stand-in for the library. Real processes and gloo."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys

import pytest

_RUNNERS = """
import os, signal, sys, time
import torch, torch.distributed as dist

class Algorithm:
    def __init__(self, size):
        self.actor = torch.nn.Linear(size, 1)

class OnPolicyRunner:
    def __init__(self, env, cfg, log_dir=None, device="cpu"):
        self.env, self.cfg = env, cfg
        self._configure_multi_gpu()
        torch.manual_seed(cfg["seed"])
        self.alg = Algorithm(env.get_observations()["policy"].shape[1])
        if log_dir is not None:
            os.makedirs(log_dir)
            open(os.path.join(log_dir, "events"), "w").close()

    def _configure_multi_gpu(self):
        raise AssertionError("it opens nccl")

    def learn(self, iterations, init_at_random_ep_len):
        dist.init_process_group("nccl") if self.is_distributed else None
        actor, mode = self.alg.actor, self.cfg["mode"]
        if mode == "idle":
            return
        if mode.startswith("SIG"):
            if mode == "SIGINT":  # as in a terminal, also where these tests run in the background of a shell
                signal.signal(signal.SIGINT, signal.default_int_handler)
            os.kill(os.getpid(), getattr(signal, mode))
            time.sleep(60)
        for parameter in actor.parameters():
            if self.is_distributed:
                dist.broadcast(parameter.data, 0)
        for iteration in range(iterations):
            for _ in range(self.cfg["num_steps_per_env"]):
                observations = self.env.get_observations()["policy"]
                noise = torch.randn(len(observations), 1)
                self.env.step((actor(observations) + noise).detach())
            if mode == "exit" and self.gpu_global_rank == 1:
                sys.exit(7)
            actor(observations).mean().backward()
            for parameter in actor.parameters():
                if self.is_distributed and mode != "unsynced":
                    dist.all_reduce(parameter.grad)
                parameter.data -= 0.1 * parameter.grad
                parameter.grad = None
"""
_AGENT = "seed: 5\nmode: {mode}\nnum_steps_per_env: 6\nmax_iterations: 3\n"


@pytest.fixture
def start(tmp_path):
    """`start(mode, *flags, **environment)` starts the workflow in `tmp_path`; returns the process."""
    packages = tmp_path / "packages"
    (packages / "rsl_rl").mkdir(parents=True)
    (packages / "rsl_rl" / "__init__.py").touch()
    (packages / "rsl_rl" / "runners.py").write_text(_RUNNERS)
    (packages / "rsl_rl" / "env.py").write_text("class VecEnv: ...\n")
    (packages / "tensordict.py").write_text("def TensorDict(tensors, batch_size): return tensors\n")
    (packages / "rsl_rl_lib-5.0.dist-info").mkdir()
    (packages / "rsl_rl_lib-5.0.dist-info" / "METADATA").write_text("Name: rsl-rl-lib\nVersion: 5.0\n")

    def start(mode, *flags, **environment):
        (tmp_path / "agent.yaml").write_text(_AGENT.format(mode=mode))
        clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
        search = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
        words = [
            "--task=lockstep/Cartpole-v0",
            "--agent",
            "agent.yaml",
            "--num_envs=4",
            "--run_dir=run",
            "--device=cpu",
        ]
        paths = {"PYTHONPATH": os.pathsep.join([str(packages), *search]), "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            [sys.executable, "-m", "lockstep.workflows.rsl_rl", *words, *flags],
            env=clean | paths | environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    return start


@pytest.fixture
def train(start):
    """`train(mode, *flags)` runs the workflow in `tmp_path`; returns exit code, stdout and stderr."""

    def run(mode, *flags):
        process = start(mode, *flags)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    return run


def test_two_ranks_collect_different_data_and_end_with_equal_parameters(train, tmp_path):
    code, out, err = train("sound", "--ranks", "2", "--headless", "--distributed")
    assert code == 0, out + err
    assert "parameters are equal on all 2 ranks" in out
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["world_size"], summary["env_steps"]) == ("finished", 2, 2 * 4 * 6 * 3)
    assert 0 < summary["phases_s"]["env"] < summary["wall_time_s"], "the time of the environments is not measured"
    ranks = summary["ranks"]
    assert [one["rank"] for one in ranks] == [0, 1]
    assert ranks[0]["seed"] == 5 != ranks[1]["seed"]
    assert ranks[0]["params_fingerprint"] == ranks[1]["params_fingerprint"]
    assert ranks[0]["first_rollout_fingerprint"] != ranks[1]["first_rollout_fingerprint"]
    assert any("advantages" in note for note in summary["notes"])
    assert summary["steps_per_second"] == pytest.approx((18 - 8) * 8 / summary["wall_time_s"])
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [48, 96, 144]
    rates = [row.get("time/steps_per_second") for row in rows]
    assert rates[0] is None, "before the clock began"
    assert rates[1] == pytest.approx((96 - 64) / rows[1]["time_s"], rel=0.01)
    assert (tmp_path / "run" / "rsl_rl" / "events").is_file()
    assert "num_envs_per_rank: 4" in (tmp_path / "run" / "run.yaml").read_text()
    assert {path.name for path in (tmp_path / "run" / "logs").iterdir()} == {"rank_0.log", "rank_1.log"}


def test_ranks_of_a_short_run_are_compared_too(train, tmp_path):
    code, out, err = train("sound", "--ranks", "2", "--max_iterations=1")
    assert code == 0, out + err
    first = [
        one["first_rollout_fingerprint"] for one in json.loads((tmp_path / "run/summary.json").read_text())["ranks"]
    ]
    assert None not in first and first[0] != first[1]


def test_a_run_without_a_step_is_no_success(train):
    code, _, err = train("idle")
    assert code == 1 and "rsl_rl made no step: nothing was trained" in err


def test_an_agent_that_should_be_loaded_is_refused(train):
    code, _, err = train("sound\nresume: true")
    assert code == 2 and "resume=true: this workflow begins with new parameters" in err


def test_unequal_parameters_end_the_run_with_an_error(train, tmp_path):
    code, out, err = train("unsynced", "--ranks", "2")
    assert code == 1
    assert "different actor" in err and "parameters are equal" not in out
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "failed"


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGHUP", "SIGINT"])
def test_the_summary_names_the_signal_that_came(train, tmp_path, name):
    code, _, err = train(name)
    assert code == 128 + signal.Signals[name], err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["error"]) == ("interrupted", f"interrupted by {name}")


def test_exit_code_of_a_failing_rank_is_returned(train, tmp_path):
    code, _, err = train("exit", "--ranks", "2")
    assert code == 7, err
    assert "rank 1" in err
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "failed"


def test_one_rank_needs_no_launcher(train, tmp_path):
    code, out, err = train("sound", "--max_iterations=2", "--seed=9")
    assert code == 0, out + err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["updates"], summary["seed"], summary["ranks"][0]["seed"]) == (2, 9, 9)


def test_ranks_of_mpirun_meet_where_it_says(start, tmp_path):
    """Not at the port of torchrun, where another job may listen."""
    with socket.socket() as taken:
        with contextlib.suppress(OSError):  # it is taken
            taken.bind(("127.0.0.1", 29500))
            taken.listen()
        ranks = []
        for rank in map(str, range(2)):
            world = {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_LOCAL_RANK": rank}
            world |= {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
            ranks.append(start("sound", **world))
        for process in ranks:
            out, err = process.communicate(timeout=120)
            assert process.returncode == 0, out + err
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["world_size"] == 2
