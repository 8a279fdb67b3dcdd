"""The collectives in a world of one: the identity, and nothing opened. Several ranks: tests/ranks."""

import os
import threading

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from lockstep import World
from lockstep.distributed.agreement import mismatch_error
from lockstep.errors import ConfigError, PeerError
from lockstep.torch import comm as comm_module
from lockstep.torch.comm import Comm
from lockstep.torch.flat import FlatParameters


@pytest.fixture
def comm():
    with Comm(World(), device="cpu") as opened:
        yield opened


def test_a_world_of_one_opens_nothing():
    before = set(threading.enumerate())  # an earlier test of this process may have left one
    with Comm(World(), device="cpu") as comm:
        assert not dist.is_initialized()
        assert set(threading.enumerate()) <= before
        assert (comm.backend, comm.device.type) == ("gloo", "cpu")
        (seen,) = comm.observe()
        assert (seen.rank, seen.state, seen.pid) == (0, "running", os.getpid())


def test_every_collective_is_the_identity(comm):
    value = torch.tensor([1.0, -2.0])
    for collective in (comm.sum, comm.mean, comm.max):
        assert torch.equal(collective(value), value)
    assert (comm.any(True), comm.any(False)) == (True, False)
    assert comm.gather_object({"a": [1, "x"]}) == [{"a": [1, "x"]}]
    assert comm.broadcast_object("x") == "x"
    comm.broadcast_([value])
    comm.barrier()
    comm.check_equal({"value": value})
    assert sum(comm.num_messages.values()) == 0


def test_results_are_new_tensors_without_a_gradient(comm):
    """As on several ranks: tests/ranks/test_collectives.py."""
    value = torch.tensor([[1.0, -2.0]], requires_grad=True)
    mean, variance = comm.moments(value, value[0, :1])[1:]
    for result in (comm.sum(value), comm.mean(value), comm.max(value), comm.sum_shards(value), mean, variance):
        assert not result.requires_grad
        result.zero_()
        assert value.tolist() == [[1.0, -2.0]]


def test_what_could_not_be_sent_among_many_is_refused_by_one_too(comm):
    with pytest.raises(TypeError, match="cannot be sent"):
        comm.gather_object(object())


