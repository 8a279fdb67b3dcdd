"""Run directories outlive the layout of the source: one made before its files moved is evaluated, resumed, reported."""

import shutil
from pathlib import Path

import pytest

from lockstep.cli.evaluate import evaluate_run
from lockstep.cli.report.runs import read_run
from lockstep.launch.train import train
from lockstep.session.resume import prepare

MADE_BEFORE = Path(__file__).parents[2] / "data" / "run_before_the_move"


@pytest.fixture
def run_dir(tmp_path):
    return Path(shutil.copytree(MADE_BEFORE, tmp_path / "run"))


def test_it_is_evaluated(run_dir):
    played = evaluate_run(run_dir, episodes=4)
    assert played["eval_episodes"] == 4


def test_it_goes_on(run_dir):
    summary = train(prepare(run_dir, {"total_steps": 1024}).run, resume=run_dir)
    assert summary["status"] == "finished"
    assert summary["env_steps"] == 1024
    assert summary["resumed_from"].endswith("step_512")


def test_it_is_reported(run_dir):
    assert read_run(run_dir).status == "finished"
