"""What keeps nodes from starting together: judged by the main node from what each says of itself."""

from collections import Counter
from collections.abc import Sequence

from lockstep.launch.rendezvous.handshake import Guest
from lockstep.preflight.identity import differences


def contradiction(guests: Sequence[Guest]) -> str | None:
    """The first thing in which nodes contradict each other, and the way out; None if they can start together.

    Args:
        guests: those who are there, the main node first.
    """
    return _numbers(guests) or _node_ranks(guests) or _run_ids(guests) or differences(_cards(guests))


def obstacle(guest: Guest, present: Sequence[Guest]) -> str | None:
    """Why there is no place for a node that comes later, if there is none: it may become free."""
    maximum = present[0].maximum
    if guest.node_rank is not None:
        taken = [other for other in present if other.node_rank == guest.node_rank]
        if taken:
            return (
                f"--node-rank {guest.node_rank} is taken by {taken[0]}; give {guest} another, from 0 to {maximum - 1}"
            )
    if len(present) >= maximum:
        return f"the run has its {maximum} nodes: {_named(present)}; end one, or start the run with a larger --nnodes"
    return None


def missing(guests: Sequence[Guest]) -> str:
    """Who has not come yet, in words: `node 1 is missing`."""
    needed = guests[0].minimum
    ranks = {guest.node_rank for guest in guests}
    if guests[0].elastic or None in ranks:
        return f"so far {_named(guests)}"
    absent = [str(rank) for rank in range(needed) if rank not in ranks]
    return f"node{'s' * (len(absent) > 1)} {', '.join(absent)} {'are' if len(absent) > 1 else 'is'} missing"


def _numbers(guests: Sequence[Guest]) -> str | None:
    by_size: dict[str, list[Guest]] = {}
    for guest in guests:
        by_size.setdefault(_nnodes(guest), []).append(guest)
    if len(by_size) > 1:
        said = ", ".join(f"{size} on {_named(some)}" for size, some in by_size.items())
        return f"--nnodes differs: {said}; start all nodes with the same"
    if len(guests) > guests[0].maximum:
        return (
            f"{len(guests)} nodes came, but --nnodes is {_nnodes(guests[0])}: {_named(guests)}; start no more than that"
        )
    return None


def _node_ranks(guests: Sequence[Guest]) -> str | None:
    maximum = guests[0].maximum
    with_rank = [guest for guest in guests if guest.node_rank is not None]
    without = [guest for guest in guests if guest.node_rank is None]
    if with_rank and without:
        return f"--node-rank is given on {_named(with_rank)}, but not on {_named(without)}; give it on all, or on none"
    for guest in with_rank:
        if guest.node_rank is not None and not 0 <= guest.node_rank < maximum:
            return (
                f"--node-rank {guest.node_rank} of {guest} does not exist with --nnodes {_nnodes(guest)}; "
                f"node ranks go from 0 to {maximum - 1}"
            )
    for rank, count in Counter(guest.node_rank for guest in with_rank).items():
        if count > 1:
            twice = _named([guest for guest in guests if guest.node_rank == rank])
            return f"--node-rank {rank} is given on {count} nodes: {twice}; give each its own, from 0 to {maximum - 1}"
    if guests[0].node_rank:
        return f"--node-rank {guests[0].node_rank} is given on {guests[0]}, where the nodes meet: it must be node 0"
    return None


def _run_ids(guests: Sequence[Guest]) -> str | None:
    by_id: dict[str, list[Guest]] = {}
    for guest in guests:
        by_id.setdefault(guest.run_id, []).append(guest)
    if len(by_id) < 2:
        return None
    said = ", ".join(f"{run_id or 'none'} on {_named(some)}" for run_id, some in by_id.items())
    return f"--rdzv-id differs: {said}; start all nodes with the same"


def _cards(guests: Sequence[Guest]) -> dict[str, dict[str, object]]:
    """By a number of their own, in the order in which they came, where they have no rank."""
    numbers = [index if guest.node_rank is None else guest.node_rank for index, guest in enumerate(guests)]
    return {f"node {number} ({guest.host})": guest.card for number, guest in zip(numbers, guests, strict=True)}


def _nnodes(guest: Guest) -> str:
    return f"{guest.minimum}:{guest.maximum}" if guest.elastic else str(guest.maximum)


def _named(guests: Sequence[Guest]) -> str:
    return ", ".join(map(str, guests))
