"""The checksum that ranks compare while training: every single change is seen, and only changes are."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.torch.collectives import checksum as module
from lockstep.torch.collectives.checksum import checksum

KINDS = (
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.uint8, torch.int32, torch.int64,
    torch.bool, torch.complex64,
)  # fmt: skip


def make(kind, shape, seed=0):
    """A tensor of any bits, NaNs among them."""
    size = kind.itemsize * int(np.prod(shape))
    drawn = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
    raw = torch.from_numpy(drawn % 2 if kind is torch.bool else drawn)
    return raw.view(kind).view(shape) if size else torch.empty(shape, dtype=kind)


def flipped(tensor, bit):
    """A copy in which one bit is another."""
    raw = bytearray(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    raw[bit // 8] ^= 1 << (bit % 8)
    return torch.frombuffer(raw, dtype=torch.uint8).view(tensor.dtype).view(tensor.shape)


tensors = st.builds(
    make, st.sampled_from(KINDS), st.lists(st.integers(0, 4), max_size=3).map(tuple), st.integers(0, 99)
)


@settings(deadline=None, max_examples=300)
@given(st.lists(tensors, min_size=1, max_size=5), st.data())
def test_any_single_bit_that_changes_is_seen(held, data):
    sizes = [t.numel() * t.element_size() for t in held]
    number = checksum(held)
    assert (number.dtype, number.dim()) == (torch.int64, 0)
    assert torch.equal(number, checksum([t.clone() for t in held]))
    if not sum(sizes):
        return
    which = data.draw(st.sampled_from([n for n, size in enumerate(sizes) if size]))
    bit = 0 if held[which].dtype is torch.bool else data.draw(st.integers(0, 8 * sizes[which] - 1))
    changed = [flipped(t, bit) if n == which else t for n, t in enumerate(held)]
    assert checksum(changed) != number


@settings(deadline=None, max_examples=200)
@given(st.lists(st.floats(width=32), min_size=2, max_size=40), st.randoms(use_true_random=False))
def test_places_matter(values, random):
    first = torch.tensor(values)
    order = list(range(len(values)))
    random.shuffle(order)
    second = first[order]
    equal = torch.equal(first.view(torch.int32), second.view(torch.int32))
    assert (checksum([first]) == checksum([second])) == equal


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16])
def test_bits_count_not_values(kind):
    zero, nan = torch.zeros(3, dtype=kind), torch.full((3,), torch.nan, dtype=kind)
    assert checksum([zero]) != checksum([-zero])
    assert checksum([nan]) == checksum([nan.clone()])
    assert checksum([nan]) != checksum([flipped(nan, 0)])  # another payload


def test_order_matters_and_empty_tensors_are_nothing():
    a, b = torch.randn(5), torch.randn(5)
    assert checksum([a, b]) != checksum([b, a])
    assert checksum([]) == checksum([torch.empty(0, 3)]) == 0
    assert checksum([a, torch.empty(0), torch.from_numpy(np.empty(0)), b]) == checksum([a, b])


def test_strides_do_not_matter():
    matrix = torch.randn(4, 6)
    assert checksum([matrix.t()]) == checksum([matrix.t().contiguous()]) != checksum([matrix])
    assert checksum([torch.nn.Parameter(matrix)]) == checksum([matrix])


def test_patterns_that_cancel_with_regular_weights_are_seen():
    words = torch.full((64,), 1000, dtype=torch.int32)
    number = checksum([words])
    for pattern in ([1, -2, 1], [1, -1, -1, 1], [1, -3, 3, -1]):
        for place in range(60):
            changed = words.clone()
            changed[place : place + len(pattern)] += torch.tensor(pattern, dtype=torch.int32)
            assert checksum([changed]) != number


def test_chunks_are_told_apart(monkeypatch):
    monkeypatch.setattr(module, "_CHUNK", 8)
    module._weights.cache_clear()
    try:
        words = torch.arange(20, dtype=torch.int32)
        numbers = {int(checksum([words]))}
        for place in range(20):
            numbers.add(int(checksum([flipped(words, 32 * place + 31)])))
        numbers.add(int(checksum([torch.cat([words[8:16], words[:8], words[16:]])])))
        assert len(numbers) == 22
    finally:
        module._weights.cache_clear()


@pytest.mark.gpu
def test_a_gpu_finds_the_same_number():
    held = [make(torch.float32, (1000, 1500)), make(torch.bfloat16, (7,)), make(torch.int64, (3, 3))]
    on_gpu = checksum([t.cuda() for t in held])
    assert on_gpu.is_cuda
    assert on_gpu.cpu() == checksum(held)
