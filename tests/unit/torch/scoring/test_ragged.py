"""Lists of candidates of different lengths, against loops over rows."""

import numpy as np
import pytest
import torch

from lockstep.data.columns import Ragged
from lockstep.torch.scoring import ragged
from lockstep.torch.scoring.ragged import Candidates

LENGTHS = {"mixed": [0, 3, 1, 0, 0, 5, 2], "none": [0, 0], "one row": [4], "no row": []}


def lists_of(lengths, size=2, seed=0):
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    values = np.random.default_rng(seed).standard_normal((offsets[-1], size)).astype(np.float32)
    return Candidates.of(Ragged(values, offsets), torch.device("cpu"))


def parts(x, lists):
    """What belongs to each row."""
    return list(x.split(lists.lengths.tolist()))


@pytest.fixture(params=LENGTHS)
def lists(request):
    return lists_of(LENGTHS[request.param])


@pytest.fixture
def x(lists):
    return torch.from_numpy(np.random.default_rng(1).standard_normal(len(lists.values))).requires_grad_()


def near(found, wanted):
    torch.testing.assert_close(found, torch.stack(wanted) if wanted else found.new_zeros(0), rtol=1e-9, atol=1e-12)


def test_each_candidate_knows_its_row(lists):
    rows = [i for i, length in enumerate(lists.lengths.tolist()) for _ in range(length)]
    assert lists.row.tolist() == rows
    assert lists.offsets[-1] == len(lists.values)


def test_a_row_alone_has_its_own_candidates(lists):
    for i, own in enumerate(parts(lists.values, lists)):
        alone = lists.of_row(i)
        assert torch.equal(alone.values, own)
        assert (alone.offsets.tolist(), alone.row.tolist()) == ([0, len(own)], [0] * len(own))


def test_sum_and_largest_of_each_row(lists, x):
    near(ragged.total(x, lists), [part.sum() for part in parts(x, lists)])
    near(ragged.largest(x, lists), [part.max() if len(part) else x.new_zeros(()) for part in parts(x, lists)])


def test_first_largest_of_each_row(lists, x):
    ties = (x.abs() < 9).double()  # all are the largest
    for of in (x, ties):
        index = ragged.first_largest(of, lists)
        begins = lists.offsets[:-1].tolist()
        wanted = [
            begin + part.argmax().item() if len(part) else len(x)
            for begin, part in zip(begins, parts(of, lists), strict=True)
        ]
        assert index.tolist() == wanted
        near(ragged.pick(of, index), [part.max() if len(part) else x.new_zeros(()) for part in parts(of, lists)])


def test_pick_takes_all_columns():
    x, lists = torch.arange(6.0).view(3, 2), lists_of([2, 0, 1])
    index = ragged.first_largest(x[:, 0], lists)
    assert ragged.pick(x, index).tolist() == [[2, 3], [0, 0], [4, 5]]


def test_a_score_that_is_no_number_hides_nothing():
    """Where nothing compares, an index must still be one of the row's."""
    lists = lists_of([2, 3])
    assert ragged.first_largest(torch.tensor([1.0, 2.0, 0.0, np.nan, 1.0]), lists).tolist() == [1, 2]


def test_log_sum_exp_and_its_gradient(lists, x):
    found = ragged.log_sum_exp(x, lists)
    near(found, [part.logsumexp(0) if len(part) else x.new_zeros(()) for part in parts(x, lists)])
    weight = torch.arange(1.0, len(found) + 1, dtype=x.dtype)
    gradient = torch.autograd.grad(weight @ found, x)[0]
    wanted = [w * part.softmax(0) for w, part in zip(weight, parts(x.detach(), lists), strict=True)]
    torch.testing.assert_close(gradient, torch.cat([x.new_zeros(0), *wanted]).detach(), rtol=1e-9, atol=1e-12)


def test_log_sum_exp_of_large_numbers():
    lists = lists_of([2, 1])
    found = ragged.log_sum_exp(torch.tensor([1e4, 1e4, -1e4]), lists)
    torch.testing.assert_close(found, torch.tensor([1e4 + float(np.log(2)), -1e4]))


def test_log_softmax_and_its_gradient(lists, x):
    weight = torch.from_numpy(np.random.default_rng(2).standard_normal(len(x)))
    found = ragged.log_softmax(x, lists)
    wanted = torch.cat([x[:0], *(part.log_softmax(0) for part in parts(x, lists))])
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)
    gradient, right = (torch.autograd.grad(weight @ of, x)[0] for of in (found, wanted))
    torch.testing.assert_close(gradient, right, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("shape", [(), (3,)])
def test_spread_and_its_gradient(lists, shape):
    count = len(lists.offsets) - 1
    x = torch.from_numpy(np.random.default_rng(3).standard_normal((count, *shape))).requires_grad_()
    found = ragged.spread(x, lists)
    wanted = x[lists.row]
    assert torch.equal(found, wanted)
    weight = torch.from_numpy(np.random.default_rng(4).standard_normal(found.shape))
    gradient, right = (torch.autograd.grad((weight * of).sum(), x)[0] for of in (found, wanted))
    torch.testing.assert_close(gradient, right, rtol=1e-9, atol=1e-12)


def test_taken_is_the_candidate_that_was_done():
    lists = lists_of([2, 1, 3])
    assert ragged.taken(lists, torch.tensor([1, 0, 2])).tolist() == [1, 2, 5]


@pytest.mark.gpu
def test_a_gpu_gives_the_same_bits_each_time():
    lengths = np.random.default_rng(0).integers(0, 50, 4000).tolist()
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    lists = Candidates.of(Ragged(np.zeros((offsets[-1], 1), np.float32), offsets), torch.device("cuda"))
    x = torch.randn(len(lists.values), device="cuda")
    state = torch.randn(4000, 64, device="cuda", requires_grad=True)

    def once():
        y = ragged.spread(state, lists)
        gradient = torch.autograd.grad((y * x.unsqueeze(1)).sum(), state)[0]
        return [gradient, ragged.log_softmax(x, lists), ragged.first_largest(x, lists), ragged.total(x, lists)]

    first = once()
    for _ in range(20):
        assert all(torch.equal(a, b) for a, b in zip(first, once(), strict=True))
