"""`lockstep train --resume` and `--max-restarts`: what is started, and what is refused."""

import dataclasses
import json
import os
import types
from pathlib import Path

import pytest

from lockstep.cli import main as cli
from lockstep.launch import train_ranks as training
from lockstep.record.checkpoint import FORMAT
from lockstep.run import Run, dump, load, to_dict

RUN = Run(task="lockstep/Corridor-v0", num_envs=12, seed=4)
pytestmark = pytest.mark.usefixtures("here")


def a_run(here, *steps, run=RUN, world_size=2, num_shards=4):
    """`run`: a run directory with checkpoints that have no more than a manifest."""
    path = here / "run"
    path.mkdir()
    (path / "run.yaml").write_text(dump(run))
    for step in steps:
        a_checkpoint(path, step, run, world_size, num_shards)
    return path


def a_checkpoint(path, step, run=RUN, world_size=2, num_shards=4):
    folder = path / "checkpoints" / f"step_{step}"
    folder.mkdir(parents=True)
    manifest = {"format": FORMAT, "step": step, "num_shards": num_shards, "world_size": world_size, "files": {}}
    (folder / "manifest.json").write_text(json.dumps(manifest | {"run": to_dict(run)}))
    (path / "checkpoints" / "LATEST").write_text(f"step_{step}\n")


def rank_of_torchrun(monkeypatch, rank, size=2):
    for name, value in {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(value))


def test_as_many_ranks_as_before(here, launched, trained, capsys):
    a_run(here, 500)
    assert cli.main(["train", "--resume", "run"]) == 7
    (call,) = launched
    assert (call.ranks, call.run_dir, call.restart_policy.max_restarts) == (2, Path("run"), 0)
    assert call.command[1:] == ["-m", "lockstep.train", "--resume", "run", "--started-by-lockstep"]
    assert capsys.readouterr().err == "continue with: lockstep train --resume run\n"
    assert trained == []


@pytest.mark.parametrize("named", ["run", "run/checkpoints/step_500"])
def test_ranks_find_a_checkpoint_whose_replacement_was_cut_short(named, here, launched):
    folder = a_run(here, 500) / "checkpoints"
    (folder / "step_500").rename(folder / ".replaced_step_500")
    (folder / ".step_500").mkdir()
    cli.main(["train", "--resume", named])
    assert launched[0].ranks == 2
    assert sorted(os.listdir(folder)) == ["LATEST", "step_500"]


def test_another_number_of_ranks_and_a_certain_checkpoint(here, launched, trained):
    a_run(here, 500)
    assert cli.main(["train", "--resume=run/checkpoints/step_500", "--ranks", "4", "--max-restarts=3", "--debug"]) == 7
    assert (launched[0].ranks, launched[0].restart_policy.max_restarts) == (4, 3)
    assert launched[0].command[3:] == [
        "--resume",
        str(here / "run/checkpoints/step_500"),
        "--started-by-lockstep",
        "--debug",
    ]
    assert cli.main(["train", "--resume", "run", "--ranks", "1"]) == 0
    (call,) = trained
    assert (call.run, call.run_dir, call.resume, call.started_by_lockstep) == (RUN, Path("run"), Path("run"), False)


def test_the_launched_command_is_understood_and_says_nothing(here, launched, trained, monkeypatch, capsys):
    path = a_run(here, 500)
    cli.main(["train", "--resume", "run", "--set", "total_steps=900"])
    capsys.readouterr()
    rank_of_torchrun(monkeypatch, 0)
    monkeypatch.setenv("LOCKSTEP_LAUNCHER", "lockstep")
    written = (path / "run.yaml").stat().st_mtime_ns
    assert cli.main(["train", *launched[0].command[3:]]) == 0
    (call,) = trained
    assert call.started_by_lockstep
    assert (call.run.total_steps, call.resume, call.run_dir) == (900, Path("run"), Path("run"))
    assert capsys.readouterr().err == ""
    assert (path / "run.yaml").stat().st_mtime_ns == written


def test_changed_setting_is_printed_and_written_before_the_start(here, launched, capsys):
    path = a_run(here, 500)
    assert cli.main(["train", "--resume", "run", "--set", "learning_rate=1e-5", "--max-iterations", "10"]) == 7
    changed = load(path / "run.yaml")
    assert changed.total_steps == 10 * RUN.num_envs * RUN.algorithm.num_steps
    assert changed.algorithm == dataclasses.replace(RUN.algorithm, learning_rate=1e-5)
    *said, last = capsys.readouterr().err.splitlines()
    assert last.startswith("continue with: ")
    assert all(line.startswith("lockstep: note: ") for line in said)
    assert any("learning_rate is 1e-05" in line for line in said)
    assert any("total_steps is" in line for line in said)
    assert sorted(os.listdir(path)) == ["checkpoints", "run.yaml"]


