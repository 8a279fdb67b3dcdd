"""The candidate network gives equal scores for all forms of its input."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from lockstep.data.columns import Ragged
from lockstep.run import ScoreNetworkConfig
from lockstep.torch.q_networks import initialize
from lockstep.torch.scoring.candidates import CandidateNetwork
from lockstep.torch.scoring.choices import Candidates

STATE, ACTION, LENGTHS = 5, 3, [2, 0, 4, 1]


def network(hidden=(8, 6), seed=0, **changes):
    made = CandidateNetwork(STATE, ACTION, ScoreNetworkConfig(hidden=hidden), **changes)
    initialize(made, seed)
    for parameter in made.parameters():  # biases begin at 0, where they would hide
        with torch.no_grad():
            parameter.add_(0.1)
    return made


def inputs(seed=0):
    random = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(LENGTHS)]).astype(np.int64)
    values = random.standard_normal((offsets[-1], ACTION)).astype(np.float32)
    state = torch.from_numpy(random.standard_normal((len(LENGTHS), STATE)).astype(np.float32))
    return state, Candidates.of(Ragged(values, offsets), torch.device("cpu"))


def plain(made, state, action):
    """The network as it is drawn in papers: layers behind [s; a], and those behind s alone."""

    def layers(mlp, x):
        modules = [module for layer in mlp.layers for module in (layer, nn.ReLU())][:-1]
        return nn.Sequential(*modules)(x)

    told = layers(made.body, torch.cat([state, action], 1))
    told = told if made.value is None else told + layers(made.value, state)
    return told if made.outputs else told[:, 0]


@pytest.mark.parametrize("hidden", [(8, 6), (8,), ()], ids=str)
@pytest.mark.parametrize("outputs", [None, 1, 4])
@pytest.mark.parametrize("dueling", [False, True])
def test_all_score_methods_agree(hidden, outputs, dueling):
    made, (state, lists) = network(hidden, outputs=outputs, dueling=dueling), inputs()
    wanted = plain(made, state[lists.owner], lists.values)
    for found in (
        made(state, lists.values, lists.owner),
        made.of_choices(state, lists),
        made.of_one(state[lists.owner], lists.values),
    ):
        torch.testing.assert_close(found, wanted)
    for i, row in enumerate(made.of_all(state, lists.values)):
        torch.testing.assert_close(row, plain(made, state[i].expand(len(lists.values), -1), lists.values))


@pytest.mark.parametrize("dueling", [False, True])
def test_gradients_equal_those_of_plain_network(dueling):
    made, (state, lists) = network(dueling=dueling), inputs()
    weight = torch.arange(1.0, len(lists.values) + 1)
    wanted = torch.autograd.grad(weight @ plain(made, state[lists.owner], lists.values), list(made.parameters()))
    for found in (made.of_choices(state, lists), made(state, lists.values, lists.owner)):
        given = torch.autograd.grad(weight @ found, list(made.parameters()))
        for one, right in zip(given, wanted, strict=True):
            torch.testing.assert_close(one, right, rtol=1e-4, atol=1e-5)


def test_score_does_not_depend_on_other_candidates():
    made, (state, lists) = network(dueling=True), inputs()
    alone = torch.cat([made.of_choices(state[i : i + 1], lists.rows(i, 1)) for i in range(len(state))])
    torch.testing.assert_close(made.of_choices(state, lists), alone)


def test_first_layer_runs_once_per_state():
    """Not once for each of its candidates: what a layer sees has as many rows as there are states."""
    made, (state, lists) = network((7, 6)), inputs()
    seen = []
    linear = torch.nn.functional.linear

    def counted(x, *args):
        seen.append(tuple(x.shape))
        return linear(x, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "linear", counted)
        made.of_choices(state, lists)
    assert seen[0] == (len(state), STATE)
    assert all(shape[1] != STATE + ACTION for shape in seen)


def test_all_score_methods_agree_in_bfloat16():
    made, (state, lists) = network(), inputs()
    wanted = made.of_choices(state, lists)
    with torch.autocast("cpu", torch.bfloat16):
        for found in (
            made.of_choices(state, lists),
            made(state, lists.values, lists.owner),
            made.of_one(state[lists.owner], lists.values),
        ):
            assert found.dtype == torch.bfloat16
            torch.testing.assert_close(found.float(), wanted, rtol=0.05, atol=0.05)


def test_the_seed_decides():
    one, other = network(seed=0), network(seed=1)
    again = copy.deepcopy(one)
    initialize(again, 0)
    first = one.body.layers[0].weight - 0.1
    torch.testing.assert_close(again.body.layers[0].weight, first)
    assert not torch.allclose(other.body.layers[0].weight, one.body.layers[0].weight)


def test_outputs_always_have_their_axis():
    one, three = (CandidateNetwork(STATE, ACTION, ScoreNetworkConfig(), outputs=outputs) for outputs in (1, 3))
    state, lists = inputs()
    assert one(state, lists.values, lists.owner).shape == (7, 1)
    assert one.of_one(state, lists.values[:4]).shape == (4, 1)
    assert three.of_choices(state, lists).shape == (7, 3)
