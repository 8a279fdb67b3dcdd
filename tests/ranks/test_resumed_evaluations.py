"""The evaluation at the end of a run, and the return at which it stops, when the run is resumed."""

import json

from running import lines, small

from lockstep import train
from lockstep.run import override

RUN = small("CartPole-v1", total_steps=1024, checkpoint_every=1024)
FILE = "evaluations.jsonl"


def test_the_last_evaluation_is_in_a_checkpoint_that_was_taken_before_it(tmp_path):
    train(RUN, run_dir=tmp_path / "run")
    (first,) = lines(tmp_path / "run", FILE)
    manifest = json.loads((tmp_path / "run" / "checkpoints" / "step_1024" / "manifest.json").read_text())
    assert manifest["eval_return_mean"] == sum(first["returns"]) / len(first["returns"])
    train(override(RUN, {"total_steps": 1280}), resume=tmp_path / "run")
    assert [line["step"] for line in lines(tmp_path / "run", FILE)] == [1024, 1280]
    assert lines(tmp_path / "run", FILE)[0] == first


def test_an_evaluation_of_a_resumed_run_without_steps_is_in_its_checkpoint(tmp_path):
    train(override(RUN, {"total_steps": 2048}), run_dir=tmp_path / "run")
    step = tmp_path / "run" / "checkpoints" / "step_1024"  # of a time before any evaluation
    train(RUN, resume=step)
    train(override(RUN, {"total_steps": 1280}), resume=tmp_path / "run")
    assert [line["step"] for line in lines(tmp_path / "run", FILE)] == [1024, 1280]


def test_a_raised_return_is_not_reached_by_what_reached_the_lower_one(tmp_path, capsys):
    stops = override(RUN, {"evaluate_every": 256, "stop_when_solved": True, "stop_return": 1.0})
    assert train(stops, run_dir=tmp_path / "run")["solved_at_step"] == 256
    raised = override(stops, {"stop_return": 1000.0})
    found = train(override(raised, {"total_steps": 512}), resume=tmp_path / "run")
    assert (found["status"], found["env_steps"], found["solved_at_step"], found["solved_at_s"]) == (
        "finished", 512, None, None
    )  # fmt: skip
    assert "nothing is left" not in capsys.readouterr().out


def test_the_return_of_the_task_counts_again_where_a_lower_one_is_taken_back(tmp_path):
    stops = override(RUN, {"total_steps": 512, "evaluate_every": 256, "stop_when_solved": True, "stop_return": 1.0})
    assert train(stops, run_dir=tmp_path / "run")["env_steps"] == 256
    found = train(override(stops, {"stop_return": None}), resume=tmp_path / "run")
    assert (found["status"], found["env_steps"]) == ("finished", 512)


def test_a_lowered_return_that_the_last_evaluation_reached_solves_the_run(tmp_path, capsys):
    train(override(RUN, {"total_steps": 512, "stop_return": 1000.0}), run_dir=tmp_path / "run")
    lowered = override(RUN, {"stop_when_solved": True, "stop_return": 1.0})
    capsys.readouterr()
    found = train(lowered, resume=tmp_path / "run")
    assert (found["status"], found["env_steps"], found["solved_at_step"]) == ("solved", 512, 512)
    assert found["solved_at_s"] > 0
    assert "nothing is left to do; set stop_when_solved=false to continue" in capsys.readouterr().out
    assert train(lowered, resume=tmp_path / "run") == found
    assert "solved its task at step 512" in capsys.readouterr().out
