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
