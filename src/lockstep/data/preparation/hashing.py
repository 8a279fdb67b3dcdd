"""128-bit hashes of names, numbers and rows.

They determine the order of prepared rows and identify copies of data on other machines, so they must not depend on the
machine or on the version of any library. They do not resist deliberate collisions.

One step hashes a word w into a lane h, modulo 2^64: h = (h xor w) * C; h = h xor (h >> 32). For a fixed h it is a
bijection of w, so rows that differ in one column do not collide in that step. The two lanes differ in C.
"""

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

_FACTORS = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93))
_SHIFT = np.uint64(32)
_ABSENT = np.uint64(0x7FF8000000000000)
"""The word of every NaN."""


def absorb_(lanes: Words, words: Words) -> Words:
    """Hash words [n] into both lanes [2, n], in place."""
    for lane, factor in zip(lanes, _FACTORS, strict=True):
        lane ^= words
        lane *= factor
        lane ^= lane >> _SHIFT
    return lanes


def start_lanes(name: str, rows: int) -> Words:
    """Initial lanes [2, rows], equal in all rows; the name separates kinds of hashed data."""
    return np.repeat(hash_names([name]).T, rows, axis=1)


def finish_(lanes: Words) -> Words:
    """Mix the last word through, in place."""
    for _ in range(2):
        absorb_(lanes, np.zeros(1, np.uint64))
    return lanes


def hash_names(names: Iterable[str]) -> Words:
    """Hashes [n, 2] of a few names."""
    digests = [hashlib.blake2b(name.encode(), digest_size=16).digest() for name in names]
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64).reshape(-1, 2)


def hash_strings(series: Any) -> Words:
    """Lanes [2, n] of a polars Series of strings, by eight bytes of all strings at a time."""
    lengths = series.str.len_bytes().to_numpy().astype(np.int64)
    text = np.frombuffer((series.str.join("").item() or "").encode() + bytes(8), np.uint8)
    words = np.ndarray((len(text) - 7,), "<u8", text.data, strides=(1,))  # a word at every byte
    lanes = absorb_(start_lanes("string", len(lengths)), lengths.astype(np.uint64))
    starts = np.cumsum(lengths) - lengths
    rows, shortest = np.arange(len(lengths)), int(lengths.min(initial=0))
    for word in range((int(lengths.max(initial=0)) + 7) // 8):
        if shortest >= 8 * word + 8:  # all strings have these eight bytes: no masks needed
            absorb_(lanes, words[starts + 8 * word])
            continue
        rows = rows[lengths[rows] > 8 * word]
        left = np.minimum(lengths[rows] - 8 * word, 8).astype(np.uint64)
        kept = ~np.uint64(0) >> (np.uint64(64) - np.uint64(8) * left)
        if len(rows) == len(lengths):
            absorb_(lanes, words[starts + 8 * word] & kept)
        else:
            lanes[:, rows] = absorb_(lanes[:, rows], words[starts[rows] + 8 * word] & kept)
    return finish_(lanes)


def float_words(values: NDArray[np.float64]) -> Words:
    """Numbers as words; 0.0 and -0.0 are equal, and so are all NaNs."""
    words = (values + 0.0).view(np.uint64)
    absent = np.isnan(values)
    return np.where(absent, _ABSENT, words) if absent.any() else words


def hash_columns(name: str, columns: Iterable[tuple[str, Words]], rows: int) -> Words:
    """Lanes [2, rows] of named columns of words [rows]; the hash depends on their names and order."""
    lanes = start_lanes(name, rows)
    for column, words in columns:
        absorb_(lanes, words ^ hash_names([column])[0, 0])
    return finish_(lanes)


def hash_lists(lanes: Words, offsets: NDArray[np.int64]) -> Words:
    """Lanes [2, t] of lists, from lanes of their items [2, m]; list i is items offsets[i] to offsets[i + 1]."""
    lengths = np.diff(offsets)
    place = np.arange(int(offsets[-1])) - np.repeat(offsets[:-1], lengths)
    items = finish_(absorb_(lanes.copy(), place.astype(np.uint64)))
    sums = np.zeros((2, items.shape[1] + 1), np.uint64)
    np.cumsum(items, axis=1, out=sums[:, 1:])
    return finish_(absorb_(sums[:, offsets[1:]] - sums[:, offsets[:-1]], lengths.astype(np.uint64)))
