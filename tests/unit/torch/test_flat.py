import pytest
import torch
from torch import nn

from lockstep.errors import ConfigError
from lockstep.torch.flat import FlatParameters


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


@pytest.mark.parametrize("shards", [1, 3])
def test_parameters_and_gradients_are_views(shards):
    module, plain = network(), network()
    flat = FlatParameters(module, shards, num_sums=2)
    assert flat.num_parameters == sum(p.numel() for p in plain.parameters())
    x = torch.randn(5, 3)
    assert torch.equal(module(x), plain(x)), "flattening changed the network"
    for _ in range(2):  # the second pass: views must still be views after the first
        flat.zero_gradient_()
        plain.zero_grad()
        module(x).square().sum().backward()
        plain(x).square().sum().backward()
        assert torch.equal(flat.gradient, torch.cat([p.grad.flatten() for p in plain.parameters()]))
    flat.params.data.fill_(0.5)
    assert all((p == 0.5).all() for p in module.parameters())
    module[0].weight.data.fill_(2.0)
    assert (flat.params[:12] == 2.0).all()


def test_backward_accumulates_until_zero_gradient():
    flat = FlatParameters(module := nn.Linear(1, 1))
    for _ in range(3):
        module(torch.ones(1, 1)).sum().backward()
    assert flat.gradient.tolist() == [3.0, 3.0]
    flat.zero_gradient_()
    assert flat.gradient.tolist() == [0.0, 0.0]


def test_every_shard_keeps_its_gradient_and_its_sums():
    flat = FlatParameters(module := nn.Linear(1, 1), 3, num_sums=2)
    for shard in range(3):
        flat.zero_gradient_()
        (module(torch.ones(1, 1)) * (shard + 1)).sum().backward()
        flat.store_shard(shard, torch.tensor([10.0 * shard, -1.0]))
    assert flat.rows.tolist() == [[1, 1, 0, -1], [2, 2, 10, -1], [3, 3, 20, -1]]


def test_one_shard_sends_its_gradient_from_where_it_is_made():
    flat = FlatParameters(module := nn.Linear(1, 1), 1, num_sums=1)
    module(torch.ones(1, 1)).sum().backward()
    flat.store_shard(0, torch.tensor([4.0]))
    assert flat.rows.tolist() == [[1, 1, 4]]
    assert flat.gradient.data_ptr() == flat.rows.data_ptr()


@pytest.mark.parametrize(
    ("shard", "sums", "message"),
    [
        (2, torch.zeros(3), "shard=2 is no local shard: there are 2, counted from 0"),
        (-1, torch.zeros(3), "shard=-1 is no local shard"),
        (0, torch.tensor(4.0), r"sums has shape \[\], and FlatParameters has num_sums=3"),
        (0, torch.ones(1), r"sums has shape \[1\], and FlatParameters has num_sums=3"),
        (0, torch.ones(4), r"sums has shape \[4\], and FlatParameters has num_sums=3"),
    ],
)
def test_what_belongs_to_no_shard_is_not_stored(shard, sums, message):
    flat = FlatParameters(nn.Linear(1, 1), 2, num_sums=3)
    with pytest.raises(ConfigError, match=message):
        flat.store_shard(shard, sums)
    assert not flat.rows.any()


@pytest.mark.parametrize("sums", [torch.tensor(4.0), torch.tensor([4.0]), 4.0])
def test_a_weight_alone_may_be_one_number(sums):
    flat = FlatParameters(nn.Linear(1, 1), 2)
    flat.store_shard(1, sums)
    assert flat.rows[:, -1].tolist() == [0.0, 4.0]


REPLACEMENTS = {
    "assigned": lambda module: module.load_state_dict(network().state_dict(), assign=True),
    "set": lambda module: setattr(module[2], "bias", nn.Parameter(torch.zeros(2))),
    "data": lambda module: setattr(module[2].bias, "data", torch.zeros(2)),
    "type": lambda module: module.double(),
    "removed": lambda module: setattr(module[2], "bias", None),
}


@pytest.mark.parametrize("steps", [0, 1, 7])
@pytest.mark.parametrize("replace", REPLACEMENTS.values(), ids=REPLACEMENTS)
def test_a_parameter_that_was_replaced_is_named_within_as_many_steps_as_there_are_parameters(replace, steps):
    flat = FlatParameters(module := network())
    for _ in range(steps):
        flat.check_views()
    module.load_state_dict(network().state_dict())  # copies
    replace(module)
    with pytest.raises(ConfigError, match=r"^\d.(weight|bias) is no view of FlatParameters any more"):
        for _ in range(1 if steps == 0 else 4):
            flat.check_views()


def test_a_shared_parameter_has_a_place_in_each_of_its_modules():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[1].weight = module[0].weight
    flat = FlatParameters(module)
    flat.check_views()
    module[1].weight = nn.Parameter(torch.zeros(2, 2))
    with pytest.raises(ConfigError, match=r"^1.weight is no view"):
        for _ in range(4):
            flat.check_views()


def test_frozen_parameters_are_left_alone_and_mixed_types_refused():
    module = network()
    module[0].weight.requires_grad_(False)
    assert FlatParameters(module).num_parameters == 4 + 8 + 2
    module[2].double()
    with pytest.raises(ConfigError, match="one type"):
        FlatParameters(module)