@pytest.mark.parametrize("rank", [0, 1])
def test_under_torchrun_every_rank_goes_on(rank, here, launched, trained, monkeypatch, capsys):
    path = a_run(here, 500)
    rank_of_torchrun(monkeypatch, rank)
    assert cli.main(["train", "--resume", "run", "--set=log_every=7", "--distributed", "--task", RUN.task]) == 0
    assert launched == []
    assert (trained[0].run.log_every, trained[0].started_by_lockstep) == (7, False)
    assert load(path / "run.yaml") == RUN  # rank 0 writes it once all ranks turned out to ask for the same
    assert ("note" in capsys.readouterr().err) == (rank == 0)


@pytest.mark.parametrize(("code", "told"), [(0, 0), (1, 1), (2, 0), (137, 1), (143, 0)])
def test_failure_after_a_checkpoint_prints_the_resume_command(code, told, here, monkeypatch, capsys):
    def launched(*_, run_dir, **__):
        (run_dir / "summary.json").write_text(json.dumps({"status": "failed" if code else "finished"}))
        return code

    monkeypatch.setattr(training, "launch", launched)
    a_run(here)
    assert cli.main(["train", "--resume", "run", "--ranks", "2"]) == code
    assert "continue with" not in capsys.readouterr().err
    a_checkpoint(here / "run", 500)
    assert cli.main(["train", "--resume", "run"]) == code
    assert capsys.readouterr().err.count("continue with: lockstep train --resume run") == told


def test_a_single_rank_has_a_launcher_that_ends_it_when_the_grace_period_is_over(here, launched, trained):
    assert cli.main(["train", "cartpole", "--grace-s", "90", "--run-dir", "out"]) == 7
    (call,) = launched
    assert (call.ranks, call.bounds.grace_s) == (1, 90.0)
    assert trained == []


def test_a_single_rank_that_may_be_restarted_has_a_launcher(here, launched, trained):
    assert cli.main(["train", "cartpole", "--max-restarts", "3", "--grace-s", "90", "--run-dir", "out"]) == 7
    (call,) = launched
    assert (call.ranks, call.restart_policy.max_restarts, call.bounds.grace_s) == (1, 3, 90.0)
    assert trained == []


def test_a_restart_goes_on_from_the_newest_checkpoint(here, launched):
    cli.main(["train", RUN.task, "--ranks", "2", "--run-dir", "run", "--debug", "--max-restarts", "3"])
    (call,) = launched
    path, run = here / "run", load(here / "run" / "run.yaml")
    (path / "metrics.jsonl").write_text("{}\n")
    (path / "tensorboard").mkdir()
    assert call.restart_policy.next_command() == (call.command, "from the start")
    assert sorted(os.listdir(path)) == ["run.yaml"]  # what the first start wrote would be there twice
    a_checkpoint(path, 500, run)
    again, where = call.restart_policy.next_command()
    assert where == "from step 500"
    assert again[1:] == ["-m", "lockstep.train", "--resume", "run", "--started-by-lockstep", "--debug"]


def test_a_restart_before_a_new_checkpoint_goes_on_from_the_one_that_was_named(here, launched):
    path = a_run(here, 500, 900)
    cli.main(["train", "--resume", "run/checkpoints/step_500", "--max-restarts", "3"])
    (call,) = launched
    assert call.restart_policy.next_command() == (call.command, "from step 500")
    a_checkpoint(path, 700)
    again, where = call.restart_policy.next_command()
    assert where == "from step 700"
    assert again[3:5] == ["--resume", str(path)]


