"""What SAC and TD3 compile, and when."""

import numpy as np
import pytest
import torch

from lockstep import World
from lockstep.algorithms.td3 import TD3Config
from lockstep.envs.make import env_spec
from lockstep.run import NetworkConfig, Run
from lockstep.torch import actor_critic
from lockstep.torch.comm import Comm
from lockstep.torch.continuous_policy import ContinuousPolicy
from lockstep.torch.td3 import TD3


def td3(comm, monkeypatch, **settings):
    """The learner, and whether its loss is compiled; which actors its gradient steps update is noted in `calls`."""
    calls, compiled_losses = [], []

    class Gradient:
        def __init__(self, *_, compiled: bool, **__):
            compiled_losses.append(compiled)

        def __call__(self, _, arguments, __):
            calls.append(arguments[1])
            return [torch.zeros(4)]

    monkeypatch.setattr(actor_critic, "LossGradient", Gradient)
    network = NetworkConfig(hidden=(8,))
    run = Run(task="Pendulum-v1", algo="td3", algorithm=TD3Config(**settings), network=network, compile=True)
    spec = env_spec(run.task, run.env)
    return TD3(run, ContinuousPolicy(spec, network, run.algorithm), comm), compiled_losses, calls


@pytest.mark.parametrize(("policy_delay", "kinds"), [(1, [True]), (2, [True, False])])
def test_each_kind_of_gradient_step_is_compiled_before_the_clocks_start(monkeypatch, policy_delay, kinds):
    """That of the critics alone was compiled in mid-training, within `timeout_s`."""
    with Comm(World(), device="cpu") as comm:
        learner, compiled, calls = td3(comm, monkeypatch, batch_size=4, policy_delay=policy_delay)
        before = learner.params.clone()
        learner.compile_steps()
        assert (compiled, calls) == ([True], kinds)
        assert np.array_equal(learner.params, before)


def test_nothing_is_compiled_with_dropout(monkeypatch):
    """Its masks split the compiled function, which then takes longer."""
    with Comm(World(), device="cpu") as comm:
        assert td3(comm, monkeypatch, batch_size=4, dropout=0.1)[1] == [False]
