"""Ranks and lists in words, for messages."""

from collections.abc import Iterable, Sequence


def ranges(ranks: Iterable[int]) -> str:
    """Ranks as `0-2, 5`."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and rank == parts[-1][-1] + 1:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def named_ranges(ranks: Iterable[int], word: str = "rank") -> str:
    """Ranks as `ranks 2-3, 7` or `rank 4`."""
    text = ranges(ranks)
    return f"{word}{'' if text.isdigit() else 's'} {text}"


def listed(parts: Sequence[object]) -> str:
    """At least one part, as `a`, `a and b` or `a, b and c`."""
    words = list(map(str, parts))
    return ", ".join(words[:-1]) + " and " * (len(words) > 1) + words[-1]
