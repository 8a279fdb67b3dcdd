"""Recurrent layers against `torch.nn.GRU` and `torch.nn.LSTM`, and the same policy step by step and over sequences."""

import dataclasses

import numpy as np
import pytest
import torch

from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.experience.acting import ActorWithState
from lockstep.experience.numpy_actor import RecurrentNumpyActor
from lockstep.experience.sequences import rows_of_sequences
from lockstep.run import NetworkConfig
from lockstep.torch.networks import Policy, RecurrentTorchActor, actor_of
from lockstep.torch.recurrent import RecurrentLayers, Sequences

CPU = torch.device("cpu")
SPEC = EnvSpec(3, ActionSpec("discrete", (2,)), "same_step", True)
STEPS, COUNT, INPUTS, SIZE, LAYERS = 6, 4, 3, 5, 2
KINDS = pytest.mark.parametrize("kind", ["gru", "lstm"])


def random_core(kind: str, layers: int = LAYERS) -> RecurrentLayers:
    core = RecurrentLayers(kind, INPUTS, SIZE, layers).double()
    draws = torch.Generator().manual_seed(1)
    for parameter in core.parameters():
        parameter.data = 0.5 * torch.randn(parameter.shape, generator=draws, dtype=torch.float64)
    return core


def random_inputs(core: RecurrentLayers) -> tuple[torch.Tensor, Sequences]:
    draws = torch.Generator().manual_seed(2)
    x, state = (
        torch.randn(*shape, generator=draws, dtype=torch.float64)
        for shape in ((STEPS, COUNT, INPUTS), (COUNT, core.state_size))
    )
    begins = (torch.rand(STEPS, COUNT, generator=draws) < 0.25).double()
    assert begins[1:].any() and begins[0].any() and not begins.all(0).any()
    return x.requires_grad_(), Sequences(state, begins)


def reference(
    core: RecurrentLayers, x: torch.Tensor, sequences: Sequences
) -> tuple[torch.Tensor, torch.Tensor, torch.nn.Module]:
    """Outputs and states of torch's module, called with one step of one sequence at a time."""
    module = (torch.nn.GRU if core.kind == "gru" else torch.nn.LSTM)(INPUTS, SIZE, LAYERS).double()
    module.load_state_dict(core.state_dict())
    parts = 1 if core.kind == "gru" else 2
    outputs, states = torch.zeros(STEPS, COUNT, SIZE).double(), torch.zeros(STEPS, COUNT, core.state_size).double()
    for n in range(COUNT):
        hidden = sequences.state[n].view(LAYERS, parts, SIZE)
        for t in range(STEPS):
            if sequences.begins[t, n]:
                hidden = torch.zeros_like(hidden)
            given = tuple(hidden[:, i].contiguous() for i in range(parts))
            output, after = module(x[t, n : n + 1], given if parts == 2 else given[0])
            hidden = torch.stack(after if parts == 2 else (after,), 1)
            outputs[t, n], states[t, n] = output[0], hidden.flatten()
    return outputs, states, module


@KINDS
def test_core_equals_torch_with_resets(kind):
    core = random_core(kind)
    x, sequences = random_inputs(core)
    output, states = core(x, sequences)
    other = x.detach().clone().requires_grad_()
    expected, expected_states, module = reference(core, other, sequences)
    torch.testing.assert_close(output, expected, msg="outputs differ from torch's")
    torch.testing.assert_close(states, expected_states.detach(), msg="states differ from torch's")
    weight = torch.arange(output.numel(), dtype=torch.float64).view_as(output).sin()
    (output * weight).sum().backward()
    (expected * weight).sum().backward()
    torch.testing.assert_close(x.grad, other.grad, msg="gradients of inputs differ from torch's")
    for (name, mine), theirs in zip(core.named_parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, msg=f"gradients of {name} differ from torch's")


@KINDS
def test_gradient_of_a_sequence_equals_finite_differences(kind):
    core = random_core(kind, layers=1)
    x, sequences = random_inputs(core)
    names = [name for name, _ in core.named_parameters()]

    def outputs(x: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
        given = dict(zip(names, values, strict=True))
        return torch.func.functional_call(core, given, (x, sequences))[0]

    assert torch.autograd.gradcheck(outputs, (x, *(p.detach().clone().requires_grad_() for p in core.parameters())))


@KINDS
def test_step_equals_a_sequence(kind):
    core = random_core(kind)
    x, sequences = random_inputs(core)
    for found, expected in zip(core._stepwise(x, sequences), core(x, sequences), strict=True):
        torch.testing.assert_close(found, expected)


@KINDS
@pytest.mark.parametrize("changes", [{}, {"shared": True}, {"recurrent_layers": 2}], ids=str)
def test_acting_step_by_step_equals_the_batched_policy(kind, changes):
    policy = Policy(SPEC, NetworkConfig(hidden=(8,), recurrent=kind, recurrent_size=6, **changes), seed=1)
    draws = np.random.default_rng(0)
    observation = draws.standard_normal((STEPS, 2, COUNT, SPEC.observation_size), np.float32)
    begins = draws.random((STEPS, 2, COUNT)) < 0.3
    fast = actor_of(policy, CPU)
    assert isinstance(fast, RecurrentNumpyActor)
    for actor in (fast, RecurrentTorchActor(policy, CPU)):
        acting = ActorWithState(actor, (2, COUNT))
        parameters = []
        for t in range(STEPS):
            acting.begins = acting.begins | begins[t]
            parameters.append(acting(observation[t]))
        for shard in range(2):
            rows = torch.from_numpy(observation[:, shard]).flatten(0, 1)
            sequences = Sequences(
                torch.zeros(COUNT, policy.state_size), torch.from_numpy(begins[:, shard].astype(np.float32))
            )
            with torch.no_grad():
                expected, _ = policy(rows, None, sequences)
                states = policy.recurrent.unroll(*policy.recurrent.features(rows), sequences)[2]
            found = np.stack(parameters)[:, shard].reshape(STEPS * COUNT, -1)
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
            last = states[-COUNT:, : policy.actor_state_size]
            np.testing.assert_allclose(acting.state[shard], last, rtol=1e-4, atol=1e-6)


def test_asymmetric_critic_has_recurrent_layers_of_its_own():
    spec = dataclasses.replace(SPEC, critic_size=5)
    policy = Policy(spec, NetworkConfig(hidden=(8,), recurrent="gru", recurrent_size=6))
    sequences = Sequences(torch.zeros(2, policy.state_size), torch.zeros(STEPS, 2))
    observation, critic = torch.randn(STEPS * 2, 3), torch.randn(STEPS * 2, 5)
    parameters, value = policy(observation, critic, sequences)
    others = policy(observation, critic.flip(0), sequences)
    assert torch.equal(parameters, others[0])
    assert not torch.equal(value, others[1])


def test_sequences_are_consecutive_steps_of_one_environment():
    steps, envs, length = 8, 3, 4
    count = steps * envs // length
    order = np.random.default_rng(0).permutation(count)
    rows = rows_of_sequences(order, length=length, num_envs=envs, num_minibatches=2)
    assert sorted(rows) == list(range(steps * envs))
    for part in rows.reshape(2, length, count // 2):
        times, env = np.divmod(part, envs)
        assert (env == env[0]).all(), "a sequence has steps of several environments"
        assert (np.diff(times, axis=0) == 1).all(), "steps of a sequence are not consecutive"
        assert (times[0] % length == 0).all()
    np.testing.assert_array_equal(rows_of_sequences(order, length=1, num_envs=2, num_minibatches=3), order)
