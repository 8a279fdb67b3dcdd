"""What `lockstep chaos` decides before and after it starts anything; the runs themselves are in tests/chaos."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch

from lockstep.cli.chaos import fault_run, faults
from lockstep.cli.chaos.backend_faults import weight_changer
from lockstep.cli.chaos.command import MAX_TIMEOUT_S, UPDATES, chosen_faults, prepared, run_chaos, schedule
from lockstep.cli.chaos.fault_run import HEAD, FaultResult, FaultRuns
from lockstep.cli.chaos.faults import INJECTED_FILE, KINDS, InjectedFault
from lockstep.cli.report.runs import find_runs
from lockstep.errors import ConfigError
from lockstep.record.run_dir import RunDir
from lockstep.run import Run, load, override
from lockstep.torch.flat import FlatParameters

RUN = Run(task="CartPole-v1", num_envs=8)
BATCH = RUN.num_envs * RUN.algorithm.num_steps


def test_chosen_faults_selects_by_name():
    assert chosen_faults(None, 2) == list(KINDS)
    assert chosen_faults("stall, kill, stall", 2) == ["stall", "kill"]
    assert set(KINDS) - set(chosen_faults(None, 1)) == {"collective", "stop", "weight"}
    with pytest.raises(ConfigError, match="--faults weight is detected by another rank, and there is one; use --ranks"):
        chosen_faults("kill,weight", 1)
    for text, named in (("kill,quake", "quake"), ("", "''"), (",", "','")):
        with pytest.raises(ConfigError, match=f"--faults {named}: no such fault; there are kill, raise, exit, stall"):
            chosen_faults(text, 2)


def test_prepared_run_is_pinned_short_and_checkpointed_often():
    run = prepared(RUN, 3, whole=False)
    assert run.num_shards == 3
    assert run.total_steps == UPDATES * BATCH
    assert run.checkpoint_every == 4 * BATCH
    assert run.timeout_s == MAX_TIMEOUT_S
    assert not run.stop_when_solved
    whole = prepared(
        Run(task="CartPole-v1", num_envs=8, num_shards=4, total_steps=60 * BATCH, timeout_s=2), 2, whole=True
    )
    assert (whole.num_shards, whole.total_steps, whole.timeout_s) == (4, 60 * BATCH, 2)
    assert whole.checkpoint_every == 10 * BATCH


def test_prepared_dqn_run_learns_before_the_first_checkpoint():
    run = Run(task="CartPole-v1", algo="dqn", num_envs=8)
    assert run.algorithm.learning_starts > UPDATES * 8
    tried = prepared(run, 2, whole=False)
    assert (tried.total_steps, tried.checkpoint_every, tried.algorithm.learning_starts) == (UPDATES * 8, 32, 32)
    whole = prepared(override(run, {"total_steps": 50_000}), 2, whole=True)
    assert (whole.total_steps, whole.algorithm.learning_starts) == (50_000, run.algorithm.learning_starts)


def test_a_run_that_is_too_short_is_refused():
    with pytest.raises(
        ConfigError, match=f"total_steps=10 is 1 update, and chaos .* 4; use --set total_steps={4 * BATCH}"
    ):
        prepared(Run(task="CartPole-v1", num_envs=8, total_steps=10), 2, whole=True)


def test_schedule_depends_only_on_the_seed():
    run = prepared(RUN, 4, whole=False)
    drawn = schedule(list(KINDS), run, 4, seed=0)
    assert drawn == schedule(list(KINDS), run, 4, seed=0)
    assert drawn != schedule(list(KINDS), run, 4, seed=1)
    assert schedule(["nan"], run, 4, seed=0) == [fault for fault in drawn if fault.fault == "nan"]
    many = [fault for seed in range(50) for fault in schedule(list(KINDS), run, 4, seed)]
    assert {fault.rank for fault in many} == {0, 1, 2, 3}
    assert {fault.update for fault in many} == set(range(1, UPDATES - 1)), "after the first update, before the last"


def test_fault_round_trips_through_json():
    fault = InjectedFault("kill", 2, 7, attempt=1)
    assert InjectedFault.from_json(fault.to_json()) == fault
    for text, words in (
        ("{", "is not a fault"),
        ('{"rank": 1}', "'fault' and 'update'"),
        ('{"fault": "x"}', "is not a fault"),
    ):
        with pytest.raises(ConfigError, match=words):
            InjectedFault.from_json(text)
    with pytest.raises(ConfigError, match="unknown fault quake; there are kill"):
        InjectedFault("quake", 0, 1)


@pytest.mark.parametrize(
    ("arguments", "run_dir"),
    [
        (["run.yaml", "--run-dir", "a/b", "--started-by-lockstep"], "a/b"),
        (["run.yaml", "--run-dir=a/b"], "a/b"),
        (["--resume", "a/b"], "a/b"),
        (["--resume", "a/b/checkpoints/step_5", "--started-by-lockstep"], "a/b"),
        (["run.yaml"], None),
    ],
)
def test_the_run_directory_is_found_in_a_command(arguments, run_dir):
    found = faults._run_dir(arguments)
    assert (None if found is None else str(found)) == run_dir


def test_invalid_fault_is_one_error_line(monkeypatch, capsys):
    monkeypatch.setattr(
        sys, "argv", ["lockstep.cli.chaos.faults", '{"fault": "quake", "rank": 0, "update": 1}', "train"]
    )
    with pytest.raises(SystemExit) as left:
        faults.main()
    assert left.value.code == 2
    assert capsys.readouterr().err.startswith("lockstep: error: unknown fault quake; there are kill, ")


def test_one_weight_of_the_network_changes(monkeypatch):
    monkeypatch.setattr(FlatParameters, "__init__", FlatParameters.__init__)  # restored afterwards
    change = weight_changer("torch")
    flat = FlatParameters(torch.nn.Linear(3, 2), 1, num_sums=1)
    before = flat.params.detach().clone()
    change()
    assert (flat.params != before).sum() == 1


# What a run leaves, and how it is judged.


def test_directory_of_all_runs_is_no_run_itself(here, monkeypatch):
    def undisturbed(fault_runs):
        (config, *_) = fault_runs._train("undisturbed")
        assert load(Path(config)) == fault_runs._run
        RunDir.create(fault_runs._folder / "undisturbed", fault_runs._run).close()

    monkeypatch.setattr(FaultRuns, "undisturbed", undisturbed)
    survived = FaultResult(
        fault="kill", rank=0, update=1, step=1, detected_s=None, restarts=0, steps_lost=0, exit_code=0,
        same_parameters=True, message="",
    )  # fmt: skip
    monkeypatch.setattr(FaultRuns, "try_fault", lambda *_: survived)
    assert run_chaos(RUN, 2, ["kill"], seed=0, run_dir=None, whole=False) == 0
    (folder,) = Path("runs").iterdir()
    assert find_runs([Path("runs")]) == [folder / "undisturbed"]


@pytest.fixture
def fault_runs(tmp_path):
    made = FaultRuns(prepared(RUN, 2, whole=False), 2, tmp_path, [])
    made.fingerprint = "abc"
    return made


def left(folder, *, injected_at=10, message="rank 1 was killed", **summary):
    """The directory of a run in which a fault was injected."""
    (folder / "kill" / "logs").mkdir(parents=True)
    (folder / "kill.txt").write_text("128 steps\nwarning: checkpoint step_5 is damaged\n")
    if injected_at is not None:
        (folder / "kill" / INJECTED_FILE).write_text(json.dumps({"at": injected_at, "time_s": 1000.0}))
    if message:
        failure = folder / "kill" / "logs" / "failure_1.json"
        failure.write_text(json.dumps({"rank": 1, "message": message}))
        os.utime(failure, (1000.5, 1000.5))
    told = {"params_fingerprint": "abc", "restarts": 1, "resumed_from": f"checkpoints/step_{8 * BATCH}", "error": None}
    (folder / "kill" / "summary.json").write_text(json.dumps(told | summary))


def judged(fault_runs, code=0, problems=()):
    return fault_runs._evaluate(InjectedFault("kill", 1, 9), code, 0, list(problems), 60.0)


def test_run_without_problems_survives(fault_runs, tmp_path):
    left(tmp_path)
    result = judged(fault_runs)
    assert result.survived
    assert result.same_parameters
    assert (result.update, result.step, result.steps_lost, result.restarts) == (10, 10 * BATCH, 2 * BATCH, 1)
    assert result.detected_s == pytest.approx(0.5)
    assert result.message == "rank 1 was killed; warning: checkpoint step_5 is damaged"
    row = result.row(exact=True)
    assert row.split()[:8] == ["kill", "1", "10", str(10 * BATCH), "0.5", "s", "1", str(2 * BATCH)]
    assert row.index("survived") == HEAD.index("verdict")
    assert row.index("rank 1 was") == HEAD.index("message")


@pytest.mark.parametrize(
    ("run", "code", "why"),
    [
        ({"params_fingerprint": "abd"}, 0, "it ended with other parameters"),
        ({"injected_at": None}, 0, "the fault was not injected"),
        ({"restarts": 0}, 0, "the fault was not detected"),
        ({"error": "rank 1 was killed"}, 137, "rank 1 was killed; see"),
        ({}, None, "it did not end within 60 s"),
    ],
)
def test_run_with_problems_does_not_survive(fault_runs, tmp_path, run, code, why):
    left(tmp_path, **run)
    result = judged(fault_runs, code)
    assert not result.survived
    assert why in result.row(exact=True)
    assert "NOT survived" in result.row(exact=True)


@pytest.mark.parametrize("content", ["", '{"rank": 1, "mess', '{"rank": 1}', '{"message": ""}'])
def test_failure_without_a_readable_message_has_none(fault_runs, tmp_path, content):
    left(tmp_path)
    (tmp_path / "kill" / "logs" / "failure_1.json").write_text(content)
    assert judged(fault_runs).message == "warning: checkpoint step_5 is damaged"


def test_time_of_detection_is_unknown_without_the_time_of_the_fault(fault_runs, tmp_path):
    left(tmp_path, injected_at=None)
    assert judged(fault_runs).detected_s is None


def test_partial_files_are_a_problem(fault_runs, tmp_path):
    left(tmp_path)
    (tmp_path / "kill" / "checkpoints" / ".step_5").mkdir(parents=True)
    assert fault_runs._clean_up("kill") == ["half-written: kill/checkpoints/.step_5"]
    assert not judged(fault_runs, problems=["half-written"]).survived


def test_other_parameters_are_accepted_if_not_exact(fault_runs, tmp_path):
    left(tmp_path, params_fingerprint="abd")
    fault_runs.exact = False
    assert judged(fault_runs).survived
    assert "not promised" in judged(fault_runs).row(exact=False)


def test_restart_without_checkpoint_repeats_all_steps(fault_runs, tmp_path):
    left(tmp_path, resumed_from=None)
    assert judged(fault_runs).steps_lost == 10 * BATCH


def test_long_explanations_are_shortened_in_the_table_only():
    long = FaultResult(
        fault="kill", rank=0, update=1, step=1, detected_s=None, restarts=0, steps_lost=0, exit_code=0,
        same_parameters=True, message="x" * 500,
    )  # fmt: skip
    assert len(long.row(exact=True)) <= HEAD.index("message") + fault_run._MESSAGE_WIDTH
