"""The two ways Lockstep says no, each with its exit code, and what a caller may want to know of them."""

PEER_DELAY_S = 1.5
"""How long a rank that fails only because another one did waits before it leaves: the other must be seen first."""


class ConfigError(ValueError):
    """The user asked for something that cannot be: exit code 2, one line, before anything starts.

    The message names the setting, its value and the way out.
    """

    exit_code = 2


class RunError(RuntimeError):
    """A run that started could not go on: exit code 1, one line that names the rank and what it was doing."""

    exit_code = 1


class PeerError(RunError):
    """This rank is well, but another one died, stalled or took a different step.

    Attributes:
        rank: the rank at fault, if it is known.
    """

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank


class MismatchError(RunError):
    """Ranks no longer hold the same tensors; raised on all of them.

    Attributes:
        ranks: those that differ from most; all of them where no version has the most holders.
        rank: the one at fault, if it is one.
        tensors: the names of all tensors that differ, in name order.
    """

    def __init__(self, message: str, ranks: list[int], tensors: list[str]) -> None:
        super().__init__(message)
        self.ranks, self.tensors = ranks, tensors
        self.rank = ranks[0] if len(ranks) == 1 else None
