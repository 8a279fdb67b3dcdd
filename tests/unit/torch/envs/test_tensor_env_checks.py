"""What `lockstep check`, and a training, say about environments on torch tensors with faults."""

from pathlib import Path

import pytest
import tensor_envs
import torch

from lockstep.config.env import EnvConfig
from lockstep.errors import RunError
from lockstep.session.env_checks.episodes import Limits
from lockstep.session.env_checks.report import Report
from lockstep.session.env_checks.task import check_env_of_task
from lockstep.torch.envs.interface import check_observation, check_step

FILE = Path(tensor_envs.__file__)


def faults_of(name):
    report = Report()
    check_env_of_task(f"{FILE}:{name}", EnvConfig(), report, Limits(seconds=30.0))
    return report.faults


@pytest.mark.parametrize("name", ["Walk", "OneBuffer"])
def test_nothing_is_said_of_a_final_observation_that_was_kept(name):
    assert faults_of(name) == []


@pytest.mark.parametrize("name", ["FinalAfterReset", "FinalCriticAfterReset"])
def test_a_final_observation_that_was_overwritten_is_a_fault(name):
    assert faults_of(name) == [
        "step returned the same tensor as observation and as final observation in a step that truncated an episode: "
        "the last one of the old episode is lost; copy it before the reset"
    ]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("GymnasiumTuples", "step returned a tuple; return a TensorStep of lockstep.torch.envs.interface: observation"),
        ("Dicts", "reset returned a dict as observations; return an Observation of lockstep.torch.envs.interface: pol"),
        ("TensorsAlone", "step returned a Tensor as observations; return an Observation of lockstep.torch.envs.inter"),
        ("FinalDicts", "step returned a dict as final observations; return an Observation of lockstep.torch.envs.int"),
        ("WithoutFinal", "an environment truncated an episode without a final observation, which the value of that"),
    ],
)
def test_what_is_returned_in_another_form_is_one_line_that_says_what_to_return(name, words):
    (fault,) = faults_of(name)
    assert fault.startswith(words) and "\n" not in fault


def test_a_training_says_what_to_return_in_the_same_words():
    """Collectors check the shapes of every step, and before them the type."""
    tuples, dicts = (make(2, device=torch.device("cpu")) for make in (tensor_envs.GymnasiumTuples, tensor_envs.Dicts))
    with pytest.raises(RunError, match="reset returned a dict as observations; return an Observation"):
        check_observation(dicts.spec, 2, dicts.reset([0]))
    tuples.reset([0])
    with pytest.raises(RunError, match="step returned a tuple; return a TensorStep"):
        check_step(tuples.spec, 2, tuples.step(torch.zeros(2, 1)))