def test_moments_are_weighted(comm):
    rows = torch.randn(9, 2, 3) * 5 + 100
    weight = torch.tensor([1.0, 0, 1, 1, 0, 1, 1, 1, 1])
    count, mean, variance = comm.moments(rows, weight)
    kept = rows[weight > 0].double()
    assert count == 7
    assert (mean.shape, variance.shape) == ((2, 3), (2, 3))
    torch.testing.assert_close(mean.double(), kept.mean(0), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(variance.double(), kept.var(0, unbiased=False), rtol=1e-5, atol=1e-5)


def test_moments_far_from_zero_keep_their_digits(comm):
    for rows in (torch.arange(10, dtype=torch.float64) + 1.7e9, torch.arange(10) + 1_700_000_000):
        assert float(comm.moments(rows)[2]) == 8.25


def test_moments_near_zero_have_the_bits_they_had(comm):
    rows = torch.from_numpy(np.random.default_rng(0).normal(3.0, 2.0, (500, 7)).astype(np.float32))
    weights = torch.ones(500, dtype=torch.float64)
    _, mean, variance = comm.moments(rows)
    expected = weights @ rows.double() / 500
    assert torch.equal(mean, expected.float())
    assert torch.equal(variance, (weights @ rows.double().square() / 500 - expected.square()).float())


def test_moments_ignore_what_weighs_nothing(comm):
    rows = torch.tensor([[1.0], [torch.nan], [3.0]])
    assert [float(x) for x in comm.moments(rows, torch.tensor([1.0, 0.0, 1.0]))] == [2.0, 2.0, 1.0]


def test_one_rank_refuses_what_several_would(comm):
    with pytest.raises(ConfigError, match=r"weight has shape \[2\], but a rank has one weight"):
        comm.mean(torch.ones(2), weight=torch.ones(2))
    with pytest.raises(ConfigError, match="rows given: 3; needed: 1, one for each shard of this rank"):
        comm.sum_shards(torch.ones(3, 2))


def test_a_set_of_parameters_is_refused(comm):
    """Its order depends on addresses, which are others in each process."""
    parameters = set(nn.Linear(2, 1).parameters())
    for call in (comm.average_gradients_, comm.broadcast_):
        with pytest.raises(ConfigError, match="was given a set, which has another order on each rank; give a list"):
            call(parameters)
    comm.broadcast_(dict.fromkeys(nn.Linear(2, 1).parameters()).keys())


@pytest.mark.parametrize("method", ["average_gradients_", "broadcast_"])
def test_a_generator_that_an_optimizer_has_read_is_refused(comm, method):
    """It is empty: without a message no gradient would be averaged. A list that is empty by intent is taken."""
    parameters = nn.Linear(2, 1).parameters()
    torch.optim.SGD(parameters, lr=0.1)
    with pytest.raises(ConfigError, match=rf"^{method} was given nothing: .* list\(policy.parameters\(\)\)$"):
        getattr(comm, method)(parameters)
    getattr(comm, method)([])


@pytest.mark.parametrize("source", ["0", 1, -1, None, 0.0], ids=repr)
def test_what_is_no_rank_is_refused_as_source(comm, source):
    with pytest.raises(ConfigError, match=f"^source={source!r} is not a rank"):
        comm.broadcast_object(1, source=source)


@pytest.mark.parametrize("seconds", [0, -1.0, np.nan, np.inf, None, "10"])
def test_timeouts_that_bound_nothing_are_refused(seconds):
    with pytest.raises(ConfigError, match=f"^timeout_s={seconds} must be a finite number"):
        Comm(World(), device="cpu", timeout_s=seconds)
    if seconds != np.inf:
        with pytest.raises(ConfigError, match=f"^startup_timeout_s={seconds} must be a number"):
            Comm(World(), device="cpu", startup_timeout_s=seconds)


def test_shards_of_one_rank_are_summed_along_the_tree():
    values = torch.tensor([[1.0], [1e8], [-1e8], [3e-9]], dtype=torch.float32)
    with Comm(World(num_shards=4, pinned=True), device="cpu") as comm:
        expected = (values[0] + values[1]) + (values[2] + values[3])
        assert torch.equal(comm.sum_shards(values), expected)
        assert not torch.equal(expected, ((values[0] + values[1]) + values[2]) + values[3])


def test_the_gradient_of_an_ordinary_module_stays_its_mean(comm):
    module = nn.Linear(2, 1)
    module(torch.ones(4, 2)).mean().backward()
    before = module.weight.grad.clone()
    assert comm.average_gradients_(module.parameters(), weight=4.0).tolist() == [4.0]
    assert torch.equal(module.weight.grad, before)


def test_the_gradient_of_flat_parameters_is_divided_by_the_weight(comm):
    flat = FlatParameters(module := nn.Linear(2, 1), 1, num_sums=2)
    (3 * module(torch.ones(4, 2))).sum().backward()
    flat.store_shard(0, torch.tensor([4.0, 7.0]))
    assert comm.average_gradients_(flat).tolist() == [4.0, 7.0]
    assert flat.gradient.tolist() == [3.0, 3.0, 3.0]


@pytest.mark.parametrize("num_shards", [1, 2])
def test_a_shard_that_is_left_out_does_not_send_an_earlier_gradient_again(num_shards):
    with Comm(World().with_shards(num_shards), device="cpu") as comm:
        flat = FlatParameters(module := nn.Linear(2, 1), num_shards, num_sums=2)

        def step(*with_rows):
            for k in range(num_shards):
                flat.zero_gradient_()
                if k not in with_rows:
                    continue
                module(torch.ones(4, 2)).sum().backward()
                flat.store_shard(k, torch.tensor([4.0, 7.0]))
            return comm.average_gradients_(flat)

        step(*range(num_shards))
        last = num_shards - 1
        message = rf"local shard {last} since .*zero_gradient_\(\), then flat.store_shard\(shard, torch.zeros\(2\)\)"
        with pytest.raises(ConfigError, match=message):
            step(*range(last))
        assert step(*range(num_shards)).tolist() == [4.0 * num_shards, 7.0 * num_shards]
        assert flat.gradient.tolist() == [1.0, 1.0, 1.0]


def test_backends_and_devices_that_cannot_be_are_refused(monkeypatch):
    with pytest.raises(ConfigError, match="backend=nccl needs GPUs"):
        Comm(World(), device="cpu", backend="nccl")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ConfigError, match="device=cuda, but torch sees no GPU"):
        Comm(World(), device="cuda")