def test_restart_of_a_resumed_run_resumes(here, launched):
    """Its metrics stay, whatever became of its checkpoints."""
    path = a_run(here)
    (path / "metrics.jsonl").write_text("{}\n")
    cli.main(["train", "--resume", "run", "--ranks", "2", "--max-restarts", "3"])
    again, where = launched[0].restart_policy.next_command()
    assert (again, where) == (launched[0].command, "from the start")
    assert (path / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--resume nowhere", ["--resume nowhere", "does not exist"]),
        ("cartpole --resume run", ["--resume run", "leave out cartpole"]),
        ("--resume run --run-dir out", ["leave out --run-dir"]),
        ("--resume run --init-from run", ["leave out --init-from"]),
        ("--resume run --agent skrl", ["leave out --agent"]),
        ("--resume run --checkpoint run", ["leave out --init-from"]),
        ("--resume run --task CartPole-v1", ["task=CartPole-v1", RUN.task]),
        ("--resume run --seed 9", ["seed=9", "4"]),
        ("--resume run --algo dqn", ["algo=dqn"]),
        ("--resume run --num-envs 24", ["num_envs=24", "12"]),
        ("--resume run --ml-framework jax", ["ml_framework=jax"]),
        ("--resume run --set num_shards=2", ["num_shards=2"]),
        ("--resume run --set nothing=2", ["nothing"]),
        ("--resume run --ranks 6", ["--ranks 6", "num_shards=4", "--ranks 4"]),
        ("--resume run --ranks 0", ["--ranks 0"]),
        ("--resume run --set num_minibatches=7", ["num_minibatches=7"]),
        ("--resume run --distributed", ["--distributed", "torch.distributed.run"]),
        ("--resume run --max-restarts x", ["--max-restarts x"]),
        ("--resume run --grace-s 0", ["--grace-s 0", "greater than 0"]),
        ("--resume run --max-iterations 3 --set total_steps=5", ["--max-iterations", "total_steps"]),
    ],
)
def test_invalid_arguments_are_one_error_line_and_change_nothing(arguments, words, here, launched, trained, capsys):
    path = a_run(here, 500)
    before = {file: file.read_bytes() for file in here.rglob("*") if file.is_file()}
    assert cli.main(["train", *arguments.split()]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert all(word in said for word in ["lockstep: error: ", *words]), said
    assert trained == launched == []
    assert {file: file.read_bytes() for file in here.rglob("*") if file.is_file()} == before
    assert path.exists()


def test_torchrun_restarts_and_kills_its_own_ranks(here, trained, monkeypatch, capsys):
    a_run(here, 500)
    rank_of_torchrun(monkeypatch, 0)
    for what in (["cartpole"], ["--resume", "run"]):
        assert cli.main(["train", *what, "--max-restarts", "3"]) == 2
        assert "torchrun restarts its own ranks: use its --max-restarts" in capsys.readouterr().err
        assert cli.main(["train", *what, "--grace-s", "3"]) == 2
        assert "torchrun started these ranks and decides when it kills them" in capsys.readouterr().err
    assert trained == []


@pytest.fixture
def tried(monkeypatch):
    """Calls of `lockstep.cli.chaos.command.run_chaos`, which does nothing."""
    calls = []

    def chaos(run, ranks, faults, **kwargs):
        calls.append(types.SimpleNamespace(run=run, ranks=ranks, faults=faults, **kwargs))
        return 7

    monkeypatch.setattr("lockstep.cli.chaos.command.run_chaos", chaos)
    return calls


def test_chaos_takes_the_runs_of_train(tried):
    assert cli.main(["chaos", "cartpole", "--faults", "kill,raise", "--seed", "3", "--set", "num_shards=4"]) == 7
    assert cli.main(["chaos", "CartPole-v1", "--ranks=4", "--max-iterations=5", "--run-dir=out"]) == 7
    assert cli.main(["chaos", "CartPole-v1", "--set", "total_steps=9"]) == 7
    first, second, third = tried
    assert (first.ranks, first.faults, first.seed, first.run_dir, first.whole) == (2, ["kill", "raise"], 3, None, False)
    assert (first.run.task, first.run.seed, first.run.num_shards) == ("CartPole-v1", 3, 4)
    assert (second.ranks, second.run_dir, second.whole) == (4, Path("out"), True)
    assert len(second.faults) > 2
    assert third.whole


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", ["nothing to train"]),
        ("cartpole --faults flood", ["flood", "kill"]),
        ("cartpole --resume run", ["--resume", "lockstep chaos --help"]),
        ("cartpole --ranks 3", ["num_envs=32"]),
        ("CartPole-v9", ["CartPole-v9"]),
    ],
)
def test_chaos_refuses_in_one_line(arguments, words, tried, capsys):
    assert cli.main(["chaos", *arguments.split()]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert all(word in said for word in words), said
    assert tried == []


def test_chaos_needs_no_launcher(tried, monkeypatch, capsys):
    rank_of_torchrun(monkeypatch, 0)
    assert cli.main(["chaos", "cartpole"]) == 2
    assert "torchrun started this process" in capsys.readouterr().err
    assert tried == []
