"""Run directories outlive the layout of the source: one made before its files moved is evaluated, resumed, reported."""

import shutil
from pathlib import Path

import pytest

from lockstep.cli.evaluate import evaluate_run
from lockstep.cli.report.runs import read_run
from lockstep.errors import ConfigError
from lockstep.launch.train import train

MADE_BEFORE = Path(__file__).parents[2] / "data" / "run_before_the_move"


@pytest.fixture
def run_dir(tmp_path):
    return Path(shutil.copytree(MADE_BEFORE, tmp_path / "run"))


def test_it_is_evaluated(run_dir):
    played = evaluate_run(run_dir, episodes=4)
    assert played["eval_episodes"] == 4


def test_it_goes_on(run_dir):
    summary = train(resume=run_dir, total_steps=1024)
    assert summary["status"] == "finished"
    assert summary["env_steps"] == 1024
    assert summary["resumed_from"].endswith("step_512")


def test_what_cannot_change_is_refused(run_dir):
    with pytest.raises(ConfigError, match=r"seed=9 differs from the [0-9]+ that the checkpoint was made with"):
        train(resume=run_dir, seed=9)


def test_it_is_reported(run_dir):
    assert read_run(run_dir).status == "finished"