def test_the_device_is_that_of_the_local_rank(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    comm = Comm(World(rank=5, size=8, local_rank=1, local_size=2))
    assert (str(comm.device), comm.backend) == ("cuda:1", "nccl")
    with pytest.raises(ConfigError, match=r"3 processes .* 2 GPU.*--nproc_per_node=2"):
        Comm(World(rank=0, size=3))


def test_ranks_that_do_not_come_are_given_up():
    from lockstep.launch.rank_environment import free_port

    world = World(rank=1, size=2, port=free_port())
    with (
        pytest.raises(PeerError, match="rank 1 could not meet all 2 ranks"),
        Comm(world, device="cpu", startup_timeout_s=0.5, timeout_s=0.5),
    ):
        pass


def test_the_group_is_closed_where_hosts_cannot_connect(monkeypatch):
    def connect(*_):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    def refuse(*_):
        raise PeerError("alpha and beta did not connect")

    monkeypatch.setattr("lockstep.torch.collectives.group.connect", connect)
    monkeypatch.setattr(comm_module, "open_hosts", refuse)
    with pytest.raises(PeerError, match="did not connect"), Comm(World(rank=0, size=2), device="cpu"):
        pass
    left_open = dist.is_initialized()
    if left_open:
        dist.destroy_process_group()
    assert not left_open, "the next Comm of this process is refused"


def test_an_error_inside_passes():
    with pytest.raises(KeyError), Comm(World(), device="cpu"):
        raise KeyError


def versions(*ranks):
    """What each rank tells of its tensors, from `name=(kind, digest)`."""
    return [{name: list(kind_and_digest) for name, kind_and_digest in rank.items()} for rank in ranks]


def test_a_mismatch_names_those_who_differ_from_most():
    a, b, c = ({"w": ("float32 [3]", digest), "z": ("float32 []", "0")} for digest in "abc")
    error = mismatch_error(versions(a, b, a, a, c))
    assert (error.ranks, error.tensors) == ([1, 4], ["w"])
    assert str(error).startswith("ranks 1 and 4 differ from the other ranks in w; something changed it")
    error = mismatch_error(versions(a, b, c))
    assert (error.ranks, str(error).partition(";")[0]) == ([0, 1, 2], "ranks 0, 1 and 2 hold different w")


def test_all_tensors_that_differ_count_for_who_is_odd():
    a = {"w": ("float32 [3]", "a"), "z": ("float32 []", "a")}
    error = mismatch_error(versions(a, a | {"z": ("float32 []", "b")}, a | {"w": ("float32 [3]", "b")}, a))
    assert (error.ranks, error.tensors) == ([1, 2], ["w", "z"])
    assert str(error).startswith("ranks 1 and 2 differ from the other ranks in w and 1 more;")


def test_a_mismatch_of_checksums_alone_does_not_pass():
    same = {"w": ("float32 [3]", "a")}
    error = mismatch_error(versions(same, same))
    assert (error.ranks, error.tensors) == ([0, 1], [])
    assert "suspect the hardware" in str(error)


def test_tags_of_the_library_have_different_marks():
    """Two tags with one mark would pass for the same collective."""
    import zlib

    from lockstep.torch.collectives.group import _MARKS

    tags = [
        "sum_shards", "sum", "mean", "max", "any", "broadcast", "moments", "average_gradients",
        "broadcast_object", "gather_object", "barrier", "check_equal", "close",
        "preflight", "first_rollout", "log", "evaluate", "summary", "hosts",
    ]  # fmt: skip
    marks = [zlib.crc32(tag.encode()) % _MARKS for tag in tags]
    assert len(set(marks)) == len(tags), sorted(zip(marks, tags, strict=True))
    assert np.iinfo(np.uint8).max >= _MARKS


def test_weight_0_gives_zero_gradient_and_zero_moments():
    with Comm(World()) as comm:
        flat = FlatParameters(module := nn.Linear(2, 1), 1, num_sums=1)
        module(torch.ones(3, 2)).sum().mul(0.0).backward()
        flat.store_shard(0, torch.zeros(1))
        assert comm.average_gradients_(flat).tolist() == [0.0]
        assert flat.gradient.tolist() == [0.0] * 3
        count, mean, variance = comm.moments(torch.ones(3, 2), torch.zeros(3))
    assert (float(count), mean.tolist(), variance.tolist()) == (0.0, [0.0, 0.0], [0.0, 0.0])


def test_flat_gradients_without_weight_are_0(comm):
    """Of a loop that forgot `store_shard`, gradients became 1e38."""
    flat = FlatParameters(module := nn.Linear(2, 1))
    module(torch.ones(3, 2)).sum().backward()
    comm.average_gradients_(flat)
    assert flat.gradient.tolist() == [0.0] * 3


@pytest.mark.parametrize("weight", [2, 0.0, torch.tensor(2.0), "2"])
def test_a_weight_beside_flat_parameters_is_refused(comm, weight):
    with pytest.raises(ConfigError, match="their weight is the first of the sums of store_shard; give it there"):
        comm.average_gradients_(FlatParameters(nn.Linear(2, 1)), weight=weight)


@pytest.mark.parametrize("of", ["module", "optimizer of the module", "optimizer of the values"])
def test_views_that_zero_grad_dropped_are_refused(comm, of):
    """Training would do nothing."""
    flat = FlatParameters(module := nn.Linear(2, 1))
    comm.average_gradients_(flat)
    owners = {"module": module, "optimizer of the module": torch.optim.SGD(module.parameters())}
    owners.get(of, torch.optim.SGD([flat.params])).zero_grad()
    module(torch.ones(3, 2)).sum().backward()
    with pytest.raises(ConfigError, match=r"use flat\.zero_gradient_\(\) in its place"):
        comm.average_gradients_(flat)


BAD_WEIGHTS = [
    -1.0,
    np.nan,
    np.float32(-1),
    np.array([np.nan]),
    torch.tensor(-1.0),
    torch.tensor([torch.nan]),
    "3",
    None,
]


@pytest.mark.parametrize("weight", BAD_WEIGHTS, ids=repr)
def test_weights_that_weigh_nothing_sensible_are_refused(comm, weight):
    for call in (comm.mean, comm.average_gradients_):
        with pytest.raises(ConfigError, match=r"^weight=.* must be a (finite )?number"):
            call(nn.Parameter(torch.ones(2)), weight=weight)


@pytest.mark.parametrize(
    "weight", [2, True, np.float32(2), np.int64(2), torch.tensor(2), torch.ones(1, requires_grad=True)]
)
def test_weights_of_any_kind_of_number_are_taken(comm, weight):
    assert comm.average_gradients_(nn.Linear(2, 1), weight=weight).tolist() == [weight]
    comm.mean(torch.ones(2), weight=weight)


@pytest.mark.parametrize(
    ("value", "weight", "words"),
    [
        (torch.ones(2), torch.tensor([1.0, -1.0]), r"weight=\[1.0, -1.0\] must have finite numbers"),
        (torch.ones(2), torch.tensor([1.0, torch.nan]), "must have finite numbers"),
        (torch.ones(2), torch.ones(3), r"weight has shape \[3\] for 2 rows"),
        (torch.ones(2), [1.0, 1.0], "weight is a list, not a tensor"),
        (np.ones(2), None, r"value is a ndarray, not a tensor; give torch.as_tensor\(value\)"),
        (torch.tensor(1.0), None, "value has no rows"),
        (
            torch.tensor([1 + 2j]),
            None,
            r"moments was given torch.complex64, and takes real numbers; give its .real and",
        ),
    ],
)
def test_moments_of_anything_but_rows_and_their_weights_are_refused(comm, value, weight, words):
    with pytest.raises(ConfigError, match=words):
        comm.moments(value, weight)


def test_anything_but_tensors_is_refused_by_one_rank_too(comm):
    """Each appeared on two ranks only, as an error of Python or torch."""
    module, take = nn.Linear(2, 1), r"takes a module or tensors, "
    optimizer = torch.optim.Adam(module.parameters())
    for given, words in {
        "optimizer": (optimizer, "not an Adam; give policy or"),
        "state": (module.state_dict(), "not an OrderedDict; give policy or"),
        "named": ([*module.named_parameters()], "but element 0 is a tuple; give policy or"),
        "number": (1.0, "not a float; give policy or"),
    }.values():
        for call in (comm.average_gradients_, comm.broadcast_):
            with pytest.raises(ConfigError, match=take + words):
                call(given)
    for call in (comm.average_gradients_, comm.broadcast_):
        with pytest.raises(ConfigError, match=r"a module as element 1 of a list; give nn.ModuleList\(\[\.\.\.\]\)"):
            call([module.weight, module])
    for call in (comm.sum, comm.mean, comm.max):
        with pytest.raises(ConfigError, match=r"value is a float, not a tensor; give torch.as_tensor\(value\)"):
            call(1.5)
    with pytest.raises(ConfigError, match=r"max was given torch.complex64, and takes real numbers; give its .real and"):
        comm.max(torch.tensor([1 + 2j]))
    with pytest.raises(ConfigError, match=r"flag has shape \[3\], but a rank has one flag; give flag.any\(\)"):
        comm.any(torch.ones(3))
    assert comm.any(np.True_) is True
    with pytest.raises(ConfigError, match=r"rows has shape \[1\]; give \[K, n\]"):
        comm.sum_shards(torch.ones(1))


def test_parameters_on_two_devices_are_refused_by_name(comm):
    module = nn.ModuleList([nn.Linear(2, 1), nn.Linear(2, 1, device="meta")])
    with pytest.raises(ConfigError, match="parameters are on cpu and meta; call average_gradients_ once for those of"):
        comm.average_gradients_(module)


def test_one_tensor_is_taken(comm):
    for shape in ((), (1,)):
        alpha = torch.zeros(shape, requires_grad=True)
        (3 * alpha).sum().backward()
        comm.average_gradients_(alpha)
        comm.broadcast_(alpha)
        assert alpha.grad == 3.0


def test_equality_is_checked_of_tensors_by_name(comm):
    comm.check_equal({"a": {"b": torch.ones(1), 0: {"c": np.ones(2)}}, "rate": 0.1})
    with pytest.raises(ConfigError, match=r"param_groups is a list; leave it out"):
        comm.check_equal(torch.optim.Adam(nn.Linear(2, 1).parameters()).state_dict())
    for given in ([torch.ones(1)], torch.ones(1)):
        with pytest.raises(ConfigError, match="check_equal takes a module, or tensors by name, not a"):
            comm.check_equal(given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"n": 2**70}, "n is an int"),
        ({"n": np.array(["a", None], object)}, "n is a ndarray"),
        ({"a.b": 1.0, "a": {"b": 2.0}}, "two tensors of the name a.b"),
        ({1: 1.0, "1": 2.0}, "two tensors of the name 1"),
    ],
)
def test_what_cannot_be_compared_by_its_bits_or_its_name_is_refused(comm, given, words):
    with pytest.raises(ConfigError, match=words):
        comm.check_equal(given)


def test_weight_0_gives_zero_gradients_of_a_module(comm):
    used, unused = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    used.grad = torch.tensor([torch.nan])  # of 0 rows
    assert comm.average_gradients_([used, unused], weight=0.0).tolist() == [0.0]
    assert (used.grad.tolist(), unused.grad) == ([0.0], None)


@pytest.mark.parametrize(("num_shards", "overlaps"), [(3, True), (4, False)])
def test_all_ranks_agree_whether_gradients_are_sent_early(num_shards, overlaps, monkeypatch):
    """After an elastic restart with fewer ranks one rank has two shards, and the others have one."""
    monkeypatch.setattr(comm_module, "_OVERLAPPED_BYTES", 0)
    for rank in range(3):
        comm = object.__new__(Comm)
        comm.world, comm.backend, comm._hosts = World(rank=rank, size=3, num_shards=num_shards), "gloo", None
        flat = FlatParameters(nn.Linear(2, 2), len(comm.world.shards), num_sums=1)
        assert comm.overlaps_gradients(flat) == overlaps
