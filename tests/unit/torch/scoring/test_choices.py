"""Lists of candidates of different lengths, against loops over rows."""

import numpy as np
import pytest
import torch

from lockstep.data.columns import Ragged
from lockstep.torch.scoring.choices import Candidates

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


def test_owner_is_the_row_of_each_candidate(lists):
    rows = [i for i, length in enumerate(lists.lengths.tolist()) for _ in range(length)]
    assert lists.owner.tolist() == rows
    assert lists.offsets[-1] == len(lists.values)


def test_row_keeps_its_candidates(lists):
    for i, own in enumerate(parts(lists.values, lists)):
        alone = lists.rows(i, 1)
        assert torch.equal(alone.values, own)
        assert (alone.offsets.tolist(), alone.owner.tolist()) == ([0, len(own)], [0] * len(own))


def test_sum_and_largest_of_each_row(lists, x):
    near(lists.sum(x), [part.sum() for part in parts(x, lists)])
    near(lists.max(x), [part.max() if len(part) else x.new_zeros(()) for part in parts(x, lists)])


def test_first_largest_of_each_row(lists, x):
    ties = (x.abs() < 9).double()  # all are the largest
    for of in (x, ties):
        index = lists.argmax(of)
        begins = lists.offsets[:-1].tolist()
        wanted = [
            begin + part.argmax().item() if len(part) else len(x)
            for begin, part in zip(begins, parts(of, lists), strict=True)
        ]
        assert index.tolist() == wanted
        near(lists.pick_best(of, of), [part.max() if len(part) else x.new_zeros(()) for part in parts(of, lists)])


def test_pick_best_takes_all_columns():
    x, lists = torch.arange(6.0).view(3, 2), lists_of([2, 0, 1])
    assert lists.pick_best(x, x[:, 0]).tolist() == [[2, 3], [0, 0], [4, 5]]


def test_argmax_with_nan_stays_within_row():
    """Where nothing compares, an index must still be one of the row's."""
    lists = lists_of([2, 3])
    assert lists.argmax(torch.tensor([1.0, 2.0, 0.0, np.nan, 1.0])).tolist() == [1, 2]


def test_log_sum_exp_and_its_gradient(lists, x):
    found = lists.log_sum_exp(x)
    near(found, [part.logsumexp(0) if len(part) else x.new_zeros(()) for part in parts(x, lists)])
    weight = torch.arange(1.0, len(found) + 1, dtype=x.dtype)
    gradient = torch.autograd.grad(weight @ found, x)[0]
    wanted = [w * part.softmax(0) for w, part in zip(weight, parts(x.detach(), lists), strict=True)]
    torch.testing.assert_close(gradient, torch.cat([x.new_zeros(0), *wanted]).detach(), rtol=1e-9, atol=1e-12)


def test_log_sum_exp_of_large_numbers():
    lists = lists_of([2, 1])
    found = lists.log_sum_exp(torch.tensor([1e4, 1e4, -1e4]))
    torch.testing.assert_close(found, torch.tensor([1e4 + float(np.log(2)), -1e4]))


def test_log_softmax_and_its_gradient(lists, x):
    weight = torch.from_numpy(np.random.default_rng(2).standard_normal(len(x)))
    found = lists.log_softmax(x)
    wanted = torch.cat([x[:0], *(part.log_softmax(0) for part in parts(x, lists))])
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)
    gradient, right = (torch.autograd.grad(weight @ of, x)[0] for of in (found, wanted))
    torch.testing.assert_close(gradient, right, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("shape", [(), (3,)])
def test_repeat_and_its_gradient(lists, shape):
    count = len(lists.offsets) - 1
    x = torch.from_numpy(np.random.default_rng(3).standard_normal((count, *shape))).requires_grad_()
    found = lists.repeat(x)
    wanted = x[lists.owner]
    assert torch.equal(found, wanted)
    weight = torch.from_numpy(np.random.default_rng(4).standard_normal(found.shape))
    gradient, right = (torch.autograd.grad((weight * of).sum(), x)[0] for of in (found, wanted))
    torch.testing.assert_close(gradient, right, rtol=1e-9, atol=1e-12)


def test_pick_takes_a_candidate_by_its_index_in_the_list():
    lists = lists_of([2, 1, 3])
    assert lists.pick(torch.arange(6.0), torch.tensor([1, 0, 2])).tolist() == [1, 2, 5]


@pytest.mark.gpu
def test_gpu_results_are_deterministic():
    lengths = np.random.default_rng(0).integers(0, 50, 4000).tolist()
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    lists = Candidates.of(Ragged(np.zeros((offsets[-1], 1), np.float32), offsets), torch.device("cuda"))
    x = torch.randn(len(lists.values), device="cuda")
    state = torch.randn(4000, 64, device="cuda", requires_grad=True)

    def once():
        y = lists.repeat(state)
        gradient = torch.autograd.grad((y * x.unsqueeze(1)).sum(), state)[0]
        return [gradient, lists.log_softmax(x), lists.argmax(x), lists.sum(x)]

    first = once()
    for _ in range(20):
        assert all(torch.equal(a, b) for a, b in zip(first, once(), strict=True))
